"""The configuration as a JSON schema, by which editors complete and check; `default_config/schema.json` is written from
this.

It knows names, types, ranges and words. What keys have to do with each other, and whether a file is there, only
`load_config` knows.
"""

from __future__ import annotations

import json
from typing import Any

from astune.config.schema import Config
from astune.config.section import OnTrinity, OnVerl

SCHEMA_FILE = "schema.json"
"""The name of the schema's file in `default_config`."""
FIRST_LINE = "# yaml-language-server: $schema={file}\n"
"""The line at the top of a YAML file by which an editor finds the schema: a path from that file's folder."""
FATES = frozenset({OnTrinity.engine, OnVerl.engine})
INTERPOLATION = {"type": "string", "pattern": r"\$\{", "description": "another key's value, as ${astune.seed}"}
Node = dict[str, Any]


def json_schema() -> Node:
    """Describe what a configuration file may say: every key may be left out."""
    made = Config.model_json_schema()
    made["$defs"]["AstuneConfig"]["properties"]["stages"]["items"] = {"$ref": "#/$defs/AstuneConfig"}
    definitions = {name: _as_written(node) for name, node in made.pop("$defs").items()}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "ASTune's configuration",
        **{key: value for key, value in _as_written(made).items() if key != "title"},
        "definitions": {**definitions, "interpolation": INTERPOLATION},
    }


def schema_text() -> str:
    """Write the schema as JSON."""
    return json.dumps(json_schema(), indent=1) + "\n"


def _as_written(node: Node) -> Node:
    """Turn a section as pydantic describes it into what may stand in a file: values may be `${...}`, and what becomes
    of a key on other engines is left out."""
    found = {key: value for key, value in node.items() if key != "title"}
    if "properties" in found:
        found["properties"] = {name: _value(each) for name, each in node["properties"].items()}
    if "anyOf" in found:
        found["anyOf"] = [_as_written(each) for each in node["anyOf"]]
    return found


def _value(node: Node) -> Node:
    """Describe the value of one key, which may be an interpolation where it is no section."""
    about: Node = {key: node[key] for key in ("description", "default") if key in node}
    kind: Node = _inner({key: value for key, value in node.items() if key not in {*about, *FATES}})
    if "$ref" in kind:  # beside a reference draft 7 reads nothing else
        return {**about, "allOf": [kind]}
    if _takes_text(kind):
        return about | kind
    options = kind["anyOf"] if set(kind) == {"anyOf"} else [kind]
    return {**about, "anyOf": [*options, {"$ref": "#/definitions/interpolation"}]}


def _inner(value: Any) -> Any:
    """Replace what pydantic and draft 7 call otherwise, in lists and in sections by name too. A `format` goes: a time
    without a zone is none by the letter of the standard."""
    if isinstance(value, list):
        return [_inner(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {key: _inner(each) for key, each in value.items() if key not in ("title", "format")}
    if "prefixItems" in found:
        found["items"] = found.pop("prefixItems")
    if "$ref" in found:
        found["$ref"] = found["$ref"].replace("#/$defs/", "#/definitions/")
    return found


def _takes_text(kind: Node) -> bool:
    options = kind.get("anyOf", [kind])
    return any(
        not each or (each.get("type") == "string" and not {"pattern", "enum", "const"} & set(each)) for each in options
    )
