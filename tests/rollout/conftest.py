import pytest

from astune.context_tracker.chat_format import ChatFormat
from astune.testing import write_test_model_dir


@pytest.fixture(scope="session")
def chat_format(tmp_path_factory):
    return ChatFormat.load(write_test_model_dir(tmp_path_factory.mktemp("model")))
