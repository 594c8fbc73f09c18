import pytest
from loguru import logger


@pytest.fixture
def warnings_logged():
    """What is logged as a warning, line by line."""
    lines = []
    sink = logger.add(lines.append, level="WARNING", format="{message}")
    yield lines
    logger.remove(sink)
