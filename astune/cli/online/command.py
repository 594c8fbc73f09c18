"""`astune online`: its words, the role `serve`, and all roles at once."""

from __future__ import annotations

import argparse
import logging

from astune.cli.endings import DONE
from astune.cli.online import backup, compare, held, release, stored, train, ui, versions
from astune.cli.suggesting_parser import Commands, add_conf, add_overrides
from astune.errors import explain_missing
from astune.support.chinese import localize
from astune.support.run_log import file_logger, open_log
from astune.support.visible import log_as_server, tell

log = file_logger(__name__)

EXAMPLES = """\
  {program} online --conf service.yaml                    serve and train; Ctrl-C stops both
  {program} online serve --conf service.yaml astune.online.serve.port=0
  {program} online train --conf service.yaml              on this machine or another, over the same store
  {program} online release --conf service.yaml            test new versions on a share of the users
  {program} online status --conf service.yaml             versions, commits, what is rated and waits
  {program} online commit --conf service.yaml             train on what was rated so far
  {program} online trace chatcmpl-5e1f_0 --conf service.yaml
  {program} online held --conf service.yaml               feedback that somebody must look at
  {program} online versions --conf service.yaml           which there are, and which answers
  {program} online versions rollback v7 --forget --conf service.yaml

  then, from any OpenAI client:
  curl localhost:8010/v1/chat/completions -d '{{"messages": [{{"role": "user", "content": "Hi"}}]}}'
  curl localhost:8010/feedback -d '{{"msg_ids": ["chatcmpl-..."], "thumb": "up"}}'"""


def add_online(commands: Commands) -> None:
    command = commands.add_parser(
        "online", help="serve a deployed agent, and train from what its users say", examples=EXAMPLES
    )
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION", default="both")
    all_roles = actions.add_parser("both", help="serve, train and release (the default: the word may be left out)")
    all_roles.set_defaults(execute=both)
    one_role = actions.add_parser("serve", help="answer as the newest version, write everything down, take feedback")
    one_role.set_defaults(execute=serve)
    for each in (all_roles, one_role):
        add_conf(each, "the service's configuration")
        add_overrides(each)
    for module in (train, release, stored, held, versions, compare, backup, ui):
        module.add_actions(actions)


def serve(known: argparse.Namespace) -> int:
    """Serves until SIGTERM or Ctrl-C."""
    with explain_missing("the service", "'astune[local,online]'"):
        from astune.config.load import load_config
        from astune.online.place import online_folder
        from astune.online.service.models import load_served_model
        from astune.online.service.serving import banner
        from astune.online.service.serving import serve as serve_online
    config = load_config(known.conf, known.overrides, for_run=False).config
    log_as_server(known.log_level)
    open_log(online_folder(config), as_json=config.astune.monitor.log_json, role="serve")
    model = load_served_model(config)

    def ready(url: str) -> None:
        lines = "\n".join(banner(config, model, url))
        tell(localize(lines), flush=True)
        log.info("%s", lines)

    try:
        serve_online(config, model, ready)
    except KeyboardInterrupt:
        tell(localize("stopped; all that was answered is in the store"))
    return DONE


def both(known: argparse.Namespace) -> int:
    """Serve, train and, by the strategy `staged`, release, each in a process of its own. Raises ConfigError, before any
    starts, for what one refuses."""
    from astune.config.load import load_config
    from astune.online.place import online_folder
    from astune.online.roles import run_roles
    from astune.online.service.access import read_tokens
    from astune.online.training.check import check_online

    loaded = load_config(known.conf, known.overrides, for_run=False)
    check_online(loaded)
    read_tokens(loaded.config.astune.online.serve)
    open_log(online_folder(loaded.config), as_json=loaded.config.astune.monitor.log_json)
    level = [] if known.log_level is None else ["--log-level", logging.getLevelName(known.log_level)]
    roles = ["serve", "train"]
    if loaded.config.astune.online.release.strategy == "staged":
        roles.append("release")
    return run_roles([["online", role, "--conf", str(known.conf), *known.overrides, *level] for role in roles])
