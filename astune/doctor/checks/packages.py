"""Is what the run imports installed, in versions that fit?"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import metadata

from astune.backbone.foreign.packages import FLASH, numbers
from astune.backbone.vllm.settings import find_vllm_version
from astune.doctor.checked_config import CheckedConfig, Missing
from astune.doctor.findings import Finding, fail, ok, warn
from astune.errors import MissingDependency
from astune.plugins import agentscope_hint
from astune.support import machine_memory
from astune.support.user_code import imports_of, source_of

PYTHON = ((3, 10), (3, 14))
"""The first version that works and the first that was not tried."""
LOCAL = {"torch": "2.6", "transformers": "5.20", "safetensors": "0.5", "numpy": "1.26"}
"""Least versions of what `--backbone=local` needs; tests compare them with pyproject.toml."""
LORA = "0.21"
"""The least version of peft, likewise."""
ONLINE = {"alembic": "1.14", "sqlalchemy": "2.0.36"}
"""Least versions of what `astune online` needs besides, likewise."""
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
        if config.model.attention == FLASH and config.model.device == "auto" and not machine_memory.gpus():
            yield fail(
                "flash attention is for CUDA alone, and this machine shows no GPU",
                where=checked.loaded.where("astune.model.attention") if checked.loaded else "",
                fix="astune.model.attention: auto",
            )
    needed |= {"datasets": "4"} if config.task_reader.type == "huggingface" else {}
    needed |= ONLINE if checked.serves else {}
    needed |= POSTGRESQL if checked.serves and (config.online.store or "").startswith("postgres") else {}
    for name, least in needed.items():
        installed = version_of(name)
        if installed is None:
            yield fail(f"{name} is not installed", fix=_install(name))
        elif numbers(installed) < numbers(least):
            yield fail(f"{name} {installed} is too old: {least} is the oldest that works", fix=_install(name))
        else:
            seen.append(f"{name} {installed}")
    if config.backbone == "local" and config.rollout.engine == "vllm" and config.rollout.vllm.base_url is None:
        try:
            seen.append(f"vLLM {find_vllm_version(config.rollout.vllm)}")
        except MissingDependency as error:
            yield fail(str(error), fix=VLLM)
    yield from _check_backbone(checked)
    file = source_of(config.rollout.agentscope_learn_protocol or "")
    if file is not None and "agentscope" in imports_of(file):
        installed = version_of("agentscope")
        if installed is None:
            yield fail("the workflow imports agentscope, which is not installed", where=str(file), fix=AGENTSCOPE)
        elif installed.partition(".")[0] not in ("1", "2"):
            yield warn(f"agentscope {installed}: ASTune is made for 1.x and 2.x", where=str(file), fix=AGENTSCOPE)
        else:
            seen.append(f"agentscope {installed}")
    yield ok(", ".join(seen))


def _check_backbone(checked: CheckedConfig) -> Iterator[Finding]:
    try:
        if checked.loaded is not None:
            checked.backbone.require_packages(checked.loaded)
    except Missing:
        return  # a backbone that does not load is another check's matter
    except MissingDependency as error:
        yield _missing(error, f"external/{checked.config.backbone}/README.md")


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
