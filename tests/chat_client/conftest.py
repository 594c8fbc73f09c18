import sys
from pathlib import Path

import pytest
from loguru import logger

sys.path.insert(0, str(Path(__file__).parent))  # for asking.py


@pytest.fixture
def warnings_logged():
    """What is logged as a warning, line by line."""
    lines = []
    sink = logger.add(lines.append, level="WARNING", format="{message}")
    yield lines
    logger.remove(sink)
