"""`astune tools`: lists the tools of a configuration's MCP servers, calls one, and checks the servers."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from astune.cli.suggesting_parser import Commands, add_conf, add_overrides
from astune.errors import ConfigError
from astune.support.visible import tell

if TYPE_CHECKING:
    from astune.config.tools import ToolsConfig

EXAMPLES = """\
  {program} tools list --conf my_agent.yaml                       what agents are offered
  {program} tools call --conf my_agent.yaml search words=tea      call one, and see what the model would see
  {program} tools check --conf my_agent.yaml                      start each server, call what is read-only"""


def add_tools(commands: Commands) -> None:
    command = commands.add_parser("tools", help="look at the tools of MCP servers, and call them", examples=EXAMPLES)
    command.set_defaults(execute=_execute)
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="the tools that agents are offered, by server")
    call = actions.add_parser("call", help="call a tool; exits with 1 if that fails")
    check = actions.add_parser("check", help="start each server and say what is wrong; exits with 1 if something is")
    for action in (listing, call, check):
        add_conf(action)
    call.add_argument("tool", metavar="TOOL", help="as `astune tools list` has it")
    call.add_argument(
        "overrides",
        nargs="*",
        metavar="ARGUMENT=VALUE",
        help="of the tool, the value as in YAML; those that begin with astune. are keys of the configuration",
    )
    for action in (listing, check):
        add_overrides(action)


def _execute(known: argparse.Namespace) -> int:
    from astune.config.load import load_config

    keys = [each for each in known.overrides if known.action != "call" or each.startswith("astune.")]
    config = load_config(known.conf, keys, for_run=False).config.astune.tools
    if not config.servers:
        raise ConfigError(f"{known.conf}: astune.tools.servers: not set; name a server: {{notes: {{command: [...]}}}}")
    if known.action == "list":
        return asyncio.run(_list(config))
    if known.action == "check":
        return asyncio.run(_check(config))
    return asyncio.run(_call(config, known.tool, [each for each in known.overrides if each not in keys]))


async def _list(config: ToolsConfig) -> int:
    from astune.tools import ToolServers

    async with ToolServers(config) as servers:
        tools = list(servers.tools.values())
    width = max((len(tool.name) for tool in tools), default=0)
    for name in servers.config.servers:
        tell(name)
        for tool in tools:
            if tool.server == name:
                hints = " (read-only)" if tool.read_only else " (idempotent)" if tool.repeatable else ""
                described = str(tool.definition["function"]["description"]).strip().partition("\n")[0]
                tell(f"  {tool.name:{width}}  {described}{hints}")
    return 0


async def _call(config: ToolsConfig, name: str, arguments: list[str]) -> int:
    from astune.cli.env import parse_options
    from astune.tools import ToolServers
    from astune.types import Task

    given = parse_options(arguments, "argument ")
    async with ToolServers(config) as servers:
        taken = await servers.take(Task("call", ""))
        result = await taken.call(name, given)
        taken.give_back()
    tell(result.text)
    if result.cause is not None:
        tell(f"failed: {result.cause}{f': {result.detail}' if result.detail else ''}", file=sys.stderr)
    return 0 if result.cause is None else 1


async def _check(config: ToolsConfig) -> int:
    from astune.tools.check import check_servers

    faults = 0
    async for finding in check_servers(config):
        fix = f"; {finding.fix}" if finding.fix else ""
        tell(f"{finding.level:5}  {finding.server}: {finding.text}{fix}")
        faults += finding.level == "fault"
    return 1 if faults else 0
