"""Replies of chat models that are JSON objects: how they are asked for, read, and asked for again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from astune.support.strict_json import read_json

T = TypeVar("T", bound=BaseModel)

MOST_ERRORS = 8
_START = re.compile(r'\{\s*["}]')
_SCANNER = json.JSONDecoder(strict=False)
_REST_OF_STRING = re.compile(r'(?:[^"\\]|\\.)*"?', re.DOTALL)


def last_object(text: str) -> dict[str, Any]:
    """The last JSON object of a text, whatever stands around it.

        last_object('First {1}, so: ```json\\n{"score": 3}\\n```')     # {"score": 3}

    Raises ValueError if there is none, if the last one is broken or cut off (what stands within it is not taken for
    it), and for a key that is given twice, NaN and infinities. Line breaks within texts are let pass.
    """
    found, broken, position = "", "no JSON object in the reply", 0
    while start := _START.search(text, position):
        try:
            _, position = _SCANNER.raw_decode(text, start.start())
            found = text[start.start() : position]
        except json.JSONDecodeError as error:
            found, broken = "", f"the JSON object is broken: {error}"
            position = max(_after(error), start.end())
        except RecursionError:
            raise ValueError("the JSON object is nested too deep") from None
    if not found:
        raise ValueError(broken)
    parsed: dict[str, Any] = read_json(found, line_breaks=True)
    return parsed


def _after(error: json.JSONDecodeError) -> int:
    """The place from which the search goes on: behind the broken string, as its text is no object."""
    if error.msg.startswith("Unterminated"):
        return len(error.doc)
    rest = _REST_OF_STRING.match(error.doc, error.pos) if error.msg.startswith("Invalid \\") else None
    return rest.end() if rest else error.pos


def read_reply(text: str, schema: type[T], check: Callable[[T], None] | None = None) -> T:
    """The text's last JSON object as an instance of `schema` that passes `check`. Raises ValueError, in words that
    help the model to correct it."""
    found = last_object(text)
    try:
        value = schema.model_validate_json(json.dumps(found))
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        lines = [f"{'.'.join(map(str, detail['loc'])) or 'the object'}: {detail['msg']}" for detail in details]
        raise ValueError("; ".join(lines[:MOST_ERRORS])) from error
    if check is not None:
        check(value)
    return value


def repair_request(wrong: ValueError, schema: type[BaseModel]) -> str:
    """The message to a model whose reply could not be used."""
    shape = json.dumps(schema.model_json_schema(), ensure_ascii=False)
    return (
        f"Your reply could not be used: {wrong}\n\nReply again, with one JSON object and nothing after it. "
        f"It must follow this JSON schema:\n{shape}"
    )


def response_format(kind: Literal["none", "json_object", "json_schema"], schema: type[BaseModel]) -> dict[str, Any]:
    """OpenAI's field of the request that asks for JSON, as a mapping to merge into the body; {} for "none".

    Strict mode wants every key required and no others, so it is not asked for where a mapping has keys of its own.
    """
    if kind == "none":
        return {}
    if kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    shape = schema.model_json_schema()
    objects = [*_objects(shape)]
    strict = all("properties" in node for node in objects)
    if strict:
        for node in objects:
            node["required"] = [*node["properties"]]
            node["additionalProperties"] = False
            for entry in node["properties"].values():
                entry.pop("default", None)
    described = {"name": schema.__name__, "strict": strict, "schema": shape}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


def _objects(node: Any) -> Iterator[dict[str, Any]]:
    """The schemas of objects within a JSON schema."""
    if isinstance(node, dict):
        if node.get("type") == "object":
            yield node
        node = [*node.values()]
    if isinstance(node, list):
        for entry in node:
            yield from _objects(entry)
