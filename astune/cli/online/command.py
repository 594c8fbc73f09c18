"""`astune online`: its words, and the roles `serve` and both at once."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from astune.cli.exit_codes import DONE
from astune.cli.online import held, stored, train
from astune.errors import MissingDependency
from astune.support.visible import log_as_server, tell

BOTH = "both"
"""What `astune online` does without a word."""
_OTHERS = (train, stored, held)
ACTIONS = (BOTH, "serve", *(action for module in _OTHERS for action in module.ACTIONS))
EXAMPLES = """\
  {program} online --conf service.yaml                    serve and train; Ctrl-C stops both
  {program} online serve --conf service.yaml astune.online.serve.port=0
  {program} online train --conf service.yaml              on this machine or another, over the same store
  {program} online status --conf service.yaml             versions, commits, what is rated and waits
  {program} online commit --conf service.yaml             train on what was rated so far
  {program} online trace chatcmpl-5e1f_0 --conf service.yaml
  {program} online held --conf service.yaml               feedback that somebody must look at

  then, from any OpenAI client:
  curl localhost:8010/v1/chat/completions -d '{{"messages": [{{"role": "user", "content": "Hi"}}]}}'
  curl localhost:8010/feedback -d '{{"msg_ids": ["chatcmpl-..."], "thumb": "up"}}'"""


def add_online(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    both = actions.add_parser(BOTH, help="serve and train (the default: the word may be left out)")
    serve = actions.add_parser("serve", help="answer as the newest version, write everything down, take feedback")
    for each in (both, serve):
        each.add_argument("--conf", type=Path, required=True, metavar="X.yaml", help="the service's configuration")
        each.add_argument("overrides", nargs="*", metavar="key=value", help="replaces a value")
    for module in _OTHERS:
        module.add_parser(actions)


def chosen(known: argparse.Namespace) -> Callable[[], int]:
    """The command that was asked for."""
    for module in _OTHERS:
        if known.action in module.ACTIONS:
            command: Callable[[], int] = module.chosen(known)
            return command
    return partial(serve if known.action == "serve" else both, known.conf, known.overrides)


def serve(conf: Path, overrides: list[str]) -> int:
    """Serves until SIGTERM or Ctrl-C."""
    try:
        from astune.config.load import load_config
        from astune.online.service.models import served_model
        from astune.online.service.serving import banner
        from astune.online.service.serving import serve as serve_online
    except ModuleNotFoundError as error:
        raise MissingDependency(f"the service needs {error.name!r}: pip install 'astune[local,online]'") from error
    config = load_config(conf, overrides, for_run=False).config
    log_as_server()
    model = served_model(config)

    def ready(url: str) -> None:
        tell("\n".join(banner(config, model, url)), flush=True)

    try:
        serve_online(config, model, ready)
    except KeyboardInterrupt:
        tell("stopped; all that was answered is in the store")
    return DONE


def both(conf: Path, overrides: list[str]) -> int:
    """Serve and train, each in a process of its own. Raises ConfigError, before any starts, for what one refuses."""
    from astune.config.load import load_config
    from astune.online.roles import run_roles
    from astune.online.service.doors import read_tokens
    from astune.online.training.check import check_online

    loaded = load_config(conf, overrides, for_run=False)
    check_online(loaded)
    read_tokens(loaded.config.astune.online.serve)
    return run_roles([["online", role, "--conf", str(conf), *overrides] for role in ("serve", "train")])
