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


class FamilyFormats:
    """The chat formats of `FAMILIES`, each loaded once, when a test first asks for it: by family, or by the name of its
    template."""

    def __init__(self, families, write_dir: Callable) -> None:
        self._families = {family.template: family for family in families}
        self._write_dir = write_dir
        self._made: dict[object, tuple[Path, ChatFormat]] = {}

    def __call__(self, family, **template_kwargs) -> ChatFormat:
        return self._make(family, template_kwargs)[1]

    def __getitem__(self, template: str) -> ChatFormat:
        return self(self._families[template])

    def path(self, family) -> Path:
        return self._make(family, {})[0]

    def _make(self, family, template_kwargs) -> tuple[Path, ChatFormat]:
        key = (family.template, family.source, *template_kwargs.items())
        if key not in self._made:
            path = self._write_dir(family)
            self._made[key] = path, ChatFormat.load(path, template_kwargs=template_kwargs)
        return self._made[key]


@pytest.fixture(scope="session")
def formats(tmp_path_factory) -> FamilyFormats:
    from tests.context_tracker.test_template_families import FAMILIES, write_family_dir

    return FamilyFormats(FAMILIES, lambda family: write_family_dir(family, tmp_path_factory.mktemp(family.template)))


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
