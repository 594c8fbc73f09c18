import importlib.util
import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astune.config.judges import TaskJudgeConfig
from astune.config.tasks import TaskReaderConfig
from astune.errors import JudgeError
from astune.task_judge import make_judge
from astune.task_judge.reasoning_gym_judge import ReasoningGymJudge
from astune.task_reader import make_reader
from astune.types import Episode, StopReason, Task, Turn, WorkflowOutput
from tests.rows import each_row

needed = importlib.util.find_spec("reasoning_gym")
pytestmark = pytest.mark.skipif(needed is None, reason="needs reasoning-gym")
NAMES = (
    "ab base_conversion binary_matrix bitwise_arithmetic caesar_cipher chain_sum complex_arithmetic count_bits "
    "countdown decimal_arithmetic fraction_simplification gcd group_anagrams knights_knaves letter_counting maze "
    "mini_sudoku n_queens number_sorting palindrome_generation polynomial_equations power_function "
    "prime_factorization propositional_logic puzzle24 rearc rotate_matrix rush_hour spell_backward spiral_matrix "
    "string_insertion tower_of_hanoi word_sorting"
)
QUICK = NAMES.split()
WITHOUT_REFERENCE = {"propositional_logic", "rush_hour"}


@pytest.fixture(scope="module")
def judge() -> ReasoningGymJudge:
    return ReasoningGymJudge(TaskJudgeConfig(timeout=60.0), workers=1)


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    """A task of each of many data sets, as it is after a way through JSON."""
    source = {"datasets": {name: {} for name in QUICK}, "training_tasks": len(QUICK), "validation_tasks": 0}
    reader = make_reader(TaskReaderConfig(type="reasoning_gym", reasoning_gym=source))
    return {
        task.metadata["dataset"]: Task(
            task.task_id, task.query, answer=task.answer, metadata=json.loads(json.dumps(task.metadata))
        )
        for task in reader.read("training")
    }


def episode(task: Task, text: str | None, finish_reason: str = "stop") -> Episode:
    response = {"role": "assistant", "content": text}
    turn = Turn("agent", [1], [2], [-1.0], 0, finish_reason, response=response)
    return Episode("e", task, (turn,), (), StopReason.COMPLETED, WorkflowOutput(answer=text))


@pytest.mark.parametrize("wording", ["{}", "so <answer>1</answer>? No.\n<answer>\n{}\n</answer>"])
async def test_reference_answers_are_right(judge: ReasoningGymJudge, tasks: dict[str, Task], wording: str) -> None:
    for name in set(QUICK) - WITHOUT_REFERENCE:
        verdict = await judge.judge(tasks[name], episode(tasks[name], wording.format(tasks[name].answer)))
        assert (verdict.reward, verdict.passed) == (1.0, True), verdict
        assert verdict.metrics == {"answer_found": 1.0} and verdict.judged_by == "ReasoningGymJudge"


async def test_a_wrong_answer_keeps_the_score_of_the_verifier(judge: ReasoningGymJudge, tasks: dict[str, Task]) -> None:
    task = tasks["countdown"]
    verdict = await judge.judge(task, episode(task, "<answer>1 + 1</answer>"))
    assert (verdict.reward, verdict.passed, verdict.reason) == (0.05, False, "countdown scores '1 + 1' 0.05")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_no_answer_breaks_a_verifier(
    judge: ReasoningGymJudge, tasks: dict[str, Task], data: st.DataObject
) -> None:
    """Powers and functions are left out: sympy computes some of them for ever."""
    task = tasks[data.draw(st.sampled_from(QUICK))]
    gold = task.answer or "1"
    numbers = st.lists(st.integers(-99, 99) | st.lists(st.integers(), max_size=3), max_size=4)
    odd = st.sampled_from(["[", "()", "None", "nan", "1/0", "x", "\0", "0x", "½", "3 +", "'", "\\boxed{", "<answer>"])
    text = st.text(st.characters(exclude_characters="*!"), max_size=30)
    cut = st.integers(0, len(gold)).map(lambda end: gold[:end])
    swapped = st.permutations(list(gold[:20])).map("".join)
    answer = data.draw(numbers.map(str) | odd | text | cut | swapped)
    verdict = await judge.judge(task, episode(task, answer))
    assert math.isfinite(verdict.reward) and verdict.passed is (verdict.reward >= 1)


async def test_an_answer_at_which_the_verifier_raises_is_wrong(
    judge: ReasoningGymJudge, tasks: dict[str, Task]
) -> None:
    task = tasks["prime_factorization"]
    verdict = await judge.judge(task, episode(task, "two and three"))
    assert (verdict.reward, verdict.passed) == (0.0, False)
    assert "ValueError: invalid literal" in verdict.reason


async def test_a_verifier_that_cannot_score_the_reference_either_says_nothing(judge: ReasoningGymJudge) -> None:
    entry = {"options": {}, "answer": "7", "metadata": "{}"}
    task = Task("1", "?", answer="7", metadata={"dataset": "tower_of_hanoi", "entry": entry})
    with pytest.raises(JudgeError, match=r"scoring '8' by tower_of_hanoi: KeyError: "):
        await judge.judge(task, episode(task, "8"))


@each_row("name", ["binary_matrix", "n_queens", "spiral_matrix", "string_insertion", "countdown"])
async def test_an_answer_is_no_program(
    judge: ReasoningGymJudge, tasks: dict[str, Task], name: str, tmp_path: Path
) -> None:
    """The verifiers of the first four call `eval` on the answer, that of the last has sympy do it."""
    task = tasks[name]
    for program in (
        '[entry["answer"]]',
        '[line.split() for line in entry["answer"].split("\\n")]',
        f'__import__("os").system("touch {tmp_path}/made")',
        f'open("{tmp_path}/made", "w")',
        f'__import__("os").open("{tmp_path}/made", 65)',
        f'[__import__("subprocess").run(["touch", "{tmp_path}/made"])]',
    ):
        assert (await judge.judge(task, episode(task, program))).reward <= 0.05, program
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault(
    "Judges", "an answer keeps reasoning-gym's verifier calculating for ever", "stopped; 0 where the reference is quick"
)
async def test_an_answer_that_takes_for_ever_is_wrong(tasks: dict[str, Task]) -> None:
    impatient = ReasoningGymJudge(TaskJudgeConfig(timeout=10.0), workers=1)
    task = tasks["countdown"]
    verdict = await impatient.judge(task, episode(task, "9**9**9**9"))
    assert (verdict.reward, verdict.passed) == (0.0, False)
    assert "by countdown: took more than 1 seconds of computing and was stopped; the reference alone is" in str(
        verdict.reason
    )


async def test_a_text_without_marks_is_an_answer_without_what_was_only_thought(
    judge: ReasoningGymJudge, tasks: dict[str, Task]
) -> None:
    task = tasks["gcd"]
    verdict = await judge.judge(task, episode(task, f"<think>Is it 0?</think>\n{task.answer}"))
    assert verdict.reward == 1.0


async def test_without_a_marked_answer_auto_takes_all_and_a_format_nothing(tasks: dict[str, Task]) -> None:
    task = tasks["gcd"]
    tagged = make_judge(TaskJudgeConfig(judge_protocol="ReasoningGymJudge", answer_format="answer_tag"))
    verdict = await tagged.judge(task, episode(task, str(task.answer)))
    assert (verdict.reward, verdict.reason) == (0.0, "no answer in the format 'answer_tag'")
    assert verdict.metrics == {"answer_found": 0.0}


async def test_no_answer_and_one_that_was_cut_off_are_wrong(judge: ReasoningGymJudge, tasks: dict[str, Task]) -> None:
    task = tasks["gcd"]
    for text, finish_reason, reason in (
        (" ", "stop", "no answer"),
        ("<answer></answer>", "stop", "no answer"),
        (task.answer, "length", "the answer was cut off before it ended"),
    ):
        verdict = await judge.judge(task, episode(task, text, finish_reason))
        assert (verdict.reward, verdict.passed, verdict.reason) == (0.0, False, reason)


async def test_a_task_of_another_reader_cannot_be_judged(judge: ReasoningGymJudge) -> None:
    task = Task("1", "1 + 1?", answer="2", metadata={"dataset": "gsm8k"})
    with pytest.raises(JudgeError, match="task '1' has no fields 'dataset' and 'entry' as reasoning-gym's tasks have"):
        await judge.judge(task, episode(task, "2"))


def test_all_verifiers_that_evaluate_answers_are_known() -> None:
    """So that an update of reasoning-gym does not bring a new one."""
    assert needed is not None and needed.submodule_search_locations
    root = Path(needed.submodule_search_locations[0])
    found = [
        ".".join(path.relative_to(root.parent).with_suffix("").parts)
        for path in root.rglob("*.py")
        if "eval(answer)" in path.read_text()
    ]
    worker = Path(__file__).parents[2] / "astune" / "workers" / "reasoning_gym_worker.py"
    listed = worker.read_text().partition("ANSWERS_AS_CODE = (")[2].partition(")")[0]
    assert sorted(found) == json.loads(f"[{listed.strip().rstrip(',')}]")
