"""Arguments written as text get the type that their schema allows, however the schema says so."""

import json

from hypothesis import given
from hypothesis import strategies as st

from astune.context_tracker.prompt.answer_formats import FORMATS
from astune.context_tracker.prompt.argument_types import ANY, ToolSchema, read_value
from tests.rows import each_row

NULL = {"type": "null"}


def typed(schema, text):
    """The argument `x` that a Qwen3-Coder model wrote as `text`, for a tool whose parameters have this schema."""
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    answer = f"<tool_call>\n<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>"
    glm = f"<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
    found = [FORMATS[name].read(said, [tool]).tool_calls for name, said in (("qwen3_coder", answer), ("glm", glm))]
    (first,), (second,) = found
    assert first == second
    return json.loads(first.arguments)["x"]


def of(x, **beside):
    return {"type": "object", "properties": {"x": x}, **beside}


CHAIN = {"A": {"$ref": "#/$defs/B"}, "B": {"allOf": [{"$ref": "#/$defs/C~1c"}]}, "C/c": {"enum": [1, 2]}}
TREE = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}
LOOP = {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "integer"}]}
VARIANTS = [of({"type": "integer"}), {"properties": {"y": {"type": "string"}}}]


@each_row(
    ("schema", "text", "expected"),
    [
        (of({"$ref": "#/$defs/A"}, **{"$defs": CHAIN}), "2", 2),
        (of({"$ref": "#/definitions/N"}, definitions={"N": {"type": "number"}}), "1e2", 100.0),
        (of({"$ref": "#/$defs/Tree"}, **{"$defs": {"Tree": TREE}}), '{"children": []}', {"children": []}),
        (of({"$ref": "#/$defs/Loop"}, **{"$defs": {"Loop": LOOP}}), "5", 5),
        (of({"$ref": "#/$defs/Loop", "$defs": {"Loop": LOOP}}), "5", 5),
        (of({"$ref": "#/properties/y"}) | {"properties": {"x": {"$ref": "#/properties/y"}, "y": TREE}}, "{}", {}),
        (of({"$ref": "https://example.com/x"}), "5", "5"),
        ({"$ref": "#/$defs/Args", "$defs": {"Args": of({"type": "integer"})}}, "5", 5),
        ({"allOf": [of({}), of({"type": "integer"})]}, "5", 5),
        ({"oneOf": VARIANTS}, "5", 5),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "5", 5),
        (of({"allOf": [{"type": ["integer", "string"]}, {"type": ["integer", "null"]}]}), "5", 5),
        (of({"allOf": [{"type": "integer"}, {"type": "string"}]}), "5", "5"),
        (of({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}), "true", True),
        (of({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}), '["a"]', ["a"]),
        (of({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}), "a", "a"),
        (of({"anyOf": [{"type": "string"}, {}]}), "5", "5"),
        (of({"type": ["string", "null"]}), "None", None),
        (of({"type": "string", "nullable": True}), "null", None),
        (of({"type": "string"}), "null", "null"),
        (of({"enum": ["1", "2"]}), "1", "1"),
        (of({"enum": [1, "auto"]}), "1", 1),
        (of({"enum": [1, "auto"]}), "auto", "auto"),
        (of({"const": 1}), "1", 1),
        (of({"const": None}), "None", None),
        (of({"properties": {"a": {}}}), '{"a": 1}', {"a": 1}),
        (of({"additionalProperties": {"type": "integer"}}), '{"a": 1}', {"a": 1}),
        (of({"required": ["a"]}), '{"a": 1}', {"a": 1}),
        (of({"items": {}}), "[1]", [1]),
        (of({"prefixItems": [{"type": "integer"}]}), "[1]", [1]),
        (of({"minimum": 0}), "1.5", 1.5),
        (of({"minLength": 1}), "1.5", "1.5"),
        (of({"type": "float"}), "1.5", 1.5),
        (of({"type": "dict"}), "{}", {}),
        (of({"type": "STRING"}), "5", "5"),
        (of({"type": "colour"}), "5", "5"),
        (of(True), "5", "5"),
        (of(False), "5", "5"),
        (of({}), '{"a": 1}', '{"a": 1}'),
        (None, "5", "5"),
        (True, "5", "5"),
        ({"type": "object", "properties": None}, "5", "5"),
        (of({"type": "integer"}), "3.0", 3),
        (of({"type": "integer"}), "3.5", 3.5),
        (of({"type": "integer"}), "05", 5),
        (of({"type": "integer"}), "many", "many"),
        (of({"type": "integer"}), "None", None),
        (of({"type": "integer"}), "9" * 5000, "9" * 5000),
        (of({"type": "number"}), "1e999", "1e999"),
        (of({"type": "number"}), "NaN", "NaN"),
        (of({"type": "boolean"}), "True", True),
        (of({"type": "boolean"}), "false", False),
        (of({"type": "object"}), "{'a': None, \"b\": 'it\\'s \"\\n\\d\\x41\"'}", {"a": None, "b": 'it\'s "\n\\dA"'}),
        (of({"type": "object"}), "{'a': {1, 2}}", "{'a': {1, 2}}"),
        (of({"type": "object"}), "{'a': " + "\\'" * 50_000, "{'a': " + "\\'" * 50_000),
        (of({"anyOf": [{"type": "object"}, {"type": "string"}]}), "{'a': 1}", "{'a': 1}"),
        (of({"anyOf": [{"type": "integer"}, {"type": "string"}]}), "007", "007"),
        (of({"type": "array"}), "[" * 100_000, "[" * 100_000),
    ],
)
def test_an_argument_has_a_type_that_its_schema_allows(schema, text, expected):
    found = typed(schema, text)
    assert (found, type(found)) == (expected, type(expected))


PYDANTIC = {
    "$defs": {
        "Color": {"enum": ["red", "blue"], "title": "Color", "type": "string"},
        "Level": {"enum": [1, 2, 3], "title": "Level", "type": "integer"},
        "Place": {
            "properties": {
                "lat": {"title": "Lat", "type": "number"},
                "next": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}], "default": None},
            },
            "required": ["lat"],
            "title": "Place",
            "type": "object",
        },
        "Circle": {"properties": {"kind": {"const": "circle", "type": "string"}}, "type": "object"},
    },
    "properties": {
        "color": {"$ref": "#/$defs/Color", "default": "red"},
        "level": {"allOf": [{"$ref": "#/$defs/Level"}], "default": 1, "description": "As pydantic 2.0 to 2.8 writes."},
        "place": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}], "default": None},
        "shape": {
            "discriminator": {"mapping": {"circle": "#/$defs/Circle"}, "propertyName": "kind"},
            "oneOf": [{"$ref": "#/$defs/Circle"}],
        },
        "pair": {
            "maxItems": 2,
            "minItems": 2,
            "prefixItems": [{"type": "integer"}, {"type": "string"}],
            "type": "array",
        },
        "size": {"anyOf": [{"type": "integer"}, {"enum": ["auto"], "type": "string"}], "title": "Size"},
        "counts": {"additionalProperties": {"type": "integer"}, "title": "Counts", "type": "object"},
        "whatever": {"title": "Whatever"},
    },
    "required": ["shape"],
    "title": "Arguments",
    "type": "object",
}
OPENAI_STRICT = {
    "$defs": {"Step": {"additionalProperties": False, "properties": {}, "required": [], "type": "object"}},
    "additionalProperties": False,
    "properties": {
        "steps": {"items": {"$ref": "#/$defs/Step"}, "type": "array"},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "mode": {"enum": ["fast", "slow"], "type": "string"},
    },
    "required": ["steps", "limit", "mode"],
    "type": "object",
}
LANGCHAIN = {
    "type": "object",
    "properties": {
        "filter": {"allOf": [{"type": "object", "properties": {"year": {"type": "integer"}}}]},
        "queries": {"anyOf": [{"type": "string"}, {"items": {"type": "string"}, "type": "array"}]},
        "k": {"default": 4, "type": "integer"},
    },
    "required": ["filter"],
}
FASTMCP = {
    "$defs": {"Options": {"properties": {"deep": {"type": "boolean"}}, "type": "object"}},
    "properties": {
        "options": {"$ref": "#/$defs/Options"},
        "tags": {"items": {"type": "string"}, "type": "array", "uniqueItems": True},
        "ratio": {"maximum": 1, "minimum": 0, "type": "number"},
    },
    "required": ["options"],
    "type": "object",
    "additionalProperties": False,
}
OPENAPI = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "format": "int64", "nullable": True},
        "body": {"properties": {"a": {"type": "string"}}},
    },
}


@each_row(
    ("parameters", "written"),
    [
        (
            PYDANTIC,
            {
                "color": ("blue", "blue"),
                "level": ("2", 2),
                "place": ('{"lat": 1.5, "next": null}', {"lat": 1.5, "next": None}),
                "shape": ('{"kind": "circle"}', {"kind": "circle"}),
                "pair": ('[1, "a"]', [1, "a"]),
                "size": ("auto", "auto"),
                "counts": ('{"a": 1}', {"a": 1}),
                "whatever": ("1", "1"),
            },
        ),
        (OPENAI_STRICT, {"steps": ("[{}]", [{}]), "limit": ("None", None), "mode": ("fast", "fast")}),
        (LANGCHAIN, {"filter": ('{"year": 1}', {"year": 1}), "queries": ('["a", "b"]', ["a", "b"]), "k": ("3", 3)}),
        (FASTMCP, {"options": ('{"deep": true}', {"deep": True}), "tags": ("[]", []), "ratio": ("1", 1)}),
        (OPENAPI, {"id": ("null", None), "body": ('{"a": "b"}', {"a": "b"})}),
    ],
    ids=["pydantic", "openai-agents", "langchain", "fastmcp", "openapi"],
)
def test_schemas_as_frameworks_write_them(parameters, written):
    schema = ToolSchema(parameters)
    found = {name: read_value(text, schema.types(name)) for name, (text, _) in written.items()}
    assert found == {name: value for name, (_, value) in written.items()}
    assert schema.arguments.keys() >= written.keys()
    assert schema.required == set(parameters.get("required", ()))


SCHEMAS = st.recursive(
    st.sampled_from([True, False, None, 3, {}, {"$ref": "#"}, {"$ref": "#/$defs/a"}, {"$ref": "#/allOf/0"}, NULL]),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "$ref": st.sampled_from(["#", "#/$defs/a", "#/anyOf/0", 1]),
            "$defs": st.dictionaries(st.just("a"), inner),
            "properties": st.dictionaries(st.sampled_from("xy"), inner),
            "allOf": st.lists(inner, max_size=2),
            "anyOf": st.lists(inner, max_size=2),
            "type": st.sampled_from(["object", ["string", "null"], 5, {}]),
            "enum": st.lists(st.sampled_from([1, None, "a"]), max_size=2),
        },
    ),
    max_leaves=8,
)


@given(SCHEMAS, st.sampled_from(["", "5", "null", "{}", "a"]))
def test_any_schema_gives_types_and_ends(parameters, text):
    schema = ToolSchema(parameters)
    assert schema.types("x") and schema.types("x") <= ANY
    json.dumps(read_value(text, schema.types("x")), allow_nan=False)
