"""Does the configuration load, and does the chosen backbone act on every key in it?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from astune.backbone.base import check_keys, refuse_problems
from astune.backbone.verl.demand import Demand
from astune.backbone.verl.trainer.settings import settings_of
from astune.config.load import LoadedConfig, load_config
from astune.doctor.checked_config import CheckedConfig, is_service
from astune.doctor.checks.packages import how_to_install
from astune.doctor.findings import Finding, fail, ok
from astune.errors import ConfigError, PluginError
from astune.plugins import load_plugin

_PROBLEM = re.compile(r"(?P<where>(?:.*?: )?astune[\w.]*): (?P<what>.*)", re.DOTALL)
_FIXES = (
    (r"Did you mean '(.+?)'\?", "write {}"),
    (r"no such file|is a folder|is empty", "name a YAML file behind --conf"),
    (r"expected key=value", "write it as in astune.trainer.total_steps=10"),
    (r"; (?:expected|name) (.+?)(?:$| \()", "set it to {}"),
    (r"unknown key|has dots", "take the line out; `astune config defaults` lists every key and what it means"),
    (r"expected (.+), got", "give it {}"),
    (r"there are only (\d+)", "set it to {} or fewer"),
    (r"not set|neither", "set it; `astune config defaults` says what it means"),
    (r"does not support it", "take the key out, or choose another backbone with --backbone"),
    (r"leave no room", "lower it, or raise astune.model.max_model_len"),
    (r"stands twice", "keep one of the two lines"),
    (r"not valid YAML", "correct the line: indentation by spaces, a space after each colon"),
    (r"", "change the value; `astune config defaults` says what the key means"),
)


def check_config(checked: CheckedConfig) -> Iterator[Finding]:
    try:
        loaded = _load(checked)
    except ConfigError as error:
        yield from problems(error)
        return
    checked.loaded = loaded
    name = checked.config.backbone
    try:
        checked.backbone = load_plugin(name, kind="backbone", builtin=checked.backbones)()
    except PluginError as error:
        fix = how_to_install(str(error)) or f"choose one of {', '.join(checked.backbones)} with --backbone"
        yield fail(str(error), where=checked.where("astune.backbone"), fix=fix)
        return
    try:
        ignored = check_keys(checked.backbone, loaded)
        if checked.runs:
            refuse_problems(checked.backbone, loaded)
        if name == "verl" and checked.runs:
            demand = Demand.of(settings_of(loaded).tree)
            for problem in demand.problems():
                key, _, what = problem.partition(": ")
                yield fail(what, where=key, fix="make one of them a multiple of the other")
            yield ok("; ".join(" ".join(line.split()) for line in demand.table(checked.config)))
    except ConfigError as error:
        yield from problems(error)
        return
    unused = f"; it has no use for {', '.join(ignored)}" if ignored else ""
    yield ok(f"{len(loaded.set_by_user())} keys are set, backbone {name!r} knows them all{unused}")


def _load(checked: CheckedConfig) -> LoadedConfig:
    """Raises ConfigError for what a run would refuse; one of `astune online` may lack what only a run needs."""
    try:
        return load_config(checked.conf, checked.overrides, backbone=checked.chosen_backbone)
    except ConfigError:
        service = _service(checked)
        if service is None:
            raise
        return service


def _service(checked: CheckedConfig) -> LoadedConfig | None:
    try:
        loaded = load_config(checked.conf, checked.overrides, backbone=checked.chosen_backbone, for_run=False)
    except ConfigError:
        return None
    runs = loaded.config.astune.rollout.agentscope_learn_protocol is not None
    return loaded if is_service(loaded) and not runs else None


def problems(error: ConfigError) -> Iterator[Finding]:
    """Each line of it as a finding."""
    lines = str(error).splitlines()
    for line in lines[1:] if re.match(r"\d+ errors in", lines[0]) else lines:
        found = _PROBLEM.fullmatch(line.strip())
        what = found["what"] if found else line.strip()
        yield fail(what, where=found["where"] if found else "", fix=_fix_for(what))


def _fix_for(what: str) -> str:
    for pattern, fix in _FIXES:
        if found := re.search(pattern, what):
            return fix.format(*found.groups())
    raise AssertionError("the last pattern fits everything")
