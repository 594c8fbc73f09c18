"""Is what the run imports installed, in versions that fit?"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import metadata

from astune.backbone.trinity.conversion.values import wants_tinker
from astune.backbone.trinity.versions import require_trinity
from astune.backbone.verl.trainer.settings import settings_of
from astune.backbone.verl.versions import require_verl
from astune.backbone.vllm.settings import served_version
from astune.doctor.checked_config import CheckedConfig
from astune.doctor.findings import Finding, fail, ok, warn
from astune.errors import MissingDependency
from astune.plugins import agentscope_hint
from astune.support.user_code import imported_by, source_of

PYTHON = ((3, 10), (3, 14))
"""The first version that works and the first that was not tried."""
LOCAL = {"torch": "2.6", "transformers": "5.23", "safetensors": "0.5", "numpy": "1.26"}
"""Least versions of what `--backbone=local` needs; tests compare them with pyproject.toml."""
LORA = "0.21"
"""The least version of peft, likewise."""
ONLINE = {"alembic": "1.14", "prometheus-client": "0.21", "sqlalchemy": "2.0.36"}
"""Those of what `astune online` needs besides, likewise."""
POSTGRESQL = {"psycopg": "3.2"}
"""And of a store in PostgreSQL."""
EXTRAS = {
    "torch": "local",
    "transformers": "local",
    "safetensors": "local",
    "numpy": "local",
    "datasets": "huggingface",
    "peft": "lora",
    **dict.fromkeys(ONLINE, "online"),
    **dict.fromkeys(POSTGRESQL, "postgresql"),
}


def check_packages(checked: CheckedConfig) -> Iterator[Finding]:
    config = checked.config
    seen = [f"Python {sys.version_info.major}.{sys.version_info.minor}"]
    if not PYTHON[0] <= sys.version_info[:2] < PYTHON[1]:
        yield warn(f"{seen[0]} is not among the versions ASTune is tested on", fix="use Python 3.10 to 3.13")
    needed = dict(LOCAL) if config.backbone == "local" else {}
    if config.backbone == "local":
        in_bits = config.trainer.optimizer == "adamw_8bit" or config.model.lora.base != "dtype"
        needed |= {"bitsandbytes": "0"} if in_bits else {}
        needed |= {"peft": LORA} if config.model.lora.rank is not None else {}
    needed |= {"datasets": "4"} if config.task_reader.type == "huggingface" else {}
    needed |= ONLINE if checked.serves else {}
    needed |= POSTGRESQL if checked.serves and (config.online.store or "").startswith("postgres") else {}
    for name, least in needed.items():
        installed = version_of(name)
        if installed is None:
            yield fail(f"{name} is not installed", fix=_install(name))
        elif _numbers(installed) < _numbers(least):
            yield fail(f"{name} {installed} is too old: {least} is the oldest that works", fix=_install(name))
        else:
            seen.append(f"{name} {installed}")
    if config.backbone == "local" and config.rollout.engine == "vllm" and config.rollout.vllm.base_url is None:
        try:
            seen.append(f"vLLM {served_version(config.rollout.vllm)}")
        except MissingDependency as error:
            yield fail(str(error), fix=VLLM)
    if config.backbone == "trinity":
        yield from _trinity(checked)
    if config.backbone == "verl":
        yield from _verl(checked)
    file = source_of(config.rollout.agentscope_learn_protocol or "")
    if file is not None and "agentscope" in imported_by(file):
        installed = version_of("agentscope")
        if installed is None:
            yield fail("the workflow imports agentscope, which is not installed", where=str(file), fix=AGENTSCOPE)
        elif installed.partition(".")[0] not in ("1", "2"):
            yield warn(f"agentscope {installed}: ASTune is made for 1.x and 2.x", where=str(file), fix=AGENTSCOPE)
        else:
            seen.append(f"agentscope {installed}")
    yield ok(", ".join(seen))


def _trinity(checked: CheckedConfig) -> Iterator[Finding]:
    """Trinity's own check of versions, which a run makes first."""
    assert checked.loaded is not None
    tinker = wants_tinker(checked.loaded)
    try:
        require_trinity(tinker=tinker, verl=not tinker)
    except MissingDependency as error:
        yield _missing(error, "external/trinity/README.md")


def _verl(checked: CheckedConfig) -> Iterator[Finding]:
    assert checked.loaded is not None
    try:
        require_verl(settings_of(checked.loaded).tree["actor_rollout_ref"]["rollout"]["name"])
    except MissingDependency as error:
        yield _missing(error, "external/verl/README.md")


def _missing(error: MissingDependency, page: str) -> Finding:
    told, _, _ = str(error).partition("\nTo install")
    problems = [line.strip().removeprefix("- ") for line in told.splitlines()[1:]]
    return fail("; ".join(problems), fix=f"install as {page} says")


AGENTSCOPE = 'pip install "astune[agentscope2]" (for agents written for AgentScope 1.x: "astune[agentscope1]")'


VLLM = "python -m venv vllm-env; vllm-env/bin/pip install vllm; and astune.rollout.vllm.python: vllm-env/bin/python"


def how_to_install(message: str) -> str:
    """The command, if a message says that a package is missing; else ""."""
    if version_of("agentscope") and (hint := agentscope_hint(message)):
        return hint.removeprefix("; ")
    found = re.search(r"No module named '(\w+)", message)
    if found is None:
        return ""
    return AGENTSCOPE if found[1] == "agentscope" else _install(found[1])


def _install(name: str) -> str:
    return f'pip install "astune[{EXTRAS[name]}]"' if name in EXTRAS else f"pip install {name}"


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: `2.13.0+cpu` is (2, 13, 0)."""
    return tuple(int(number) for number in re.findall(r"\d+", re.split(r"[^\d.]", version)[0]))
