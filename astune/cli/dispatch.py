"""From arguments to the command that they name. Imports nothing but argparse until a command is chosen."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from astune.cli.arguments import make_parser
from astune.cli.online import command as online

DEBUG_OPTIONS = ("tasks", "index", "split", "num_tasks", "num_repeat", "filter", "step", "commands", "with_update")
"""Options of the command line that are keys of `astune.debug`."""

RUBRICS_ACTIONS = ("learn", "show", "check", "diff")


def parse(arguments: Sequence[str], program: str) -> Callable[[], int]:
    """The command to run. Exits with 2 where the arguments make no sense, with 0 after --help and --version."""
    parser = make_parser(program)
    if not arguments:
        parser.print_help()
        parser.exit(2)
    known, rest = parser.parse_known_args(_with_command(arguments))
    for extra in rest:
        if "overrides" not in known and "files" not in known:
            parser.error(f"unexpected argument {extra!r}")
    if getattr(known, "allow_changes", False) and not known.resume:
        parser.error("--allow-changes: it says what to do with changed options at --resume, which is not given")
    if "overrides" in known:  # argparse leaves those that stand after an option in `rest`
        known.overrides += rest
    elif "files" in known:
        known.files += rest
    return _command(known, f"{program} {shlex.join(arguments)}")


def _with_command(arguments: Sequence[str]) -> Sequence[str]:
    """`arguments` with the command that may be left out: `run`, `learn` after `rubrics`, and `both` after `online`."""
    first = arguments[0]
    if (first.startswith("-") and first not in ("-h", "--help", "--version")) or "=" in first:
        return ["run", *arguments]
    if first == "rubrics" and not {*RUBRICS_ACTIONS, "-h", "--help"} & {*arguments[1:2]}:
        return ["rubrics", "learn", *arguments[1:]]
    if first == "online" and not {*online.ACTIONS, "-h", "--help"} & {*arguments[1:2]}:
        return ["online", online.BOTH, *arguments[1:]]
    return arguments


def _command(known: argparse.Namespace, command_line: str) -> Callable[[], int]:
    if known.command in ("view", "doctor", "check-tasks", "tasks"):
        return _looking(known)
    if known.command in ("replay", "rescore", "diff"):
        return _recorded(known)
    if known.command == "judge-report":
        return _judge_report(known)
    if known.command == "eval":
        return _eval(known)
    if known.command == "rubrics":
        return _rubrics(known)
    if known.command == "env":
        return _env(known)
    if known.command == "online":
        return online.chosen(known)
    if known.command == "export":
        from astune.cli.export import export

        return partial(export, known.run, known.checkpoint, known.out, known.merged, known.dtype)
    if known.command == "tinker-server":
        from astune.cli.tinker_server import tinker_server

        place = (known.host, known.port, known.dir)
        return partial(tinker_server, known.model, *place, known.device, known.dtype, known.slots)
    from astune.cli import config, run

    if known.command in ("run", "demo"):
        conf = known.conf if known.command == "run" else run.demo_config()
        options = _debug_options(known)
        if known.allow_changes:
            options["astune.allow_changes"] = True
        return partial(run.run, conf, known.overrides, known.backbone, known.resume, options, command_line)
    if known.command == "report":
        return partial(run.report, known.run_dir)
    if known.action in ("show", "convert"):
        action = config.show if known.action == "show" else config.convert
        return partial(action, known.conf, known.overrides, known.backbone)
    return config.defaults


def _looking(known: argparse.Namespace) -> Callable[[], int]:
    if known.command == "view":
        from astune.cli.view import view

        return partial(view, known.run_dir, known.out, known.serve, known.port, known.open)
    if known.command == "check-tasks":
        from astune.cli.check_tasks import check_tasks

        return partial(check_tasks, known.conf, known.overrides, known.split, known.limit, known.json)
    if known.command == "tasks":
        from astune.cli.tasks import preview

        return partial(preview, known.conf, known.overrides, known.show, known.json)
    from astune.cli.doctor import doctor

    return partial(doctor, known.conf, known.overrides, known.backbone, known.json, known.offline)


def _judge_report(known: argparse.Namespace) -> Callable[[], int]:
    from astune.cli.judges.report import judge_report

    return partial(
        judge_report,
        known.conf,
        known.overrides,
        known.examples,
        known.judges,
        response_field=known.response_field,
        label_field=known.label_field,
        pass_label=known.pass_label,
        pass_reward=known.pass_reward,
        out=known.out,
        as_json=known.json,
    )


def _eval(known: argparse.Namespace) -> Callable[[], int]:
    from astune.cli.eval import compare_folders, evaluate

    if known.compare is not None:
        unused = [name for name in ("conf", "backbone", "engine", "limit", "out") if getattr(known, name) is not None]
        return partial(compare_folders, known.compare, known.json, [*unused, *known.overrides])
    checkpoints = [text for text in known.checkpoints if "=" not in text]
    overrides = [*(text for text in known.checkpoints if "=" in text), *known.overrides]
    place = (known.backbone, known.engine)
    return partial(evaluate, known.conf, overrides, checkpoints, *place, known.limit, known.out, known.json)


def _recorded(known: argparse.Namespace) -> Callable[[], int]:
    from astune.cli import episodes

    if known.command == "diff":
        return partial(episodes.diff, known.first, known.second)
    files = [Path(text) for text in known.files if "=" not in text]
    overrides = [text for text in known.files if "=" in text]
    if known.command == "replay":
        return partial(episodes.replay, files, known.conf, overrides, _debug_options(known))
    return partial(episodes.rescore, files, known.judge, known.conf, overrides, known.filter, known.out)


def _rubrics(known: argparse.Namespace) -> Callable[[], int]:
    from astune.cli.judges import rubrics

    if known.action == "learn":
        return partial(rubrics.learn, known.conf, known.overrides, known.keep_edited)
    if known.action == "show":
        return partial(rubrics.show, known.file)
    if known.action == "check":
        return partial(rubrics.check, known.file, known.conf, known.examples, known.overrides)
    return partial(rubrics.diff, known.first, known.second)


def _env(known: argparse.Namespace) -> Callable[[], int]:
    from astune.cli import env

    if known.action == "list":
        return env.list_built_in
    if known.action == "check":
        return partial(env.check, known.spec, known.options, known.split, known.seed)
    return partial(
        env.serve,
        known.specs,
        known.options,
        known.host,
        known.port,
        max_instances=known.max_instances,
        ttl=known.ttl,
        token_variable=known.token_variable,
        workers=known.workers,
    )


def _debug_options(known: argparse.Namespace) -> dict[str, object]:
    """The values by key that options of the debugger stand for, of those that were given."""
    given = {f"astune.debug.{name}": getattr(known, name, None) for name in DEBUG_OPTIONS}
    model = getattr(known, "model", None)
    if model is not None:
        debugs = model in ("human", "endpoints") or model.startswith(("scripted:", "replay:", "http://", "https://"))
        given["astune.debug.model" if debugs else "astune.model.path"] = model
    return {key: value for key, value in given.items() if value is not None}
