import pytest

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.testing import write_test_model_dir
from tests.recordings.played import installed_line


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
