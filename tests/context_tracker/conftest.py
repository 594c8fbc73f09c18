import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ContextTracker
from astune.testing import ScriptedPolicy, write_test_model_dir
from astune.types import Sampling

TEMPLATES = Path(__file__).parent / "templates"


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    return write_test_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def chat_format(model_dir) -> ChatFormat:
    return ChatFormat.load(model_dir)


@pytest.fixture(scope="session")
def write_dir(tmp_path_factory) -> Callable[[str], Path]:
    """A model folder with the template of that file, or with the text given as the template."""

    def write(template: str) -> Path:
        path = write_test_model_dir(tmp_path_factory.mktemp("model"))
        text = (TEMPLATES / template).read_text(encoding="utf-8") if template.endswith(".jinja") else template
        (path / "chat_template.jinja").write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def qwen3(write_dir) -> ChatFormat:
    return ChatFormat.load(write_dir("qwen3.jinja"))


@pytest.fixture(scope="session")
def qwen3_6(write_dir) -> ChatFormat:
    return ChatFormat.load(write_dir("qwen3_6.jinja"))


@pytest.fixture
def make_tracker() -> Callable[..., tuple[ContextTracker, ScriptedPolicy]]:
    def make(answers, chat_format, *, max_turns=1000, seed=7, context_length=100_000, **sampling):
        policy = ScriptedPolicy(answers, chat_format, context_length=context_length)
        defaults = Sampling(**{"max_tokens": 10_000, **sampling})
        return ContextTracker(policy, chat_format, defaults, max_turns=max_turns, seed=seed), policy

    return make


@pytest.fixture
def run():
    return asyncio.run
