"""`astune.tools`: servers of tools that speak MCP, and what a failed call means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from astune.config.section import Located, Section
from astune.types import ToolCause

Effect = Literal["nothing", "no_credit", "end"]
SHARED = "shared"


class ToolServerConfig(Section):
    """A server that is started (`command`), or one that runs (`url`)."""

    command: tuple[str, ...] = Field(
        (), description="the server to start and talk to by its input and output, as [python, server.py]"
    )
    folder: Annotated[str | None, Located("file")] = Field(
        None, description="where the command runs; relative to the file that names it; null: the working directory"
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="variables of the command; it has no others but PATH, HOME and their like"
    )
    pass_env: tuple[str, ...] = Field((), description="names of variables that the command gets from the run's own")
    url: Annotated[str, Field(pattern=r"^https?://.+")] | None = Field(
        None, description="instead of a command: the address of a server that runs, as http://127.0.0.1:8000/mcp"
    )
    transport: Literal["http", "sse"] = Field("http", description="of the url: streamable HTTP, or SSE, its older way")
    token_env: str | None = Field(
        None, description="environment variable that holds the bearer token for the url; null: none needed"
    )
    isolation: Literal["shared", "task", "episode"] = Field(
        "shared",
        description="shared: one for all episodes; task: one for the attempts at a task; episode: one for each. Of a "
        "url it is a session that is had alone",
    )
    warm: NonNegativeInt = Field(0, description="servers or sessions that are kept ready for the next task or episode")
    most: PositiveInt = Field(
        64, description="most servers or sessions at a time, in each process that plays episodes; others wait"
    )
    reset: str | None = Field(
        None,
        description="the server's tool that undoes what an episode did, so that the next one can have it; agents do "
        "not see it; null: a used server is closed, and a new one started",
    )
    reset_with: dict[str, str] = Field(
        default_factory=dict,
        description="arguments of the reset tool, each with the column of the task that it is; called for new servers, "
        "too",
    )
    allow: tuple[str, ...] = Field((), description="the server's tools that agents get; empty: all")
    deny: tuple[str, ...] = Field((), description="the server's tools that they do not get")
    rename: dict[str, str] = Field(default_factory=dict, description="names for agents, by those that the server has")
    time_limit: PositiveFloat = Field(30.0, description="seconds that a call may take")
    start_limit: PositiveFloat = Field(60.0, description="seconds that a start may take")
    retries: NonNegativeInt = Field(
        1,
        description="attempts after one that broke or took too long; only where the tool says that it is read-only or "
        "idempotent",
    )
    longest_result: PositiveInt = Field(20000, description="characters of a result")
    on_longer: Literal["cut", "refuse"] = Field(
        "cut", description="what becomes of a longer one: its end is cut off, or the agent is told how long it is"
    )

    @field_validator("rename")
    @classmethod
    def _models_take_it(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value.values():
            if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name):
                raise ValueError(f"names of up to 64 letters, digits, _ and -, not {name!r}")
        return value

    @model_validator(mode="before")
    @classmethod
    def _is_one_server(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            if isinstance(value, cls):
                return value
            raise ValueError("a section with a command or a url")
        if set(value) <= set(cls.model_fields) and bool(value.get("command")) == bool(value.get("url")):
            raise ValueError("either a command or a url")
        return value

    @model_validator(mode="after")
    def _reads_what_it_has(self) -> ToolServerConfig:
        kind, others = ("url", ("folder", "env", "pass_env")) if self.url else ("command", ("transport", "token_env"))
        if unread := self._find_changed(others):
            raise ValueError(f"no {unread[0]}, which does not go with a {kind}")
        if self.isolation == SHARED and (unread := self._find_changed(("reset", "warm"))):
            raise ValueError(f"no {unread[0]}, as all episodes share the server; or isolation: episode")
        if self.warm > self.most:
            raise ValueError(f"warm of at most {self.most}, which is most, not {self.warm}")
        if self.reset_with and self.reset is None:
            raise ValueError("reset, the tool that reset_with has arguments for")
        return self

    def _find_changed(self, names: tuple[str, ...]) -> list[str]:
        fields = type(self).model_fields
        return [name for name in names if getattr(self, name) != fields[name].get_default(call_default_factory=True)]


class ToolFailuresConfig(Section):
    """The effect of a cause: none; `no_credit`, that the turn with the call earns no advantage above 0; `end`, that the
    episode ends as an error and is not trained."""

    said_no: Effect = Field("nothing", description="the tool answers that it cannot")
    malformed: Effect = Field("nothing", description="no call can be read, or arguments are not what the tool takes")
    unknown: Effect = Field("nothing", description="a tool that was not offered")
    repeated: Effect = Field("nothing", description="a call that the agent has made before, with the same arguments")
    time_limit: Effect = Field("nothing", description="no answer within time_limit")
    cut_short: Effect = Field("nothing", description="a result longer than longest_result")
    broke: Effect = Field("end", description="the tool's server died, or could not be reached")
    sandbox: Effect = Field("end", description="the sandbox of the episode broke")

    def causes(self, effect: Effect) -> frozenset[ToolCause]:
        """The causes that have the effect."""
        return frozenset(cast("ToolCause", name) for name in type(self).model_fields if getattr(self, name) == effect)


class ToolsConfig(Section):
    servers: dict[str, ToolServerConfig] = Field(
        default_factory=dict,
        description="MCP servers of which each episode has the tools (`tuner.tools`), by name: {command, ...} or "
        "{url, ...}",
    )
    on_failure: ToolFailuresConfig = Field(
        default_factory=ToolFailuresConfig,
        description="what a failed call does to its episode, by cause: nothing, no_credit (the turn earns no advantage "
        "above 0) or end (an error, which is not trained)",
    )
