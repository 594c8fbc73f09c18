"""Arguments that were written as text, and the JSON types that a tool's schema allows for them, however it says so."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property, reduce
from typing import Any
from urllib.parse import unquote

Types = frozenset[str]
ANY: Types = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
"""The types of a schema that does not say any."""
_NAMES = {
    **{name: frozenset({name}) for name in ANY},
    "number": frozenset({"number", "integer"}),
    **dict.fromkeys(("float", "double"), frozenset({"number", "integer"})),
    **dict.fromkeys(("int", "long"), frozenset({"integer"})),
    **dict.fromkeys(("list", "tuple"), frozenset({"array"})),
    "str": frozenset({"string"}),
    "bool": frozenset({"boolean"}),
    "dict": frozenset({"object"}),
}
"""Beside JSON Schema's own names those that people write; any other name says nothing."""
_KEYWORDS = {
    "object": "properties patternProperties additionalProperties propertyNames required minProperties maxProperties",
    "array": "items prefixItems contains minItems maxItems uniqueItems",
    "number": "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf",
    "string": "pattern minLength maxLength",
}
_IMPLIED = {word: _NAMES[name] for name, words in _KEYWORDS.items() for word in words.split()}
"""Keywords that tell what is meant where nothing else does."""
_CHOICES = ("anyOf", "oneOf")
_DEEPEST = 50
"""Schemas within schemas that are looked into for the names of arguments."""


class ToolSchema:
    """The arguments of a tool, as its `parameters` describe them. Anything is taken; what is no schema says nothing.

    >>> schema = ToolSchema({"properties": {"n": {"$ref": "#/$defs/N"}}, "$defs": {"N": {"enum": [1, 2]}}})
    >>> sorted(schema.types("n")), schema.types("m") == ANY
    (['integer'], True)
    """

    def __init__(self, parameters: Any) -> None:
        self._root = parameters
        self._known: dict[int, Types | None] = {}

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The schemas of the arguments that have names."""
        return self._arguments(self._root, ())

    @cached_property
    def required(self) -> frozenset[str]:
        """The arguments that no call may leave out."""
        found: set[str] = set()
        for part in self._parts(self._root, ()):
            names = part.get("required")
            found |= {name for name in names if isinstance(name, str)} if isinstance(names, list | tuple) else set()
        return frozenset(found)

    def types(self, name: str) -> Types:
        """The types that an argument may have; `ANY` where the schema does not say, or contradicts itself."""
        schema = self.arguments.get(name)
        if schema is None:
            others = [part.get("additionalProperties", True) for part in self._parts(self._root, ())]
            schema = {"allOf": others}
        try:
            return self._types(schema, ()) or ANY
        except RecursionError:
            return ANY

    def _parts(self, schema: Any, seen: tuple[int, ...]) -> list[Mapping[str, Any]]:
        """The schema and all those that hold beside it: what it refers to, and the members of `allOf`."""
        if not isinstance(schema, Mapping) or id(schema) in seen or len(seen) > _DEEPEST:
            return []
        beside = [*([_find(schema["$ref"], (self._root,))] if "$ref" in schema else []), *_list(schema, "allOf")]
        return [schema, *(part for other in beside for part in self._parts(other, (*seen, id(schema))))]

    def _arguments(self, schema: Any, seen: tuple[int, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for part in self._parts(schema, seen):
            own = part.get("properties")
            said = [own] if isinstance(own, Mapping) else []
            for word in _CHOICES:
                choices = [self._arguments(choice, (*seen, id(part))) for choice in _list(part, word)]
                names = dict.fromkeys(name for choice in choices for name in choice)
                said.append({name: {"anyOf": [one[name] for one in choices if name in one]} for name in names})
            for schemas in said:
                for name, one in schemas.items():
                    found[name] = {"allOf": [found[name], one]} if name in found else one
        return found

    def _types(self, schema: Any, scopes: tuple[Any, ...]) -> Types | None:
        """None for a schema that is being asked already, as it refers to itself: it adds nothing."""
        if not isinstance(schema, Mapping):
            return frozenset() if schema is False else ANY
        if "$defs" in schema or "definitions" in schema:
            scopes = (*scopes, schema)
        said: list[Types | None] = [_own(schema)]
        if "$ref" in schema:
            said.append(self._resolve(schema["$ref"], scopes))
        said += [self._types(part, scopes) for part in _list(schema, "allOf")]
        for word in _CHOICES:
            choices = [self._types(choice, scopes) for choice in _list(schema, word)]
            known = [types for types in choices if types is not None]
            said += [frozenset().union(*known)] if known else []
        types = reduce(frozenset.__and__, (types for types in said if types is not None), ANY)
        if types == ANY and None in said:
            return None
        if types == ANY:
            types = next((_IMPLIED[word] for word in schema if word in _IMPLIED), ANY)
        return types | {"null"} if schema.get("nullable") is True else types

    def _resolve(self, reference: Any, scopes: tuple[Any, ...]) -> Types | None:
        target = _find(reference, (self._root, *scopes))
        if id(target) not in self._known:
            self._known[id(target)] = None
            self._known[id(target)] = self._types(target, scopes)
        return self._known[id(target)]


def _own(schema: Mapping[str, Any]) -> Types:
    """The types that `type`, `enum` and `const` allow."""
    types = ANY
    if "type" in schema:
        named = schema["type"] if isinstance(schema["type"], list | tuple) else [schema["type"]]
        types = frozenset().union(*(_NAMES.get(str(name).lower(), ANY) for name in named))
    for values in (_list(schema, "enum"), [schema["const"]] if "const" in schema else []):
        types &= frozenset().union(*map(types_of, values)) if values else ANY
    return types


def _list(schema: Mapping[str, Any], word: str) -> Sequence[Any]:
    value = schema.get(word)
    return value if isinstance(value, list | tuple) else ()


def _find(reference: Any, scopes: Sequence[Any]) -> Any:
    """The target of a reference within a schema, in the first of the schemas that has it; True, which allows all, if
    none has it. Some frameworks leave definitions beside the reference instead of at the root."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return True
    steps = [unquote(step).replace("~1", "/").replace("~0", "~") for step in reference.split("/")[1:]]
    for node in scopes:
        for step in steps:
            if isinstance(node, Mapping):
                node = node.get(step)
            elif isinstance(node, list | tuple) and step.isdecimal() and int(step) < len(node):
                node = node[int(step)]
            else:
                node = None
        if node is not None:
            return node
    return True


def types_of(value: Any) -> Types:
    """The types that a JSON value has; 1.0 is an integer, too.

    >>> types_of(True), sorted(types_of(1.0))
    (frozenset({'boolean'}), ['integer', 'number'])
    """
    if isinstance(value, float):
        return _NAMES["number"] if value.is_integer() else frozenset({"number"})
    named = {bool: "boolean", int: "integer", str: "string", list: "array", tuple: "array", type(None): "null"}
    return frozenset({named.get(type(value), "object")})


def read_value(text: str, types: Types) -> Any:
    """The value of one of these types that `text` stands for; text that is none stays a string.

    Text that is a value of another type than string is that value, as `5` where 5 and "5" are allowed: such formats
    write both alike. Where strings are not allowed, Python's notation counts, too: `True`, `{'a': None}`, `007`. A
    schema that says nothing makes a string.

    >>> read_value("3.0", frozenset({"integer"})), read_value("{'a': None}", frozenset({"object"}))
    (3, {'a': None})
    """
    if types == ANY:
        return text
    plain, has_strings = text.strip(), "string" in types
    value = _json_value(_PYTHON_NAMES.get(plain, plain))
    if value is _NOTHING and not has_strings:
        value = _python_value(plain)
    if value is _NOTHING or (has_strings and not types_of(value) & (types - {"string"})):
        return text
    whole = isinstance(value, float) and value.is_integer() and "number" not in types and "integer" in types
    return int(value) if whole else value


_NOTHING = object()
_PYTHON_NAMES = {"True": "true", "False": "false", "None": "null"}
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_PYTHON_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.?)*(?:'|\Z)|"(?:[^"\\]|\\.?)*(?:"|\Z)|\b(?:True|False|None)\b""", re.DOTALL
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


def _json_value(text: str) -> Any:
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return _NOTHING
    return value


def _python_value(text: str) -> Any:
    """The number, list or object that `text` is in Python's notation."""
    if text.startswith(("{", "[")):
        return _json_value(_PYTHON_TOKEN.sub(_as_json, text))
    if not _NUMBER.fullmatch(text):
        return _NOTHING
    try:
        value = int(text) if text.lstrip("+-").isdecimal() else float(text)
        json.dumps(value, allow_nan=False)
    except ValueError:  # too many digits, or too large
        return _NOTHING
    return value


def _as_json(token: re.Match[str]) -> str:
    """A string or a name of Python in JSON."""
    text = token.group()
    if text in _PYTHON_NAMES:
        return _PYTHON_NAMES[text]
    return json.dumps(_ESCAPE.sub(_unescape, text[1:-1]))


def _unescape(found: re.Match[str]) -> str:
    code = found.group(1)
    if len(code) == 1:
        return _ESCAPED.get(code, found.group())
    number = int(code[1:], 16)
    return chr(number) if number <= sys.maxunicode else found.group()
