import sys
from pathlib import Path

import pytest

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.testing import write_test_model_dir

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "agents")]  # for the modules beside this one and the real agents

from played import installed_line  # noqa: E402


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    return write_test_model_dir(tmp_path_factory.mktemp("model"), context_length=8192)


@pytest.fixture(scope="session")
def chat_format(model_dir):
    return ChatFormat.load(model_dir)


@pytest.fixture(scope="session")
def line():
    """The line of AgentScope that is installed."""
    return installed_line()
