"""Does the configuration load, and does the chosen backbone act on every key in it?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from astune.backbone.base import check_keys
from astune.backbone.trinity.conversion.convert import convert
from astune.config.load import load_config
from astune.doctor.findings import Finding, fail, ok
from astune.doctor.packages import how_to_install
from astune.doctor.patient import Patient
from astune.errors import ConfigError, PluginError
from astune.plugins import load_plugin

_PROBLEM = re.compile(r"(?P<where>(?:.*?: )?astune[\w.]*): (?P<what>.*)", re.DOTALL)
_MENDS = (
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


def check_config(patient: Patient) -> Iterator[Finding]:
    try:
        loaded = load_config(patient.conf, patient.overrides, backbone=patient.chosen_backbone)
    except ConfigError as error:
        yield from _problems(error)
        return
    patient.loaded = loaded
    name = patient.config.backbone
    try:
        patient.backbone = load_plugin(name, kind="backbone", builtin=patient.backbones)()
    except PluginError as error:
        mend = how_to_install(str(error)) or f"choose one of {', '.join(patient.backbones)} with --backbone"
        yield fail(str(error), where=patient.where("astune.backbone"), mend=mend)
        return
    try:
        ignored = check_keys(patient.backbone, loaded)
        if name == "trinity":
            per_epoch = patient.config.trainer.tasks_per_step  # how many tasks there are is another check's matter
            convert(loaded, Path(patient.config.runs_dir), num_tasks=per_epoch)
    except ConfigError as error:
        yield from _problems(error)
        return
    unused = f"; it has no use for {', '.join(ignored)}" if ignored else ""
    yield ok(f"{len(loaded.set_by_user())} keys are set, backbone {name!r} knows them all{unused}")


def _problems(error: ConfigError) -> Iterator[Finding]:
    lines = str(error).splitlines()
    for line in lines[1:] if re.match(r"\d+ errors in", lines[0]) else lines:
        found = _PROBLEM.fullmatch(line.strip())
        what = found["what"] if found else line.strip()
        yield fail(what, where=found["where"] if found else "", mend=_mend(what))


def _mend(what: str) -> str:
    for pattern, mend in _MENDS:
        if found := re.search(pattern, what):
            return mend.format(*found.groups())
    raise AssertionError("the last pattern fits everything")
