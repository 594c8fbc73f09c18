"""Named texts: what an agent is told, under a name, so that `astune prompt` can search for better words.

    system = tuner.prompt("system", default="You are a cashier.")                   # in a workflow
    system = tuner.prompt("system", default="You serve in {city}.", city="Rome")    # with something to fill in
    async def solve(task, model, system_prompt="You are a cashier."): ...           # as a parameter
    astune.prompts.files: {system: prompts/system.md}                               # the first text, in a file

A tool's description is called `tool:NAME`, whichever framework has the tool, and a skill of AgentScope 2.x, as its
viewer shows it, `skill:NAME`. What a search has found stands in one YAML, which `astune.prompts.from` gives to agents
in a run, and code in production reads by itself:

    system = astune.load_prompts("prompts.yaml")["system"]
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from astune.config.prompts import PromptsConfig
from astune.config.source import read_yaml
from astune.context_tracker.tracker import ChatRequest
from astune.errors import ConfigError, WorkflowError, nearest

PROMPTS_FILE = "prompts.yaml"
TOOL, SKILL = "tool:", "skill:"
PARAMETER = "system_prompt"
"""The parameter of a workflow that is a text of that name."""
PLACEHOLDER = re.compile(r"(?<![\\\w{}$])\{([A-Za-z_]\w*)\}(?!\})")
"""`{city}`, and not `{{city}}`, `\\frac{a}{b}` or JSON."""


def load_prompts(path: str | PathLike[str]) -> dict[str, str]:
    """The texts of a `prompts.yaml`, or of the folder of the search that wrote it, by name.

    Raises `ConfigError` that names the file and what is wrong with it.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / PROMPTS_FILE
    if not file.is_file():
        raise ConfigError(f"{file}: no such file; expected what `astune prompt` writes, or the folder of its run")
    texts = read_yaml(file).values.get("prompts")
    if not isinstance(texts, dict) or not texts or not all(isinstance(text, str) for text in texts.values()):
        raise ConfigError(f"{file}: prompts: expected a section of texts by name, as {{prompts: {{system: You are}}}}")
    return {str(name): text for name, text in texts.items()}


def texts_of(config: PromptsConfig) -> dict[str, str]:
    """The texts that a configuration gives: its own, those of its files, and over them those that a search has found.
    Raises ConfigError."""
    texts = dict(config.texts)
    for name in texts.keys() & config.files.keys():
        raise ConfigError(f"astune.prompts.files.{name}: astune.prompts.texts has that name too; take one of them out")
    for name, path in config.files.items():
        try:
            texts[name] = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"astune.prompts.files.{name}: {path} cannot be read ({error})") from error
    return texts | ({} if config.source is None else load_prompts(config.source))


def placeholders(text: str) -> frozenset[str]:
    """
    >>> sorted(placeholders("Serve in {city}. Reply {{so}}: {\\"a\\": 1}, $\\\\frac{a}{b}$"))
    ['city']
    """
    return frozenset(PLACEHOLDER.findall(text))


class NamedTexts:
    """The texts of one candidate, and what was asked for by name since: `asked` has the text that was there first, the
    workflow's own. Shared by all episodes that are played with them."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self.given = dict(given or {})
        self.asked: dict[str, str] = {}

    def ask(self, name: str, default: str | None, values: Mapping[str, Any]) -> str:
        """The text called `name`, else `default`, with `values` filled in. Raises WorkflowError."""
        text = self.given.get(name, default)
        if text is None:
            raise WorkflowError(
                f"prompt {name!r} has no text: give tuner.prompt({name!r}, default=...), or name a file in "
                f"astune.prompts.files.{nearest(name, self.given)}"
            )
        first = self.asked.setdefault(name, text if default is None else default)
        if default is not None and first != default and name not in self.given:
            raise WorkflowError(
                f"prompt {name!r} is asked for with two defaults, {first!r:.60} and {default!r:.60}: give one of them "
                "another name"
            )
        return fill(name, text, values) if values else text

    def describe(self, request: ChatRequest) -> ChatRequest:
        """`request` with the descriptions of its tools as they are given here."""
        for tool in request.tools:
            function = tool["function"]
            self.asked.setdefault(TOOL + function["name"], function.get("description") or "")
        if not any(TOOL + tool["function"]["name"] in self.given for tool in request.tools):
            return request
        return replace(request, tools=self._describe(request.tools))

    def _describe(self, tools: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        return tuple(
            {**tool, "function": {**tool["function"], "description": self.given[TOOL + tool["function"]["name"]]}}
            if TOOL + tool["function"]["name"] in self.given
            else tool
            for tool in tools
        )


CURRENT: ContextVar[NamedTexts | None] = ContextVar("astune_texts", default=None)
"""The texts of the episode under way."""


def fill(name: str, text: str, values: Mapping[str, Any]) -> str:
    """`text` with its placeholders filled; `{{so}}` becomes `{so}`.

    >>> fill("system", "Serve in {city}. Reply {{so}}.", {"city": "Rome"})
    'Serve in Rome. Reply {so}.'
    """
    for missing in sorted(placeholders(text) - values.keys()):
        raise WorkflowError(
            f"prompt {name!r} has the placeholder {{{missing}}}, and nothing fills it: "
            f"tuner.prompt({name!r}, ..., {missing}=...).{nearest(missing, values)} Two braces stand for one: "
            f"{{{{{missing}}}}}"
        )
    filled = PLACEHOLDER.sub(lambda found: str(values[found[1]]), text)
    return re.sub(r"\{\{([A-Za-z_]\w*)\}\}", r"{\1}", filled)
