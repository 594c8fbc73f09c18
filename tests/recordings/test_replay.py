"""A recorded episode that is played again gives the same recording, byte for byte."""

import asyncio
import importlib
import json
from dataclasses import replace

import pytest

from astune import WorkflowOutput
from astune.clients.chat import ChatClient
from astune.config.chat_models import AuxiliaryModelConfig
from astune.config.schema import Config
from astune.context_tracker.calls import ChatRequest
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.monitor.episodes import EpisodeRecord, episode_to_row
from astune.recordings.diff import without_timing
from astune.recordings.recording import pick_recording
from astune.recordings.replay import EpisodeReplay, ReplayObserver, same_episode
from astune.testing import ScriptedChatServer, ScriptedPolicy, write_test_model_dir
from astune.testing.chat_server import chat_completion
from astune.training.rollout_setup import NoPolicy
from astune.types import Sampling, StopReason
from tests.agents.answers import ANSWERS, script
from tests.recordings import habits
from tests.recordings.habits import HABITS, TASKS, HabitPolicy, user
from tests.recordings.played import installed_line, kept, play, replay, run, setup_of
from tests.rows import each_row

EPISODES = [(name, number) for name in HABITS for number in range(len(TASKS))]


def as_recorded(episode, tmp_path):
    """The episode as it is read back."""
    return pick_recording(kept(tmp_path / episode.task.task_id.replace("/", "_"), Config(), episode)).episode


def content(episode):
    """The line of the episode, without its seconds and without where in the code an error was raised."""
    return json.dumps(episode_to_row(EpisodeRecord(0, "debug", without_timing(episode))))


def assert_replays(recorded, again, chat_format):
    assert same_episode(recorded, again, chat_format.decode) is None
    assert content(recorded) == content(again)


def critic(server, **fields):
    settings = AuxiliaryModelConfig(base_url=server.base_url, model="m", max_retries=0, **fields)
    return ChatClient("critic", settings, key="astune.rollout.auxiliary_models.critic")


def test_there_are_enough_of_them():
    assert len(EPISODES) + min(map(len, ANSWERS.values())) >= 50


@each_row(("name", "number"), EPISODES)
def test_an_episode_of_every_habit_replays_byte_for_byte(name, number, chat_format, tmp_path):
    habit, task = HABITS[name], TASKS[number]
    with ScriptedChatServer(lambda body: "Hm, ☂.") as server:
        options = {**habit.options, "auxiliary_models": {"critic": critic(server)}}
        recorded = play(habit.workflow, (), chat_format, task=task, policy=HabitPolicy(chat_format), **options)
        asked = len(server.requests)
        again = replay(habit.workflow, as_recorded(recorded, tmp_path), chat_format, **options)
        assert len(server.requests) == asked
    assert_replays(recorded, again, chat_format)


def test_the_habits_are_what_they_say(chat_format):
    def episode(name):
        habit = HABITS[name]
        return play(habit.workflow, (), chat_format, policy=HabitPolicy(chat_format), **habit.options)

    forked, parallel, same, best = (episode(name) for name in ("forked", "parallel", "same_question", "best_of_n"))
    assert len(forked.timelines) == 3
    for shuffled in (parallel, same):
        assert [turn.call for turn in shuffled.turns] != sorted(turn.call for turn in shuffled.turns)
    assert len(best.turns) == 6
    assert [turn.excluded for turn in episode("retried").turns] == ["retried", None]
    assert episode("stopped").turns[0].finish_reason == "stop"
    assert episode("raises").error.kind == "LookupError"
    assert episode("endless").stop_reason is StopReason.MAX_TURNS
    assert episode("out_of_tokens").stop_reason is StopReason.MAX_TOKENS
    assert episode("cannot_be_judged").error.stage == "judge"
    assert (episode("engine_fails").error.stage, episode("engine_fails").metrics["lost_calls"]) == ("policy", 1)
    assert episode("gives_up").metrics["lost_calls"] == 1


@each_row("name", ANSWERS.get(installed_line(), ()))
def test_a_real_agent_replays_byte_for_byte(name, line, chat_format, tmp_path):
    workflow = getattr(importlib.import_module(f"tests.agents.agentscope{line}_workflows"), name)
    recorded = play(workflow, script(ANSWERS[line][name]), chat_format)
    assert recorded.stop_reason is StopReason.COMPLETED
    again = replay(workflow, as_recorded(recorded, tmp_path), chat_format)
    assert_replays(recorded, again, chat_format)


class Watching(ReplayObserver):
    """Looks at each answer for a while before the tracker gets it, as a debugger does."""

    def source(self, name, source):
        return Looked(super().source(name, source))


class Looked:
    def __init__(self, source):
        self.is_policy, self._source = source.is_policy, source

    async def answer(self, call, sampling):
        answer = await self._source.answer(call, sampling)
        await asyncio.sleep(0.02 * (call.number % 4))
        return answer


@pytest.mark.parametrize("name", ["parallel", "same_question", "best_of_n"])
def test_turns_end_in_the_recorded_order_though_someone_holds_answers_back(name, chat_format):
    recorded = play(HABITS[name].workflow, (), chat_format, policy=HabitPolicy(chat_format))
    setup = setup_of(HABITS[name].workflow, NoPolicy(8192), chat_format)
    watching = Watching(EpisodeReplay(recorded))
    assert_replays(recorded, run(replace(setup, observer=watching), recorded.task), chat_format)


def test_what_another_model_gave_is_given_back_as_it_was(chat_format):
    """Its own prompt ids, and a message that our parser would read otherwise."""
    ids = chat_format.encode("Well.")
    logprobs = {"content": [{"token": "?", "logprob": -0.5, "bytes": None, "top_logprobs": []} for _ in ids]}
    call = {"id": "x1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    prompt_ids = []

    def answered(body):
        prompt_ids[:] = [5, *chat_format.encode(chat_format.render(body["messages"], body["tools"]))]
        return chat_completion(
            {"content": "Well.", "tool_calls": [call]},
            finish_reason="tool_calls",
            choice={"token_ids": ids, "logprobs": logprobs},
            prompt_token_ids=prompt_ids,
        )

    async def workflow(task, tuner):
        asked = ChatRequest([user(task.query)], tools=[habits.WEATHER])
        message = (await tuner.chat(asked, name="twin", source="critic")).message
        return WorkflowOutput(answer=message, reward=1.0)

    with ScriptedChatServer(answered) as server:
        options = {"auxiliary_models": {"critic": critic(server, trainable=True)}}
        recorded = play(workflow, (), chat_format, policy=HabitPolicy(chat_format), **options)
    (turn,) = recorded.turns
    assert (turn.exact, turn.prompt_ids, turn.excluded) == (True, tuple(prompt_ids), None)
    again = replay(workflow, recorded, chat_format, **options)
    assert_replays(recorded, again, chat_format)
    assert again.output.answer["tool_calls"][0]["id"] == "x1"


def test_agents_that_begin_in_another_order_get_their_own_answers(chat_format):
    def asking(*names):
        async def workflow(task, tuner):
            work = [tuner.chat(ChatRequest([user(f"I am {name}")]), name=name) for name in names]
            answers = [answer.message["content"] for answer in await asyncio.gather(*work)]
            return WorkflowOutput(answer=sorted(answers), reward=1.0)

        return workflow

    recorded = play(asking("a", "b", "c"), (), chat_format, policy=HabitPolicy(chat_format))
    again = replay(asking("c", "a", "b"), recorded, chat_format)
    assert (again.error, again.output, again.timelines) == (None, recorded.output, recorded.timelines)
    assert same_episode(recorded, again).startswith("turns[0].call: ")


# ------------------------------------------------------------------------------------------------ what was changed


def replayed(workflow, changed, chat_format, **options):
    """What is said of an episode of `workflow` that is played again with `changed` in its place."""
    recorded = play(workflow, (), chat_format, policy=HabitPolicy(chat_format), **options)
    again = replay(changed, recorded, chat_format, **{"patience": 0.1, **options})
    return same_episode(recorded, again, chat_format.decode)


def test_a_message_that_was_changed_is_shown_both_ways(chat_format):
    async def changed(task, tuner):
        return await habits.turns(replace(task, query="What is 6 * 9?"), tuner)

    said = replayed(habits.turns, changed, chat_format)
    assert "model call 1 of 'agent' has parted from the recording: prompt, message 0 (user)" in said
    assert "recorded 'What is 6 * 7?', now 'What is 6 * 9?'" in said


def test_a_tool_that_gives_another_result_is_named_so(chat_format):
    async def changed(task, tuner):
        return await habits.tool(replace(task, task_id="t9"), tuner)

    said = replayed(habits.tool, changed, chat_format, judge=habits.LengthJudge())
    assert "tool result" in said and "'sunny in t1', now 'sunny in t9'" in said


def test_another_template_is_shown_by_the_first_token(chat_format, tmp_path):
    folder = write_test_model_dir(tmp_path / "other", context_length=8192)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant:\\n' }}"))
    recorded = play(habits.turns, (), chat_format, policy=HabitPolicy(chat_format))
    said = same_episode(recorded, replay(habits.turns, recorded, ChatFormat.load(folder)))
    assert "prompt, token" in said and "assistant" in said


def test_a_call_too_many_and_a_call_too_few_are_told(chat_format):
    async def more(task, tuner):
        await habits.turns(task, tuner)
        await tuner.chat(ChatRequest([user("One more")]))

    async def fewer(task, tuner):
        await tuner.chat(ChatRequest([user(task.query)]))
        return WorkflowOutput(answer="", reward=0.5)

    assert "only 3 answers in it, and all are given" in replayed(habits.turns, more, chat_format)
    assert replayed(habits.turns, fewer, chat_format) == (
        "after 1 turns: recorded a call of agent, now no more model calls"
    )


def test_another_agent_at_the_same_call_is_named(chat_format):
    async def changed(task, tuner):
        await tuner.chat(ChatRequest([user(task.query)]), name="somebody")

    assert "recorded was a call of 'agent'" in replayed(habits.turns, changed, chat_format)


def test_a_workflow_that_answers_otherwise_is_told_at_the_answer(chat_format):
    async def changed(task, tuner):
        return replace(await habits.turns(task, tuner), answer="Something else", response="Something else")

    assert replayed(habits.turns, changed, chat_format).startswith("answer: recorded ")


def test_a_call_that_waits_for_one_that_never_comes_gives_up_and_says_for_which(chat_format):
    async def changed(task, tuner):
        """Asks agent3, whose first answer came after that of others, alone."""
        await tuner.chat(ChatRequest([user(f"{task.query} (agent{last})")]), name=f"agent{last}")

    recorded = play(habits.parallel, (), chat_format, policy=HabitPolicy(chat_format))
    last = recorded.turns[3].agent[-1]
    said = same_episode(recorded, replay(changed, recorded, chat_format, patience=0.1))
    assert "waited for call" in said and repr(recorded.turns[0].agent) in said


def test_a_call_that_was_lost_in_the_recording_has_no_answer(chat_format):
    async def patient(task, tuner):
        await tuner.chat(ChatRequest([user(task.query)]))
        await tuner.chat(ChatRequest([user("hang")]), name="slow")

    said = replayed(habits.gives_up, patient, chat_format)
    assert said == "the recording has no answer for model call 2 of 'slow': it was lost there"


# ---------------------------------------------------------------------------------------------------- going on live


def test_an_episode_goes_on_with_the_model_from_a_call_on(chat_format):
    recorded = play(habits.turns, (), chat_format, policy=HabitPolicy(chat_format))
    again = replay(habits.turns, recorded, chat_format, until=1, policy=ScriptedPolicy(["A", "B"], chat_format))
    assert again.turns[0] == recorded.turns[0]
    assert [turn.response["content"] for turn in again.turns[1:]] == ["A", "B"]
    assert again.error is None


def test_a_replay_says_when_it_has_gone_live(chat_format):
    recorded = play(habits.turns, (), chat_format, policy=HabitPolicy(chat_format))
    seen = []

    class Noting(ScriptedPolicy):
        async def generate(self, prompt_ids, sampling):
            seen.append(playing.live)
            return await super().generate(prompt_ids, sampling)

    playing = EpisodeReplay(recorded, until=2)
    setup = setup_of(habits.turns, Noting(["A"], chat_format), chat_format)
    assert not playing.live
    run(replace(setup, observer=ReplayObserver(playing)), recorded.task)
    assert seen == [True]


def test_an_answer_that_was_edited_stands_in_place_of_the_recorded_one(chat_format):
    recorded = play(habits.turns, (), chat_format, policy=HabitPolicy(chat_format))
    other = asyncio.run(ScriptedPolicy(["Edited."], chat_format).generate((), Sampling(max_tokens=64)))
    playing = EpisodeReplay(recorded, until=2, answers={1: other})
    setup = setup_of(habits.turns, ScriptedPolicy(["Live."], chat_format), chat_format)
    again = run(replace(setup, observer=ReplayObserver(playing)), recorded.task)
    assert [turn.response["content"] for turn in again.turns[1:]] == ["Edited.", "Live."]
    assert again.turns[0] == recorded.turns[0]


def test_an_episode_that_was_cut_short_is_compared_as_far_as_it_went(chat_format):
    recorded = play(habits.turns, (), chat_format, policy=HabitPolicy(chat_format))
    cut = replace(recorded, turns=recorded.turns[:1], timelines=(), stop_reason=StopReason.CANCELLED, verdict=None)
    again = replay(habits.turns, cut, chat_format)
    assert same_episode(cut, replace(again, turns=again.turns[:1]), chat_format.decode) is None
    assert same_episode(cut, again, chat_format.decode) is None
