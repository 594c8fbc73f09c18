"""What AgentScope 2.x writes of tools once is what it would write each time."""

import copy
import enum
import functools
import inspect
import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

pytest.importorskip("agentscope", minversion="2.0")
from agentscope.agent import ContextConfig
from agentscope.tool import FunctionTool, ResetTools, ToolGroup, Toolkit

from astune.workflow import agentscope_schemas
from astune.workflow.agentscope_schemas import write_schemas_once
from tests.rows import each_row

write_schemas_once()


class Place(BaseModel):
    """Where it is."""

    city: str
    floor: int = 0


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def plain(subject: str) -> str:
    """Look a subject up.

    In all books.

    Args:
        subject: what it is about
    """


def rich(
    place: Place,
    colour: Colour = Colour.RED,
    how: Literal["up", "down"] | None = None,
    size: Annotated[int, Field(ge=1, le=9)] = 3,
    *names: str,
    _agent_state: Any = None,
    **more: float,
) -> str:
    pass


def silent():
    pass


async def postponed(place: "Place", number: "int | None" = None):
    """Annotations that are text."""


def unknown(place: "Nowhere"):  # noqa: F821
    """Annotations that stand for nothing."""


@functools.wraps(plain)
def wrapper(*arguments, **named):
    return plain(*arguments, **named)


class Desk:
    def ask(self, question: str = "why?") -> str:
        """Ask.

        Args:
            question (str): what to ask
        """

    def __call__(self, answer: int) -> str:
        """Answer."""


FUNCTIONS = {
    "plain": plain,
    "rich": rich,
    "silent": silent,
    "postponed": postponed,
    "wrapper": wrapper,
    "method": Desk().ask,
    "object": Desk(),
    "partial": functools.partial(plain, subject="pens"),
}


def by_itself(func, **options):
    tool = FunctionTool.__new__(FunctionTool)
    inspect.unwrap(FunctionTool.__init__)(tool, func, **options)
    return said(tool)


def said(tool):
    """Its fields; the schema as text, in which True is not 1."""
    fields = {name: value for name, value in vars(tool).items() if name != "_func"}
    return {**fields, "input_schema": json.dumps(tool.input_schema)}


@each_row("func", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_tool_says_of_a_function_what_it_says_by_itself_however_often_it_is_made(func):
    name = {} if hasattr(func, "__name__") else {"name": "named"}
    expected = by_itself(func, **name)
    for _ in range(3):
        assert said(FunctionTool(func, **name)) == expected


def test_what_agentscope_refuses_is_refused_each_time():
    refused = []
    for _ in range(2):
        with pytest.raises(Exception) as error:
            FunctionTool(unknown)
        refused.append((type(error.value), str(error.value)))
    with pytest.raises(refused[0][0]) as error:
        by_itself(unknown)
    assert refused == [(type(error.value), str(error.value))] * 2


def test_a_schema_is_written_once(monkeypatch):
    module = inspect.getmodule(inspect.unwrap(FunctionTool.__init__))
    written = []
    write = module._extract_input_schema
    monkeypatch.setattr(module, "_extract_input_schema", lambda func: written.append(func) or write(func))

    def fresh(count: int) -> str:
        """Never seen before."""

    for _ in range(3):
        FunctionTool(fresh)
    assert written == [fresh]


def place_with(field):
    """Classes of one name."""

    class Place(BaseModel):
        __annotations__ = {field: str}

    return Place


def made_for(task, kind, default, place):
    def tool(value: kind = default, where: place = None) -> str:
        pass

    tool.__doc__ = f"For {task}."
    return tool


def test_functions_of_one_definition_are_told_apart():
    """A workflow may make its tools anew for every task."""
    made = [
        made_for(*each)
        for each in [
            ("a", int, 1, None),
            ("a", int, True, None),
            ("b", int, 1, None),
            ("a", float, 1, None),
            ("a", int, 1, place_with("street")),
            ("a", int, 1, place_with("square")),
        ]
    ]
    for func in (*made, *reversed(made)):
        assert said(FunctionTool(func)) == by_itself(func)


def test_what_is_changed_in_one_tool_is_changed_there_alone():
    before = copy.deepcopy(FunctionTool(plain).input_schema)
    first, group = FunctionTool(plain), ResetTools([ToolGroup(name="more", description="More.")], "")
    first.input_schema["properties"]["subject"]["enum"] = ["pens"]
    group.input_schema["properties"].clear()
    ContextConfig().summary_schema["properties"].clear()
    assert FunctionTool(plain).input_schema == before != first.input_schema
    assert group.input_schema["properties"].keys() == {"more"}
    assert ContextConfig().summary_schema["properties"]


def test_a_description_or_a_schema_of_the_users_own_stands():
    own = {"type": "object", "properties": {"x": {"type": "string"}}}
    FunctionTool(plain)
    assert FunctionTool(plain, description="Mine.").description == "Mine."
    assert FunctionTool(plain, "renamed", None, own).input_schema == own
    assert said(FunctionTool(plain, input_schema=Place)) == by_itself(plain, input_schema=Place)
    assert FunctionTool(plain, "renamed").name == "renamed"


async def test_the_tool_that_changes_tools_offers_the_groups_of_its_toolkit():
    written = inspect.unwrap(ResetTools.input_schema.fget)
    for groups in ([], [("a", "First.")], [("a", "Other.")], [("a", "First."), ("b", "Second.")]) * 2:
        toolkit = Toolkit(tool_groups=[ToolGroup(name=name, description=text) for name, text in groups])
        tool = toolkit.builtin_meta_tool.tool
        assert tool.input_schema == written(tool)
        assert tool.input_schema["properties"].keys() == {name for name, _ in groups}


def test_a_context_config_is_what_it_is_by_itself():
    class Own(ContextConfig):
        summary_schema: dict = Field(default_factory=Place.model_json_schema)

    def alone(kind, **given):
        config = kind.__new__(kind)
        inspect.unwrap(ContextConfig.__init__)(config, **given)
        return config

    own = {"type": "object", "properties": {}}
    for kind, given in [
        (ContextConfig, {}),
        (ContextConfig, {"summary_schema": own}),
        (Own, {}),
        (Own, {"trigger_ratio": 0.7}),
    ]:
        for _ in range(2):
            made, expected = kind(**given), alone(kind, **given)
            assert made == expected
            assert made.model_fields_set == expected.model_fields_set == given.keys()
    assert Own.model_validate({"trigger_ratio": 0.7}) == alone(Own, trigger_ratio=0.7)
    with pytest.raises(ValueError, match="trigger_ratio"):
        ContextConfig(trigger_ratio="much")


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(agentscope_schemas, "MOST_KEPT", 3)
    for number in range(20):
        func = made_for(number, int, number, None)
        assert said(FunctionTool(func)) == by_itself(func)
    known = inspect.getclosurevars(FunctionTool.__init__).nonlocals["known"]
    assert len(known) <= 3
