"""The self-check of a machine, without a configuration: what is installed, what each use lacks, the line to type."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata

from packaging.requirements import Requirement

from astune.doctor.checks.packages import version_of
from astune.doctor.findings import Finding
from astune.support.machine_memory import GIB, gpus, of_the_machine
from astune.version import __version__

USES: Mapping[str, tuple[str, ...]] = {
    "local": ("local",),
    "lora": ("local", "lora"),
    "online": ("local", "online"),
    "trinity": ("trinity",),
    "verl": ("verl",),
}
"""The extras that each use of ASTune needs."""
TRAINS = ("local", "trinity", "verl")
AGENTSCOPE = {"1": "agentscope1"}
"""The extra of each line of AgentScope, by its first number; of all others `agentscope2`."""


def check_machine() -> list[Finding]:
    """Findings about this machine: ASTune and hardware, then each use as ready, not installed, or half installed.

    A use of which nothing is there is no fault (`skip`, with the line that installs it); one with a version that does
    not fit is a warning. It fails where nothing that trains is ready.
    """
    line = AGENTSCOPE.get((version_of("agentscope") or "").partition(".")[0], "agentscope2")
    uses = {"agentscope": (line,), **USES}
    found = [*_check_hardware(), *(_check_use(use, extras) for use, extras in uses.items())]
    if not any(finding.level == "ok" and finding.check in TRAINS for finding in found):
        fix = _install(("local", "agentscope2"))
        found.append(Finding("fail", "no backbone that trains is installed", fix=fix, check="training"))
    return found


def count_ready(findings: Sequence[Finding]) -> str:
    """
    >>> count_ready([Finding("ok", "torch 2.13", check="local"), Finding("skip", "not installed: verl", check="verl")])
    'ready: local; not installed: verl'
    """
    uses = [finding for finding in findings if finding.check in ("agentscope", *USES)]
    groups = {"ready": "ok", "does not fit": "warn", "not installed": "skip"}
    told = {word: [one.check for one in uses if one.level == level] for word, level in groups.items()}
    return "; ".join(f"{word}: {', '.join(names)}" for word, names in told.items() if names)


def _check_hardware() -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding("ok", f"ASTune {__version__}, Python {python}", check="version")
    memory = of_the_machine()
    cards = [f"{gpu.name} with {gpu.total / GIB:.0f} GiB" for gpu in gpus()]
    shown = ", ".join(cards) or "no GPU: the shipped model and small ones train on the CPU"
    has = f"{os.cpu_count()} cores, {memory.total / GIB:.0f} GiB of memory ({memory.free / GIB:.0f} free), {shown}"
    yield Finding("ok", has, check="machine")


def _check_use(use: str, extras: Sequence[str]) -> Finding:
    """Compare what the extras ask for with what is installed."""
    wanted = [requirement for extra in extras for requirement in _requirements(extra)]
    if not wanted:
        return Finding("skip", f"not for Python {sys.version_info.major}.{sys.version_info.minor}", check=use)
    there, missing, wrong = [], [], []
    for requirement in wanted:
        version = version_of(requirement.name)
        if version is None:
            missing.append(requirement.name)
        elif requirement.specifier.contains(version, prereleases=True):
            there.append(f"{requirement.name} {version}")
        else:
            wrong.append(f"{requirement.name} {version}, {requirement.specifier} is needed")
    if wrong and not missing:
        return Finding("warn", "; ".join(wrong), fix=_install(extras), check=use)
    if missing or wrong:
        lacks = "; ".join([*([f"not installed: {', '.join(missing)}"] if missing else []), *wrong])
        return Finding("skip", lacks, fix=_install(extras), check=use)
    return Finding("ok", ", ".join(there), check=use)


def _requirements(extra: str) -> Iterator[Requirement]:
    """Requirements that the installed ASTune has under the name of an extra, on this Python."""
    for line in metadata.requires("astune") or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            yield requirement


def _install(extras: Sequence[str]) -> str:
    return f'pip install "astune[{",".join(extras)}]"'
