"""Jinja chat templates: read from a model folder and compiled the way transformers does, without transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from astune.errors import ModelError

HOW_TO_MAKE = "transformers writes it: AutoTokenizer.from_pretrained(...).save_pretrained(folder)"

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class _GenerationBlock(Extension):
    """`{% generation %}` marks what the assistant writes in templates made for training; the text is the same."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own way to declare tags)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


_GLOBALS: dict[str, Callable[..., Any]] = {"raise_exception": _raise_exception}


class _Sandbox(ImmutableSandboxedEnvironment):
    """Templates come from the hub and are not trusted."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look for the entry of a dictionary first, and take what loops tell as it is: Jinja looks for an attribute and
        for a reason to refuse it, which is most of the time that `message.role` and `loop.last` cost. The result is the
        same wherever dictionaries have no such attribute."""
        kind = type(obj)
        if kind is dict and attribute not in _OF_DICTIONARIES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if kind is LoopContext and attribute in _OF_LOOPS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


_OF_DICTIONARIES = frozenset(dir(dict))
_OF_LOOPS = frozenset(name for name in dir(LoopContext) if not name.startswith("_"))


@lru_cache(maxsize=32)
def compile_template(source: str) -> Template:
    """The template, in a sandbox."""
    return _environment().from_string(source)


@lru_cache(maxsize=1)
def _environment() -> _Sandbox:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals.update(_GLOBALS)
    return environment


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file, empty if there is no file."""
    if not path.is_file():
        return {}
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    return value


def read_special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the special tokens that a model has; files hold each as a string or an object with `content`."""
    given = {name: config.get(name) for name in _SPECIAL}
    texts = {name: each["content"] if isinstance(each, dict) else each for name, each in given.items()}
    return {name: text for name, text in texts.items() if text is not None}


def read_templates(model_dir: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Template texts by name, "default" among them."""
    path = model_dir / "chat_template.jinja"
    source = path.read_text(encoding="utf-8") if path.is_file() else config.get("chat_template")
    if isinstance(source, str):
        return {"default": source}
    named = {entry["name"]: entry["template"] for entry in source or ()}
    if "default" not in named:
        raise ModelError(
            f"{model_dir} has no chat template: neither chat_template.jinja nor a default 'chat_template' in "
            f"tokenizer_config.json. Use the instruct version of the model, or set tokenizer.chat_template and "
            f"save it. {HOW_TO_MAKE}"
        )
    return named
