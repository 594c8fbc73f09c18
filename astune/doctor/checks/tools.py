"""Do the MCP servers of the configuration start, and answer?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from astune.doctor.checked_config import CheckedConfig
from astune.doctor.findings import Finding, fail, ok, skip, warn
from astune.tools import ToolServers
from astune.tools.check import ToolFinding, check_servers


def check_tools(checked: CheckedConfig) -> Iterator[Finding]:
    config = checked.config.tools
    all_there = True
    if checked.offline and any(server.url for server in config.servers.values()):
        all_there = False
        yield skip("servers of tools that are reached by an address: this is --offline")
        config = config.model_copy(update={"servers": {n: s for n, s in config.servers.items() if s.url is None}})

    async def look() -> list[ToolFinding]:
        return [finding async for finding in check_servers(config)]

    findings = asyncio.run(look())
    if all_there and not any(finding.level == "fault" for finding in findings):
        once = {name: server.model_copy(update={"warm": 0}) for name, server in config.servers.items()}
        checked.servers = ToolServers(config.model_copy(update={"servers": once}))
    for finding in findings:
        text = f"{finding.server}: {finding.text}" if finding.server else finding.text
        where = checked.where("astune.tools.servers")
        if finding.level == "ok":
            yield ok(text)
        else:
            yield (fail if finding.level == "fault" else warn)(text, where=where, fix=finding.fix)
