"""A person in front of the debugger: commands in, screens out. The agent is the tutorial's, run by AgentScope."""

import io
from pathlib import Path

import pytest

from astune.backbone.debug import DebugBackbone
from astune.backbone.debug.sources.debug_model import DebugModel
from astune.backbone.debug.terminal import Terminal
from astune.config.load import load_config
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import ConfigError, TaskError
from astune.monitor import read_episodes
from astune.recordings.recording import read_recordings
from astune.support.resources import tiny_model_dir, tutorial_dir
from astune.support.terminal import Console
from astune.testing import ScriptedPolicy
from astune.types import Episode, RunReport, StopReason

agentscope = pytest.importorskip("agentscope")
WORKFLOW = "workflow_agentscope1.py" if agentscope.__version__.startswith("1.") else "workflow.py"
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "43 + 84"}}\n</tool_call>'
RIGHT, WRONG = "The answer is 127.", "The answer is 41."


class Played:
    """A session that is over: its screen, its report, its episodes."""

    def __init__(self, screen: str, report: RunReport) -> None:
        self.screen, self.report = screen, report
        records = list(read_episodes(report.run_dir / "episodes" / "debug.jsonl"))
        self.episodes: list[Episode] = [record.episode for record in records]

    def after(self, command: str) -> str:
        """What stood on the screen between a command and the next prompt."""
        return self.screen.partition(f"(astune) {command}\n")[2].partition("(astune) ")[0]


@pytest.fixture
def play(tmp_path: Path):
    def play(
        commands: list[str], answers: list[str], *overrides: str, stdin: str = "", model: DebugModel | None = None
    ) -> Played:
        (tmp_path / "tasks.jsonl").write_text(
            '{"task_id": "t1", "query": "There are 43 apples and 84 pears. How many fruits?", "answer": "127"}\n'
            '{"task_id": "t2", "query": "There are 4 apples and 8 pears. How many fruits?", "answer": "12"}\n'
        )
        settings = [
            f"astune.runs_dir={tmp_path / 'runs'}",
            f"astune.rollout.agentscope_learn_protocol={tutorial_dir() / 'math_agent' / WORKFLOW}:MathAgent",
            f"astune.task_reader.jsonl.training.file_path={tmp_path / 'tasks.jsonl'}",
            "astune.debug.step=true",
            *overrides,
        ]
        conf = tutorial_dir() / "math_agent" / "demo.yaml"
        console = Console(file=io.StringIO(), width=120)
        chat_format = ChatFormat.load(tiny_model_dir())
        model = model or DebugModel("scripted", ScriptedPolicy(answers, chat_format), chat_format)
        terminal = Terminal(console, commands, io.StringIO(stdin))
        report = DebugBackbone(console, terminal, model).run(load_config(conf, settings, backbone="debug"))
        assert isinstance(console.file, io.StringIO)
        return Played(console.file.getvalue(), report)

    return play


def in_order(text: str, *parts: str) -> bool:
    place = 0
    for part in parts:
        place = text.find(part, place)
        if place < 0:
            return False
    return True


def test_a_session_from_the_first_call_to_the_verdict(play):
    played = play(
        [
            "help",
            "show task",
            "show tools",
            "show messages",
            "next",
            "show tokens",
            "where",
            "next",
            "next",
            "show timelines",
            "next",
            "show answers",
            "sample",
            "use 0",
            "judge",
            "show verdict",
            "next",
            "show verdict",
            "show tokens",
            "show forks",
            "continue",
        ],
        [CALL, RIGHT, WRONG],
    )
    assert in_order(
        played.screen,
        "── stopped before call 1 of solver",
        "── stopped after call 1 of solver",
        "tool  calculator",
        "127",
        "── stopped at a tool result, which the model reads in call 2",
        "── stopped before call 2 of solver",
        "── stopped after call 2 of solver",
        "── stopped before the verdict",
        "── stopped after the verdict",
    )
    assert "go on to the next stop" in played.after("help") and "breakpoint()" in played.after("help")
    assert "There are 43 apples" in played.after("show task") and "127" in played.after("show task")
    assert "calculator(expression: string)" in played.after("show tools")
    assert in_order(played.after("show messages"), "system", "Use the calculator", "user", "43 apples")
    tokens = played.after("show tokens")
    assert "⟦<tool_call>" in tokens and "43 + 84" in tokens and "'<tool_call>'" in tokens and "yes" in tokens
    assert f"{WORKFLOW}:" in played.after("where") and " in execute:  reply = await agent" in played.after("where")
    assert "goes on from a row of solver" in played.after("show timelines")
    assert "▸ 0" in played.after("show answers") and RIGHT in played.after("show answers")
    assert WRONG in played.after("sample") and RIGHT in played.after("use 0")
    assert "not judged yet" in played.after("show verdict")
    assert "reward 1 by MathAnswerAsJudge" in played.screen.rpartition("(astune) show verdict\n")[2]
    assert "no row forks" in played.after("show forks")
    (episode,) = played.episodes
    assert episode.reward == 1 and [turn.excluded for turn in episode.turns] == [None, None]
    assert "⟦" in played.screen.rpartition("(astune) show tokens\n")[2]


def test_an_edited_answer_is_what_the_agent_gets_and_is_not_trained(play):
    played = play(["judge", "next", "finish"], [WRONG])
    assert played.episodes[0].reward == 0
    played = play(["next", f"edit {RIGHT}", "show answers", "finish"], [WRONG])
    (episode,) = played.episodes
    assert episode.reward == 1 and episode.turns[0].response["content"] == RIGHT
    assert episode.turns[0].excluded == "edited" and "by your hand" in played.screen
    assert episode.timelines[0].trained_tokens == 0


def test_an_answer_can_be_given_before_the_model_is_asked(play):
    played = play(['edit /call calculator {"expression": "43 + 84"}', "next", "finish"], [RIGHT])
    (episode,) = played.episodes
    assert [turn.excluded for turn in episode.turns] == ["edited", None]
    assert episode.turns[1].messages[-1]["content"] == "127" or "127" in str(episode.turns[1].messages[-1])
    assert episode.reward == 1


def test_several_lines_end_with_a_dot(play):
    played = play(["next", "edit", "I add.", RIGHT, ".", "finish"], [WRONG])
    assert played.episodes[0].turns[0].response["content"] == f"I add.\n{RIGHT}"


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ('/call calculater {"expression": "1"}', "Did you mean 'calculator'?"),
        ("/call calculator {expression: 1}", "JSON"),
        ("/call calculator {}", "expression"),
        ('<tool_call>\\n{"name": "calculator", "arguments": \\n</tool_call>', "tool call"),
    ],
)
def test_an_edit_that_is_no_tool_call_is_refused_and_kept(play, typed, reason):
    played = play(["next", f"edit {typed}", "finish"], [RIGHT])
    shown = played.after(f"edit {typed}")
    assert "not taken" in shown and reason in shown and "your text is kept" in shown
    assert typed.split("\\n")[0] in shown
    assert played.episodes[0].turns[0].excluded is None and played.episodes[0].reward == 1


def test_a_branch_is_played_from_its_point_and_compared(play):
    played = play(["next", "next", "next", "next", "branch", "continue", "continue"], [CALL, RIGHT, WRONG])
    first, branch = played.episodes
    assert (first.reward, branch.reward) == (1, 0)
    assert branch.episode_id == f"{first.episode_id}-branch1"
    assert branch.turns[0] == first.turns[0] and branch.turns[1].prompt_ids == first.turns[1].prompt_ids
    assert "branch  debug/t1/0-branch1 beside debug/t1/0" in played.screen
    assert "+1.000" in played.screen and "-1.000" in played.screen  # they are one group


def test_a_branch_stops_only_behind_its_point(play):
    played = play(["next", "next", "next", "next", "branch", "continue", "finish"], [CALL, RIGHT, WRONG])
    of_branch = played.screen.partition("debug/t1/0-branch1 ─")[2]
    stops = [line for line in of_branch.splitlines() if line.startswith("── stopped")]
    assert stops == ["── stopped before the verdict"]


def test_a_branch_goes_on_with_the_model(play):
    call = 'branch /call calculator {"expression": "1 + 1"}'
    played = play(["next", call, "finish"], [RIGHT, "The answer is 2."])
    first, branch = played.episodes
    assert [turn.response.get("content") for turn in branch.turns][-1] == "The answer is 2."
    assert branch.turns[0].excluded == "edited" and first.turns[0].excluded is None


def test_quitting_keeps_the_episode_so_far(play):
    played = play(["next", "next", "next", "quit"], [CALL, RIGHT])
    (episode,) = played.episodes
    assert played.report.status == "interrupted"
    assert episode.stop_reason is StopReason.CANCELLED and len(episode.turns) == 1 and episode.verdict is None
    (recording,) = read_recordings(played.report.run_dir)
    assert recording.episode.episode_id == "debug/t1/0" and recording.origin.endswith("episodes/debug.jsonl#0")


def test_quitting_before_the_judge_keeps_the_answer(play):
    played = play(["judge", "quit"], [RIGHT])
    assert played.episodes[0].output is not None and played.episodes[0].output.answer == RIGHT
    assert played.episodes[0].stop_reason is StopReason.CANCELLED


def test_commands_that_make_no_sense_say_so(play):
    played = play(["shwo tokens", "sample", "show", "show verdict", "use 3", "next", "use 3", "finish"], [RIGHT])
    assert "Did you mean 'show'?" in played.after("shwo tokens")
    assert "sample works after a call only" in played.after("sample")
    assert "messages, tokens, tools" in played.after("show")
    assert "still running" in played.after("show verdict")
    assert "there is no answer '3'" in played.screen.rpartition("(astune) use 3\n")[2]
    assert played.episodes[0].reward == 1


def test_at_the_end_of_the_commands_the_run_goes_on(play):
    played = play(["next"], [CALL, RIGHT])
    assert "no more commands" in played.screen and played.report.status == "completed"


def test_commands_come_from_a_pipe_too(play):
    played = play([], [RIGHT], stdin="next\nshow answers\nfinish\n")
    assert RIGHT in played.after("show answers")


def test_the_next_episode_stops_again_after_continue_but_not_after_finish(play):
    twice = "astune.debug.num_repeat=2"
    assert play(["continue", "finish"], [RIGHT, RIGHT], twice).screen.count("── stopped") == 2
    assert play(["finish"], [RIGHT, RIGHT], twice).screen.count("── stopped") == 1


def test_a_recorded_session_is_played_again_with_its_edits(play, tmp_path):
    first = play(["next", 'edit /call calculator {"expression": "1 + 1"}', "finish"], [CALL, RIGHT])
    file = first.report.run_dir / "episodes" / "debug.jsonl"
    again = play(["next", "show answers", "finish"], [], f"astune.debug.model=replay:{file}")
    assert "replay: equal to the recording" in again.screen
    assert again.episodes[0].turns == first.episodes[0].turns
    assert "1 + 1" in again.after("show answers")
    changed = play(["next", f"edit {RIGHT}", "finish"], [], f"astune.debug.model=replay:{file}")
    assert "replay: not as recorded" in changed.screen


def test_a_filter_chooses_among_recorded_episodes(play):
    first = play(["finish"], [RIGHT, WRONG], "astune.debug.num_repeat=2")
    folder = first.report.run_dir
    again = play(["finish"], [], f"astune.debug.model=replay:{folder}", "astune.debug.filter=reward<0.5")
    assert [episode.reward for episode in again.episodes] == [0]
    with pytest.raises(TaskError, match="none of its 2 recorded episodes passes the filter 'reward>3'"):
        play([], [], f"astune.debug.model=replay:{folder}", "astune.debug.filter=reward>3")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("astune.debug.tasks=[t3]", "there is no task 't3' among the 2 training tasks. There is: t"),
        ("astune.debug.index=2", "2 is too large; there are 2 training tasks"),
        ("astune.debug.filter=passed", "it needs --model replay:FILE"),
    ],
)
def test_a_choice_of_nothing_says_what_there_is(play, override, message):
    with pytest.raises(TaskError) as error:
        play([], [], override)
    assert message in str(error.value)


def test_tasks_are_chosen_by_id_and_by_number(play):
    for override in ("astune.debug.tasks=[t2]", "astune.debug.index=1"):
        assert [episode.task.task_id for episode in play(["finish"], ["12"], override).episodes] == ["t2"]


def test_one_optimizer_step_is_shown_after_a_group(play):
    pytest.importorskip("torch")
    from astune.backbone.debug.sources.debug_model import choose_model

    conf = load_config(tutorial_dir() / "math_agent" / "demo.yaml", backbone="debug").config.astune
    local = choose_model(conf, Terminal(Console(file=io.StringIO()), []))
    played = play(["finish"], [], "astune.debug.with_update=true", "astune.debug.num_repeat=4", model=local)
    assert "update  one training step of these attempts alone" in played.screen
    with pytest.raises(ConfigError, match="scripted has no weights here"):
        play(["finish"], [RIGHT], "astune.debug.with_update=true")
