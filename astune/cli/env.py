"""`astune env`: serves environments over HTTP, lists those that ship, and checks one's class."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

from astune.cli.suggesting_parser import Commands
from astune.errors import ConfigError
from astune.support.visible import log_as_server, tell

EXAMPLES = """\
  {program} env list                                       what ships
  {program} env serve --env gymnasium:FrozenLake-v1
  {program} env serve --env gymnasium:FrozenLake-v1 --option is_slippery=false --port 0
  {program} env serve --env countdown --env apps --max-instances 256 --ttl 600
  ENV_TOKEN=secret {program} env serve --env my_shop.py:Shop --host 0.0.0.0 --token-variable ENV_TOKEN
  {program} env check my_shop.py:Shop --option customers=3"""


def add_env(commands: Commands) -> None:
    command = commands.add_parser("env", help="serve environments that agents act in", examples=EXAMPLES)
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    serve = actions.add_parser("serve", help="serve environments over HTTP until Ctrl-C")
    serve.set_defaults(execute=_serve)
    serve.add_argument(
        "--env",
        action="append",
        dest="specs",
        required=True,
        metavar="SPEC",
        help="which, as `astune env list` has them, or your own class as my_file.py:MyClass; may be repeated",
    )
    serve.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, which only this machine reaches")
    serve.add_argument("--port", type=int, default=8080, help="default: 8080; 0 takes a free one")
    serve.add_argument(
        "--max-instances", type=int, default=512, metavar="N", help="alive at the same time; default: 512"
    )
    serve.add_argument(
        "--ttl", type=float, default=1800.0, metavar="S", help="seconds that an instance may lie unused; default: 1800"
    )
    serve.add_argument("--token-variable", metavar="NAME", help="environment variable with the token to ask for")
    serve.add_argument(
        "--workers", type=int, default=32, metavar="N", help="calls worked on at the same time; default: 32"
    )
    actions.add_parser("list", help="the environments that ship").set_defaults(execute=_list_built_in)
    check = actions.add_parser("check", help="play an environment's class and say what breaks the contract")
    check.set_defaults(execute=_check)
    check.add_argument("spec", metavar="SPEC", help="as my_file.py:MyClass")
    check.add_argument("--split", default="train", help="whose tasks are played; default: train")
    check.add_argument("--seed", type=int, default=0, metavar="N", help="another one plays other actions")
    for action in (serve, check):
        action.add_argument(
            "--option",
            action="append",
            dest="options",
            default=[],
            metavar="KEY=VALUE",
            help="of the environment, the value as in YAML; may be repeated",
        )


def _serve(known: argparse.Namespace) -> int:
    """Serves until Ctrl-C, SIGTERM or SIGHUP. Prints one line when it is ready; what else is printed goes to standard
    error."""
    from astune.environment.registry import load_environment
    from astune.environment.server import make_app, run_server, token_for

    if known.options and len(known.specs) > 1:
        raise ConfigError("--option: with one --env only; of several it is not clear which it is for")
    limits = {"max_instances": known.max_instances, "ttl": known.ttl, "workers": known.workers}
    for name, value in limits.items():
        if value <= 0:
            raise ConfigError(f"--{name.replace('_', '-')} {value:g}: expected a number above 0")
    given = _token(known.token_variable)
    log_as_server(known.log_level)
    out = sys.stdout
    with redirect_stdout(sys.stderr):  # so that the environments' own output does not stand among the lines
        environments = [load_environment(spec, parse_options(known.options)) for spec in known.specs]
        token = token_for(environments, given)
        app = make_app(environments, token=token, **limits)
        if token is None and known.host not in ("127.0.0.1", "::1", "localhost"):
            reach = f"{known.host}:{known.port}"
            tell(f"who can reach {reach} can use the service; --token-variable asks for a token", flush=True)

        def ready(url: str) -> None:
            tell(f"serving {', '.join(known.specs)} on {url}", file=out, flush=True)
            if token != given:
                tell(f"it executes code, so it asks for a token. For the run: export ENV_TOKEN={token}", flush=True)
                tell("and astune.task_reader.env_service.token_variable=ENV_TOKEN", flush=True)

        try:
            run_server(app, known.host, known.port, ready)
        except KeyboardInterrupt:
            tell("stopped", file=out)
    return 0


def _list_built_in(known: argparse.Namespace) -> int:
    from astune.environment.registry import BUILT_IN, spec_of

    rows = [
        (spec_of(name), each.meaning if each.installed else f"{each.meaning}; needs {each.install}")
        for name, each in BUILT_IN.items()
    ]
    width = max(len(spec) for spec, _ in rows)
    for spec, meaning in rows:
        tell(f"{spec:{width}}  {meaning}")
    tell(f"{'my_file.py:MyClass':{width}}  your own, derived from astune.environment.Environment")
    return 0


def _check(known: argparse.Namespace) -> int:
    """Prints what holds and what does not; 1 if something must be fixed."""
    from astune.environment.check import check_environment
    from astune.environment.registry import load_environment

    faults = 0
    with redirect_stdout(sys.stderr):
        environment = load_environment(known.spec, parse_options(known.options))
    try:
        for finding in check_environment(environment, known.split, known.seed):
            tell(f"{finding.level:5}  {finding.text}")
            faults += finding.level == "fault"
    finally:
        environment.close()
    tell(f"{known.spec}: {faults or 'no'} fault{'s' * (faults != 1)}")
    return 1 if faults else 0


def parse_options(options: Sequence[str], what: str = "--option ") -> Mapping[str, Any]:
    """`key=value` pairs, the values read as in a configuration: `size=8`, `slippery=false`, `names=[a, b]`. Errors
    call a pair `what`."""
    import yaml

    from astune.config.source import Loader

    parsed = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"{what}{option!r}: expected key=value")
        if key in parsed:
            raise ConfigError(f"{what}{key} is given twice")
        try:
            parsed[key] = yaml.load(value, Loader)
        except yaml.YAMLError as error:
            raise ConfigError(f"{what}{option!r}: the value is no YAML: {error}") from error
    return parsed


def _token(variable: str | None) -> str | None:
    if variable is None:
        return None
    token = os.environ.get(variable)
    if not token:
        raise ConfigError(f"--token-variable {variable}: the environment variable is not set")
    return token
