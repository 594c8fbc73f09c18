"""Every code block of the documentation does what the page says.

The word after the language of a block says what it is; people do not see it.

    python file=x.py     written to a folder, imported, and used by a later command of the page
    python run           run as a script
    python not-run=tinker, environment    needs a server; tests/tinker and tests/rollout have what the page shows
    yaml file=x.yaml     written, and loads as a configuration; without file= a part of one, which loads too;
                         with `broken` it is wrong on purpose; with `rubric` it is a rubric
    jsonl file=x.jsonl   written
    bash run             each `astune` or `python launcher.py` command ends with 0 (exit=2: with 2), made small by TINY
    bash not-run=WHY     not run here, for one of REASONS; its keys and make targets exist
    text file=x.txt      written
    text output          lines that the command before printed; `...` stands for anything
    text                 a picture made of letters, or lines of a file

Blocks with `agentscope=1` run where AgentScope 1.x is installed, all others where 2.x is; those with `needs=X`
where the program X is. The pages of `docs/`,
AGENTS.md and the skill go on in the folder that the README's example leaves. The skill makes its `my_agent` itself;
its references find it.
"""

from __future__ import annotations

import io
import re
import runpy
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import metadata
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from astune.cli import main
from astune.cli.parse import parse
from astune.cli.run import demo_config
from astune.config.load import load_config
from astune.config.rules.beside import has_held_out
from astune.errors import PluginError
from astune.monitor import read_episodes
from astune.plugins import load_plugin
from tests.rows import each_row

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("agentscope")
pytest.importorskip("mcp.client.stdio")  # it keeps the standard error that it finds when it is imported

ROOT = Path(__file__).parents[2]
README = "README.md"
SKILL = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "skills").rglob("*.md"))
DOCS = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
PAGES = [README, "CONTRIBUTING.md", "AGENTS.md", *DOCS, *SKILL]
START = ROOT / "tutorial" / "start"
"""What `astune init my_agent` writes."""
KINDS = {
    *("bash run", "bash not-run", "python run", "python file", "python not-run"),
    *("yaml", "yaml file", "yaml file broken", "yaml file rubric", "jsonl file"),
    *("text", "text file", "text output"),
}
"""What a block may say it is; see above."""
NOT_KINDS = {"exit", "agentscope", "needs"}
REASONS = {
    "bash not-run": {"cluster", "docker", "gpu", "install", "long", "network", "studio"},
    "python not-run": {"environment", "tinker"},
}
AGENTSCOPE = metadata.version("agentscope").split(".")[0]
LIMITS = {"TooManyTurns", "ContextOverflow"}
"""What may go wrong in an episode because TINY leaves it so little."""
needs_agentscope_2 = pytest.mark.skipif(AGENTSCOPE != "2", reason="the pages are written for AgentScope 2.x")
LOOKING = (
    *("config", "doctor", "eval", "report", "view", "replay", "rescore", "diff", "tools"),
    *(
        "init",
        "check-tasks",
        "judge-report",
        "rubrics",
        "tasks",
        "env",
        "export",
        "online",
        "prompt",
        "compare",
        "data",
    ),
)
"""Commands that take no keys of training."""
LEARNED_NOTHING = 3
"""How a run of TINY's size may well end: its one step can have no signal."""
TINY = [
    "astune.trainer.total_steps=1",
    "astune.trainer.tasks_per_step=2",
    "astune.trainer.warmup_steps=0",
    "astune.rollout.num_repeat=2",
    "astune.rollout.max_tokens=16",
    "astune.rollout.max_turns=3",
]
HELD_OUT = ["astune.task_reader.max_validation_tasks=2", "astune.evaluation.decoding=[greedy]"]
"""The same where there are held-out tasks."""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    def option(self, name: str, default: str = "") -> str:
        return next((word.partition("=")[2] for word in self.words if word.startswith(f"{name}=")), default)

    @property
    def kind(self) -> str:
        names = [word.partition("=")[0] for word in self.words if word.partition("=")[0] not in NOT_KINDS]
        return " ".join([self.language, *names])


def blocks(page: str) -> Iterator[Block]:
    opened: tuple[int, str] | None = None
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), start=1):
        if not line.startswith("```"):
            assert "```" not in line, f"{page}:{number}: a block begins and ends at the left margin"
            continue
        if opened is None:
            opened = number, line.removeprefix("```")
        else:
            start, info = opened
            language, *words = shlex.split(info) or [""]
            text = (ROOT / page).read_text(encoding="utf-8").splitlines()[start : number - 1]
            yield Block(page, start, language, tuple(words), "\n".join(text) + "\n")
            opened = None
    assert opened is None, f"{page}:{opened}: the block has no end"


ALL = [block for page in PAGES for block in blocks(page)]


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a shell block as lists of words; comments are left out."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def astune_arguments(words: Sequence[str]) -> list[str] | None:
    """The arguments of `astune ...` and `python launcher.py ...`, None for any other command."""
    if words[0] == "astune":
        return list(words[1:])
    return list(words[2:]) if list(words[:2]) == ["python", "launcher.py"] else None


def tiny(arguments: Sequence[str]) -> list[str]:
    conf = Path(arguments[arguments.index("--conf") + 1]) if "--conf" in arguments else demo_config()
    overrides = [text for text in arguments if text.startswith("astune.") and "=" in text]
    config = load_config(conf, overrides, for_run=False).config.astune
    return [*TINY, *(HELD_OUT if has_held_out(config) else [])]


def run_command(words: Sequence[str], place: str, expected: int) -> None:
    arguments = astune_arguments(words)
    assert arguments is not None, f"{place}: only astune's own commands can be run: {shlex.join(words)}"
    if words[0] == "python":
        arguments = [re.sub(r"(^|:)tutorial/", rf"\g<1>{ROOT}/tutorial/", part) for part in arguments]
    small = arguments[0] in LOOKING or "--backbone=debug" in arguments
    trains = arguments[0] == "demo" or (not small and expected == 0)
    ended = main([*arguments, *(tiny(arguments) if trains else [])])
    assert ended == expected or (trains and ended == LEARNED_NOTHING), f"{place}: {shlex.join(words)} gave {ended}"
    errors = [
        record.episode.error
        for path in Path("runs").glob("*/*/episodes/*.jsonl")
        for record in read_episodes(path)
        if record.episode.error and record.episode.error.kind not in LIMITS
    ]
    assert errors == [], f"{place}: {shlex.join(words)}"


def assert_printed(block: Block, printed: str) -> None:
    flat = " ".join(printed.split())
    for line in filter(str.strip, block.text.splitlines()):
        position = 0
        for piece in line.split("..."):
            position = flat.find(wanted := " ".join(piece.split()), position)
            assert position >= 0, f"{block.place}: {wanted!r} was not printed in\n{printed}"


def play(page: str, folder: Path) -> None:
    """Does what the page says, in `folder`."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(printed):
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        for block in blocks(page):
            if block.language in ("python", "bash") and block.option("agentscope", "2") != AGENTSCOPE:
                continue
            if (program := block.option("needs")) and shutil.which(program) is None:
                continue
            if block.kind == "text output":
                assert_printed(block, printed.getvalue())
            else:
                printed.seek(0)
                printed.truncate()
                do(block)


def do(block: Block) -> None:
    if name := block.option("file"):
        Path(name).write_text(block.text, encoding="utf-8")
    if block.kind == "python file":
        with pytest.raises(PluginError, match="there is no 'no_such_name'"):  # it can be imported
            load_plugin(f"{name}:no_such_name", kind="file")
    elif block.kind == "python run":
        Path("snippet.py").write_text(block.text, encoding="utf-8")
        runpy.run_path("snippet.py", run_name="__main__")
    elif block.kind == "bash run":
        for words in commands(block):
            run_command(words, block.place, int(block.option("exit", "0")))


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the README was played."""
    folder = tmp_path_factory.mktemp("readme")
    play(README, folder)
    return folder


def test_no_block_was_overlooked_and_each_says_what_it_is() -> None:
    assert [block.place for block in ALL if block.kind not in KINDS] == []
    assert [block.place for block in ALL if block.option("not-run") not in REASONS.get(block.kind, {""})] == []
    assert {block.option("agentscope", AGENTSCOPE) for block in ALL} <= {"1", "2"}
    assert {before.kind for before, block in pairwise(ALL) if block.kind == "text output"} == {"bash run", "python run"}


def test_every_file_that_a_page_writes_is_used_later() -> None:
    for number, block in enumerate(ALL):
        if name := block.option("file"):
            later = "".join(other.text for other in ALL[number + 1 :] if other.page == block.page)
            assert name in later, f"{block.place}: nothing uses {name}"


def test_the_readmes_agent_has_at_most_30_lines() -> None:
    agent = next(block for block in ALL if block.page == README and block.option("file").endswith(".py"))
    assert len([line for line in agent.text.splitlines() if line.strip()]) <= 30


@needs_agentscope_2
def test_the_readme_does_what_it_says_and_a_run_leaves_what_it_shows(example: Path) -> None:
    tree = next(block.text for block in ALL if block.page == README and block.text.startswith("runs/"))
    named = re.findall(r"^  ([\w.]+)", tree, re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in (example / "runs/astune/till").iterdir())


@needs_agentscope_2
@pytest.mark.parametrize("page", [page for page in PAGES if page != README])
def test_a_page_does_what_it_says(page: str, example: Path, tmp_path: Path) -> None:
    shutil.copytree(example, tmp_path / "folder")
    if page in SKILL:
        shutil.rmtree(tmp_path / "folder" / "my_agent", ignore_errors=True)
    if "/references/" in page:
        shutil.copytree(START, tmp_path / "folder" / "my_agent")
    play(page, tmp_path / "folder")
    written = [block.option("file") for block in blocks(page) if block.option("agentscope", "2") == "2"]
    assert all((tmp_path / "folder" / name).is_file() for name in written if name)


@pytest.mark.skipif(AGENTSCOPE != "1", reason="needs AgentScope 1.x")
def test_what_the_readme_says_of_agentscope_1_works(example: Path) -> None:
    (episodes,) = example.glob("runs/*/*/episodes/train.jsonl")
    text = episodes.read_text(encoding="utf-8")
    assert '"error": null' in text and '"reward": null' not in text


@each_row("block", [block for block in ALL if block.kind in ("yaml", "yaml file")], ids=lambda block: block.place)
def test_every_piece_of_yaml_is_a_configuration(block: Block, tmp_path: Path) -> None:
    """What a part leaves out, a workflow and tasks, is added; nothing that it says is changed."""
    path = tmp_path / "part.yaml"
    path.write_text(block.text, encoding="utf-8")
    given = yaml.safe_load(block.text)["astune"]
    missing = []
    if "agentscope_learn_protocol" not in given.get("rollout", {}):
        missing.append("astune.rollout.agentscope_learn_protocol=agent.py:Agent")
    if "task_reader" not in given:
        missing.append("astune.task_reader.jsonl.training.file_path=tasks.jsonl")
    assert load_config(path, missing).source == path


@each_row("block", [block for block in ALL if block.kind == "bash not-run"], ids=lambda block: block.place)
def test_what_is_not_run_here_names_what_there_is(block: Block, tmp_path: Path) -> None:
    files = [other for other in ALL if other.page in (README, block.page) and other.option("file")]
    for other in files:
        (tmp_path / other.option("file")).write_text(other.text, encoding="utf-8")
    shutil.copytree(START, tmp_path / "my_agent")
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(block):
        arguments = astune_arguments(words)
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets, block.place
        elif arguments and "--conf" in arguments:
            parse(arguments, "astune")
            conf = arguments[arguments.index("--conf") + 1]
            keys = [part for part in arguments if part.startswith("astune.")]
            load_config(
                (ROOT if conf.startswith("tutorial/") else tmp_path) / conf,
                keys,
                for_run=arguments[0] not in ("rubrics", "online"),
            )
