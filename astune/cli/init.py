"""`astune init`: a folder that runs, from five answers; or a copy of a tutorial."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

from astune.cli.find_agent import find_agent
from astune.cli.suggesting_parser import Commands
from astune.errors import ConfigError, nearest
from astune.support.chinese import localize
from astune.support.resources import default_config_dir, skills_dir, tutorial_dir
from astune.support.visible import tell

TEMPLATE = "start"
"""The tutorial that every folder begins as."""
BACKBONES = ("local", "trinity", "verl")
TEXTS = (".py", ".yaml", ".jsonl", ".md", ".txt")
"""The files of a tutorial that are copied; caches and runs are left."""
SKILL = Path(".claude", "skills", "astune")
"""Where the folder has the skill for coding agents: the place that Claude Code looks at."""
OPENAI = "https://api.openai.com/v1#gpt-4.1-mini@OPENAI_API_KEY"
"""The model of `--judge llm`, as `astune eval` names one."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\((\.\.[^)#]*)[^)]*\)")
"""A link or a picture in a page that is not beside it."""
QUESTIONS = {
    "agent": "Your agent, as file.py or file.py:name; nothing: a small one to change",
    "tasks": "Your tasks, as a .jsonl, .csv or .parquet file; nothing: a hundred word problems",
    "judge": "Your judge, as MathAnswerAsJudge or file.py:name, or a model, as llm or ADDRESS#NAME; "
    "nothing: one that looks for the answer",
    "model": "The model, as a folder or hub id; nothing: tiny, which ships",
    "backbone": "Where it will run: local, trinity or verl; nothing: local",
}
EXAMPLES = """\
  {program} init my_agent
  {program} init my_agent --agent agent.py:answer --tasks tasks.jsonl --judge MathAnswerAsJudge --model Qwen/Qwen3-0.6B
  {program} init my_agent --agent agent.py:make_agent --tasks tasks.jsonl --judge llm
  {program} init --from frozen_lake"""


def add_init(commands: Commands) -> None:
    command = commands.add_parser("init", help="write a folder that runs, to start from", examples=EXAMPLES)
    command.set_defaults(execute=_execute)
    command.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help="a new one; without it my_agent")
    command.add_argument("--from", dest="tutorial", metavar="TUTORIAL", help="copy this tutorial instead")
    for name, question in QUESTIONS.items():
        command.add_argument(f"--{name}", help=question.partition(";")[0])
    command.add_argument("--yes", action="store_true", help="ask nothing: take what is not given as it ships")


def _execute(known: argparse.Namespace) -> int:
    given = {name: getattr(known, name) for name in QUESTIONS}
    if known.tutorial is not None:
        if unused := [name for name, value in given.items() if value is not None]:
            raise ConfigError(f"--{unused[0]}: a tutorial is copied as it is; take --from out, or --{unused[0]}")
        return copy_tutorial(known.tutorial, known.folder or Path(known.tutorial))
    ask = _ask if not known.yes and sys.stdin.isatty() else _ask_nobody
    given = {name: ask(QUESTIONS[name]) if value is None else value for name, value in given.items()}
    return write_folder(known.folder or Path("my_agent"), ask, **given)


def _ask(question: str) -> str | None:
    tell(localize(f"{question}: "), end="")
    sys.stdout.flush()
    return sys.stdin.readline().strip() or None


def _ask_nobody(question: str) -> None:
    return None


def write_folder(
    folder: Path,
    ask: Callable[[str], str | None],
    agent: str | None,
    tasks: str | None,
    judge: str | None,
    model: str | None,
    backbone: str | None,
) -> int:
    """Write the folder of `astune init`; nothing is there before all of it is. Raises `ConfigError`."""
    backbone = backbone or "local"
    if backbone not in BACKBONES:
        raise ConfigError(
            f"--backbone: got {backbone!r}, expected {', '.join(BACKBONES)}.{nearest(backbone, BACKBONES)}"
        )
    if tasks is not None and not Path(tasks).is_file():
        raise ConfigError(f"--tasks: no such file: {tasks}")
    file, found = find_agent(agent, ask) if agent else ("", None)
    own = found is not None and not found.kind
    values = {"agent.py:answer": f"{_from_folder(file, folder)}:{found.name}" if found and own else None}
    values |= {"tasks.jsonl": _from_folder(tasks, folder) if tasks else None}
    values |= {"judge.py:judge": _judge(judge, folder) if judge else None}
    values |= {"path: tiny": f"path: {_model(model, folder)}" if model else None}
    values |= {"backbone: local": f"backbone: {backbone}"}

    def fill(half: Path) -> None:
        _copy_files(tutorial_dir() / TEMPLATE, half, "schema.json")
        _copy_files(skills_dir() / SKILL.name, half / SKILL, "")
        shutil.copy(default_config_dir() / "schema.json", half)
        conf = half / "agent.yaml"
        text = conf.read_text(encoding="utf-8")
        for old, new in values.items():
            text = text.replace(old, new or old)
        conf.write_text(text, encoding="utf-8")
        if found is not None and found.kind:
            (half / "agent.py").write_text(found.write_workflow(_from_folder(file, folder)), encoding="utf-8")
        for name, is_elsewhere in (("agent.py", own), ("tasks.jsonl", tasks), ("judge.py", judge)):
            if is_elsewhere:
                (half / name).unlink()

    _write_beside(folder, fill)
    tell(localize(f"wrote {folder}; next:\n  cd {folder}\n  python check.py\n  astune --conf agent.yaml"))
    return 0


def copy_tutorial(name: str, folder: Path) -> int:
    """Copy a tutorial, and those that it takes files of beside it. Raises `ConfigError` for a name that none has."""
    known = sorted(path.name for path in tutorial_dir().iterdir() if (path / "README.md").is_file())
    if name not in known:
        raise ConfigError(f"--from: there is no tutorial {name!r}.{nearest(name, known)} There are: {', '.join(known)}")
    sources = {name: tutorial_dir() / name}
    texts = "".join(path.read_text(encoding="utf-8") for path in _files(sources[name]) if path.suffix != ".md")
    sources |= {other: tutorial_dir() / other for other in known if f"../{other}/" in texts or f'"{other}"' in texts}

    def fill(half: Path) -> None:
        for other, source in sources.items():
            _copy_files(source, half / other, "../schema.json", sources)
        shutil.copy(default_config_dir() / "schema.json", half)

    _write_beside(folder, fill)
    tell(localize(f"wrote {folder}; read {folder / name / 'README.md'} first"))
    return 0


def _judge(judge: str, folder: Path) -> str:
    """The text behind `judge_protocol:`."""
    from astune.training.candidates import read_address

    if judge == "llm" or judge.startswith(("http://", "https://")):
        api = read_address(OPENAI if judge == "llm" else judge, "--judge")
        key = f", api_key_env: {api.api_key_env}" if api.api_key_env else ""
        model = f"{{base_url: {api.base_url}, model: {api.model}{key}}}"
        return f"LlmAsJudge\n    llm:\n      models:\n        - {model}"
    file, _, name = judge.rpartition(":")
    if file.endswith(".py") and not Path(file).is_file():
        raise ConfigError(f"--judge: no such file: {file}")
    return f"{_from_folder(file, folder)}:{name}" if Path(file).is_file() else judge


def _model(model: str, folder: Path) -> str:
    return _from_folder(model, folder) if Path(model).is_dir() else model


def _from_folder(path: str, folder: Path) -> str:
    return os.path.relpath(path, folder)


def _files(source: Path) -> Iterator[Path]:
    return (path for path in sorted(source.rglob("*")) if path.is_file() and path.suffix in TEXTS)


def _copy_files(source: Path, target: Path, schema: str, copied: Collection[str] = ()) -> None:
    """Copy a folder of texts. What they link to is beside them if it is of a tutorial that is `copied` too."""
    for path in _files(source):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8").replace("../../default_config/schema.json", schema)
        if path.suffix == ".md":
            text = LINK.sub(partial(_without_link, path.parent, source, copied), text)
        copy.write_text(text.replace("python launcher.py", "astune").replace("tutorial/", ""), encoding="utf-8")


def _without_link(place: Path, source: Path, copied: Collection[str], found: re.Match[str]) -> str:
    """Say in words where a link of a page in `place` leads that its copy does not have."""
    picture, said, link = found.groups()
    to, root = (place / link).resolve(), tutorial_dir().resolve().parent
    if to.is_relative_to(source.resolve()) or not to.is_relative_to(root):
        return found[0]
    if picture:
        return ""
    first, *rest = to.relative_to(root).parts
    if first == "tutorial":
        return found[0] if rest[0] in copied else f"{said} (`astune init --from {rest[0]}`)"
    return f"{said} (`{to.relative_to(root)}` of ASTune's repository)"


def _write_beside(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder beside, then give it its name: half of it is never there. Raises `ConfigError` where one is."""
    if folder.exists():
        raise ConfigError(f"{folder} is there already; name a new folder: astune init FOLDER")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as beside:
        half = Path(beside) / folder.name
        half.mkdir()
        fill(half)
        half.rename(folder)
