"""The public names of a tuner, with parameters, fields and defaults: `python tests/tuner/signatures.py PACKAGE`."""

import importlib
import inspect
import json
import sys
from types import ModuleType

MODULES = ("", ".prompt_tune", ".model_selection")
CONVERTED = ("description", "title")


def signatures(package):
    """What a script can see of each public name, as JSON has it."""
    found = {}
    for suffix in MODULES:
        module = importlib.import_module(package + suffix)
        found |= {f"{suffix[1:]}.{name}".strip("."): describe(getattr(module, name)) for name in sorted(module.__all__)}
    return json.loads(json.dumps(found, default=repr))


def describe(value):
    if hasattr(value, "model_json_schema"):
        methods = {name for name in vars(value) if not name.startswith("_") and callable(vars(value)[name])}
        return {"fields": plain(value.model_json_schema()), "methods": sorted(methods)}
    if inspect.isfunction(value):
        parameters = inspect.signature(value).parameters.values()
        shown = [[each.name, str(each.kind), repr(each.default)] for each in parameters]
        return {"async": inspect.iscoroutinefunction(value), "parameters": shown}
    return "a type of functions"


def plain(schema):
    if isinstance(schema, dict):
        return {name: plain(value) for name, value in schema.items() if name not in CONVERTED}
    return [plain(each) for each in schema] if isinstance(schema, list) else schema


def stand_in_for_dspy():
    """AgentScope's tuner imports it, and no environment here has it. None of its functions are called."""
    for name in ("dspy", "dspy.predict", "dspy.predict.predict"):
        sys.modules[name] = ModuleType(name)
    sys.modules["dspy"].Module = sys.modules["dspy"].Prediction = object
    sys.modules["dspy.predict.predict"].Predict = object


if __name__ == "__main__":
    stand_in_for_dspy()
    print(json.dumps(signatures(sys.argv[1]), indent=1, sort_keys=True))
