"""Writes docs/environment_service.schema.json from the classes of astune/environment/protocol.py:
`python docs/write_env_schema.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from astune.environment.protocol import CALLS, VERSION, Failure

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "environment_service.schema.json"


def schema() -> dict[str, Any]:
    """`$defs` has `CALL.request` and `CALL.reply` for each call, and what they are made of."""
    requests = [request for request, _ in CALLS.values()]
    replies = [data for _, datas in CALLS.values() for data in datas if not isinstance(data, dict)]
    models = dict.fromkeys([*requests, *replies, Failure])
    refs, made = models_json_schema([(model, "validation") for model in models], ref_template="#/$defs/{model}")
    definitions = made["$defs"]
    for call, (request, datas) in CALLS.items():
        definitions[f"{call}.request"] = refs[(request, "validation")]
        shapes = [_shape(data, refs) for data in datas]
        data = shapes[0] if len(shapes) == 1 else {"anyOf": shapes}
        success = {
            "type": "object",
            "properties": {"success": {"const": True}, "data": data},
            "required": ["success", "data"],
        }
        definitions[f"{call}.reply"] = {"anyOf": [success, refs[(Failure, "validation")]]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"ASTune environment service, version {VERSION} of the protocol",
        "$defs": definitions,
    }


def _shape(data: type[BaseModel] | dict[str, Any], refs: dict[Any, Any]) -> dict[str, Any]:
    return data if isinstance(data, dict) else refs[(data, "validation")]


def main() -> None:
    FILE.write_text(json.dumps(schema(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
