from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from astune import register_judge
from astune.config.judges import TaskJudgeConfig
from astune.config.schema import AstuneConfig
from astune.errors import PluginError, TaskError
from astune.task_judge import MathAnswerAsJudge, TaskJudges, make_judge, registry
from astune.task_judge.registry import import_registered
from astune.training.tasks import read_tasks
from astune.types import Episode, Task
from tests.rows import each_row

MakeEpisode = Callable[..., Episode]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registered", {})
    yield


def task(scorer: object = None, schema: object = None) -> Task:
    return Task("t1", "2+2?", answer="4", metadata={"scorer": scorer, "answer_schema": schema})


def test_a_task_without_scorer_has_no_judge_of_its_own() -> None:
    assert TaskJudges(TaskJudgeConfig()).of(task()) is None
    assert TaskJudges(TaskJudgeConfig()).of(Task("t", "q")) is None


async def test_an_answer_schema_without_scorer_says_where_the_judge_of_the_run_looks(make_episode: MakeEpisode) -> None:
    judge = TaskJudges(TaskJudgeConfig(judge_protocol="MathAnswerAsJudge")).of(task(schema="boxed"))
    assert judge is not None
    for answer, right in (("\\boxed{4}", True), ("<answer>4</answer>", False)):
        assert (await judge.judge(task(schema="boxed"), make_episode(answer, "4"))).passed is right


@each_row("protocol", [None, "EnvServiceJudge", [{"judge": "MathAnswerAsJudge"}]])
def test_an_answer_schema_that_no_judge_would_read_is_an_error(protocol: object) -> None:
    with pytest.raises(TaskError, match="answer_schema 'boxed' counts for a judge that reads the final answer"):
        TaskJudges(TaskJudgeConfig(judge_protocol=protocol)).check([task(schema="boxed")])  # type: ignore[arg-type]


async def test_a_scorer_of_agentrl_gets_the_answer_that_the_schema_marks(
    tmp_path: Path, make_episode: MakeEpisode
) -> None:
    (tmp_path / "mine.py").write_text(
        "async def same(model_answer, ground_truth):\n"
        "    return 0.5 * (model_answer == ground_truth['answer']) + 0.25 * (model_answer == '')\n"
        "def row(task, response):\n    return 1.0\n"
    )
    judges = TaskJudges(TaskJudgeConfig(scorers={"same": f"{tmp_path}/mine.py:same", "row": f"{tmp_path}/mine.py:row"}))
    for schema, answer, reward in (
        ("boxed", "\\boxed{4}", 0.5),
        ("answer", "It is <answer>4</answer>", 0.5),
        ("answer", "<answer>5</answer>", 0.0),
        ("answer", "\\boxed{4}", 0.25),
    ):
        judge = judges.of(task("same", schema))
        assert judge is not None
        assert (await judge.judge(task("same", schema), make_episode(answer, "4"))).reward == reward
    with pytest.raises(TaskError, match=r"answer_schema 'boxed': the judge .*row' does not ask for the final answer"):
        judges.of(task("row", "boxed"))


@pytest.mark.parametrize("name", ["math", "MathAnswerAsJudge"])
def test_a_scorer_is_found_by_its_short_and_its_full_name_and_made_once(name: str) -> None:
    judges = TaskJudges(TaskJudgeConfig())
    judge = judges.of(task(name))
    assert isinstance(judge, MathAnswerAsJudge)
    assert judges.of(task(name)) is judge


@each_row(
    ("schema", "answer", "right"),
    [
        ("boxed", "\\boxed{4}", True),
        ("boxed", "<answer>4</answer>", False),
        ("answer", "<answer>4</answer>", True),
        ("answer", "\\boxed{4}", False),
        (None, "\\boxed{4}", True),
    ],
)
async def test_the_answer_schema_says_where_the_answer_stands(
    schema: str | None, answer: str, right: bool, make_episode: MakeEpisode
) -> None:
    judge = TaskJudges(TaskJudgeConfig()).of(task("math", schema))
    assert judge is not None
    assert (await judge.judge(task("math", schema), make_episode(answer, "4"))).passed is right


def test_an_unknown_scorer_lists_the_known_ones_before_the_run() -> None:
    with pytest.raises(TaskError, match=r"'t1': unknown scorer 'maths'. Did you mean 'math'\? There are: .*ToolUse"):
        TaskJudges(TaskJudgeConfig()).check([task(), task("maths")])


def test_an_unknown_answer_schema_is_an_error() -> None:
    with pytest.raises(TaskError, match=r"unknown answer_schema 'box'. Did you mean 'boxed'\?"):
        TaskJudges(TaskJudgeConfig()).of(task("math", "box"))


def test_a_scorer_that_is_no_text_is_an_error() -> None:
    with pytest.raises(TaskError, match="task 't1': scorer must be a text, found 3"):
        TaskJudges(TaskJudgeConfig()).of(task(3))


async def test_the_configuration_names_scorers(tmp_path: Path, make_episode: MakeEpisode) -> None:
    (tmp_path / "mine.py").write_text("def half(task, response):\n    return 0.5\n")
    config = TaskJudgeConfig(scorers={"exam": f"{tmp_path}/mine.py:half"})
    judge = TaskJudges(config).of(task("exam"))
    assert judge is not None
    assert (await judge.judge(task("exam"), make_episode("x"))).reward == 0.5


async def test_a_registered_judge_is_found_by_tasks_and_by_the_protocol(
    registered: None, make_episode: MakeEpisode
) -> None:
    @register_judge("exam")
    def exam(task: Task, episode: Episode) -> bool:
        return True

    for judge in (TaskJudges(TaskJudgeConfig()).of(task("exam")), make_judge(TaskJudgeConfig(judge_protocol="exam"))):
        assert judge is not None
        assert (await judge.judge(task("exam"), make_episode("x"))).passed is True


REGISTERS = """
from astune import WorkflowOutput, register_judge

@register_judge("exam")
def exam(task, episode):
    return True

async def work(task, tuner):
    return WorkflowOutput(answer="x")
"""


def test_what_the_workflows_file_registers_is_known_when_tasks_are_read(registered: None, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(REGISTERS)
    (tmp_path / "tasks.jsonl").write_text('{"query": "q", "scorer": "exam"}\n')
    config = AstuneConfig.model_validate(
        {
            "rollout": {"agentscope_learn_protocol": f"{tmp_path}/agent.py:work"},
            "task_reader": {"jsonl": {"training": {"file_path": str(tmp_path / "tasks.jsonl")}}},
        }
    )
    assert [task.metadata["scorer"] for task in read_tasks(config).training] == ["exam"]


def test_nothing_is_imported_for_judges_that_are_known(registered: None) -> None:
    import_registered(["MathAnswerAsJudge", "a.py:f", "a.b->C"], "no/such/file.py:Agent")
    import_registered(["exam"], None)
    with pytest.raises(PluginError, match="no such file"):
        import_registered(["exam"], "no/such/file.py:Agent")


def test_a_name_is_given_once_but_a_module_may_be_loaded_again(registered: None) -> None:
    def one(task: Task, episode: Episode) -> bool: ...

    def two(task: Task, episode: Episode) -> bool: ...

    register_judge("exam")(one)
    register_judge("exam")(one)
    with pytest.raises(PluginError, match=r"register_judge\('exam'\): the name is taken by .*one"):
        register_judge("exam")(two)
    with pytest.raises(PluginError, match=r"taken by astune\.task_judge\.llm\.judge:LlmAsJudge"):
        register_judge("LlmAsJudge")(one)
