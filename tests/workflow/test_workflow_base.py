import importlib.util
import logging
import sys

import pytest

from astune.errors import PluginError, WorkflowError
from astune.types import Task, WorkflowOutput
from astune.workflow.workflow_base import FunctionWorkflow, Workflow, as_workflow, check_output, task_row
from tests.rows import each_row

TASK = Task("t1", "What is 1 + 1?", metadata={"question": "What is 1 + 1?", "tags": ["easy"]})


class FakeTuner:
    """Only what a function workflow touches."""

    def model(self):
        return "the model"

    def auxiliary_models(self):
        return {"critic": "the critic"}


class Solve(Workflow):
    async def execute(self, task, tuner):
        return WorkflowOutput(answer=task.query)


class NotAWorkflow:
    async def execute(self, task, tuner):
        return WorkflowOutput()


class Unfinished(Workflow):
    pass


class Yielding(Workflow):
    def execute(self, task, tuner):
        yield WorkflowOutput()


class WrongParameters(Workflow):
    async def execute(self, task):
        return WorkflowOutput()


class NeedsArgument(Workflow):
    def __init__(self, path):
        self.path = path

    async def execute(self, task, tuner):
        return WorkflowOutput()


async def execute(factory):
    return await factory().execute(TASK, FakeTuner())


async def test_a_class_makes_one_instance_per_episode():
    factory = as_workflow(Solve)
    assert factory() is not factory()
    assert (await execute(factory)).answer == "What is 1 + 1?"


@each_row(
    ("target", "message"),
    [
        (NotAWorkflow, "NotAWorkflow does not derive from astune.Workflow"),
        (Unfinished, "Unfinished does not define: execute"),
        (Yielding, "is a generator: it has a `yield`"),
        (WrongParameters, r"takes \(self, task\); expected"),
        (NeedsArgument, "__init__ needs path"),
        (Solve(), "not <.*Solve object"),
        ("solve", "a function, not 'solve' of type str"),
    ],
)
def test_what_is_not_a_workflow_is_refused_with_its_reason(target, message):
    with pytest.raises(PluginError, match=message):
        as_workflow(target)


async def test_a_function_with_task_and_model_gets_the_row_and_the_model():
    seen = {}

    async def solve(task, model):
        seen.update(task=task, model=model)
        return WorkflowOutput(response="2")

    output = await execute(as_workflow(solve))
    assert output.answer == "2"
    assert seen["model"] == "the model"
    assert seen["task"] == {"task_id": "t1", "query": "What is 1 + 1?", **TASK.metadata}


async def test_the_row_is_a_copy_that_the_workflow_may_change():
    task_row(TASK)["tags"].append("changed")
    assert TASK.metadata["tags"] == ["easy"]


def test_columns_of_the_row_win_over_what_is_filled_in():
    assert task_row(Task("t1", "q", metadata={"task_id": 7, "query": "its own"})) == {"task_id": 7, "query": "its own"}


async def test_optional_parameters_are_given_by_name_in_any_order():
    seen = {}

    async def solve(logger, tuner, auxiliary_models, model, task):
        seen.update(logger=logger, tuner=tuner, auxiliary_models=auxiliary_models)
        return WorkflowOutput(reward=1.0)

    await execute(as_workflow(solve))
    assert isinstance(seen["logger"], logging.Logger)
    assert isinstance(seen["tuner"], FakeTuner)
    assert seen["auxiliary_models"] == {"critic": "the critic"}


async def test_a_function_of_exactly_task_and_tuner_gets_the_task_itself():
    async def solve(task, tuner):
        return WorkflowOutput(answer=(task, tuner))

    answer = (await execute(as_workflow(solve))).answer
    assert answer[0] is TASK
    assert isinstance(answer[1], FakeTuner)


async def mistyped(task, modle): ...


async def unknown(task, model, temperature): ...


async def no_task(model): ...


async def no_model(task, tuner, logger): ...


async def any_positional(task, model, *rest): ...


async def any_keyword(task, model, **rest): ...


async def by_position(task, model, /): ...


async def generator(task, model):
    yield 1


def plain_generator(task, model):
    yield 1


@each_row(
    ("function", "message"),
    [
        (mistyped, "takes 'modle', which is unknown. Did you mean 'model'?"),
        (unknown, "takes 'temperature', which is unknown"),
        (no_task, "does not take 'task'"),
        (no_model, "does not take 'model'"),
        (any_positional, "takes *rest"),
        (any_keyword, "takes **rest"),
        (by_position, "takes 'task' by position only"),
        (generator, "is a generator"),
        (plain_generator, "is a generator"),
    ],
)
def test_a_wrong_function_is_refused_with_its_name_file_and_line(function, message):
    with pytest.raises(PluginError) as error:
        as_workflow(function)
    text = str(error.value)
    assert message in text
    assert f"{function.__name__} ({__file__}:{function.__code__.co_firstlineno})" in text
    if function not in (generator, plain_generator):
        assert (
            "Allowed names: task, model, auxiliary_models, logger, tuner, system_prompt; or exactly (task, tuner)"
            in text
        )


def test_the_wrong_type_of_output_is_named_with_the_function_that_returned_it():
    workflow = FunctionWorkflow(unknown, ("task", "model"))
    with pytest.raises(WorkflowError, match=r"unknown \(.*test_workflow_base.py:\d+\) returned '2' \(str\); expected"):
        check_output("2", workflow)
    with pytest.raises(WorkflowError, match=r"Solve.execute \(.*\) returned None; expected astune.WorkflowOutput"):
        check_output(None, Solve())
    for event in ("a vote", {"who": "5"}, {"text": "a vote", "whom": "5"}):
        with pytest.raises(
            WorkflowError, match=r"returned the event .* expected one with text, who, heading, known_to"
        ):
            check_output(WorkflowOutput(events=[{"text": "night"}, event]), Solve())


def test_a_stranger_that_is_called_workflow_output_is_not_taken_for_one():
    class WorkflowOutput:
        response, reward, metrics = "2", 1.0, None

    with pytest.raises(WorkflowError, match="expected astune"):
        check_output(WorkflowOutput(), Solve())


def test_an_agent_that_waits_for_a_permission_is_an_error_that_says_what_to_do():
    waiting = WorkflowOutput(answer="I'm waiting for your permission or the external execution to finish.")
    with pytest.raises(WorkflowError, match="training_defaults"):
        check_output(waiting, Solve())


def test_importing_the_package_loads_no_framework():
    import subprocess

    code = (
        "import sys, astune.workflow.workflow_base, astune.workflow.agentscope\n"
        "print([name for name in ('openai', 'starlette', 'agentscope', 'httpx', 'torch') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
    assert importlib.util.find_spec("openai") is not None
