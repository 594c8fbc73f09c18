"""Whole episodes of tasks with an `env_type`: whatever the workflow and the service do, no reward is made up and no
instance is left behind."""

import asyncio
import contextlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest

from astune.clients.env_service import EnvServiceClient
from astune.clients.own_env_service import own_service
from astune.config.judges import TaskJudgeConfig
from astune.config.tasks import EnvServiceConfig
from astune.context_tracker.tracker import ChatRequest
from astune.errors import ConfigError, EnvServiceError, RolloutError, WorkflowError
from astune.rollout.environment import check_environments
from astune.rollout.episode import run_episode
from astune.rollout.group import run_group
from astune.task_judge.env_service_as_judge import EnvServiceJudge
from astune.testing import EnvServer
from astune.types import Sampling, StopReason, Task, WorkflowOutput
from tests.environment.corridor import Corridor
from tests.passing_time import pass_time

SERVE = f"{Path(__file__).parents[1] / 'environment' / 'corridor.py'}:Corridor"
TASK = Task("a", "", env_type="corridor")
SAMPLING = Sampling(max_tokens=64)


@pytest.fixture
def corridor():
    return Corridor()


@pytest.fixture
def service(corridor):
    """The address of a service in this process, none of whose instances is alive afterwards."""
    with EnvServer([corridor]) as server:
        yield server.url
        assert live_instances(server.url) == 0


def live_instances(url):
    return httpx.get(f"{url}/health").json()["live_instances"]


async def until(condition):
    async def waits():
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(waits(), 60)


@pytest.fixture
def make(make_setup):
    """A setup whose tasks have their environments at `url`, and whose judge is the environment."""

    def make(url, workflow, answers=(), token=None, **options):
        judge = EnvServiceJudge(TaskJudgeConfig())
        environments = EnvServiceClient(url, token=token, retries=1)
        return make_setup(workflow, answers, judge=judge, environments=environments, **options)

    return make


def run(setup, task=TASK, name="train/1/a/0"):
    return run_episode(task, setup, episode_id=name, seed=1, sampling=SAMPLING)


async def fine(env):
    await env.step("right")


async def fails(env):
    await env.step("raise")


async def loses_the_instance(env):
    await EnvServiceClient(env.instance.url).release(env.instance)
    await env.step("right")


async def dies(env):
    await env.step("die")


def meets(trouble, then):
    """A workflow that does not look at what its environment raises, and then returns, raises or hangs."""

    async def workflow(task, tuner):
        with contextlib.suppress(EnvServiceError):
            await trouble(tuner.environment)
        workflow.met.set()
        if then == "raises":
            raise ValueError("a bug")
        if then in ("times out", "is cancelled"):
            await asyncio.Event().wait()
        return WorkflowOutput(answer="done")

    workflow.met = asyncio.Event()
    return workflow


async def end_of(make, url, trouble, then, others=()):
    """(stop reason, stage of the error, score) of an episode whose workflow meets the trouble; it has no verdict
    unless all went well. Time passes for all episodes, so that `others` end before it does."""
    workflow = meets(trouble, then)
    setup = make(url, workflow, episode_timeout=600.0)
    episode = asyncio.ensure_future(run(setup))
    if then == "is cancelled":
        await workflow.met.wait()
        episode.cancel()
        with pytest.raises(asyncio.CancelledError):
            await episode
        return StopReason.CANCELLED
    if then == "times out":
        await workflow.met.wait()
        await asyncio.gather(*others)
        pass_time(601)
    ended = await episode
    assert (ended.verdict is None) == (ended.stop_reason is not StopReason.COMPLETED)
    return ended.stop_reason, ended.error and ended.error.stage, ended.env_score


BROKEN = (StopReason.ERROR, "environment", None)
ENDS = {
    "returns": (StopReason.COMPLETED, None, 1 / 3),
    "raises": (StopReason.ERROR, "workflow", None),
    "times out": (StopReason.TIMEOUT, "workflow", None),
    "is cancelled": StopReason.CANCELLED,
}


@pytest.mark.parametrize("then", ENDS)
@pytest.mark.parametrize("trouble", [fine, fails, loses_the_instance])
async def test_how_an_episode_ends(make, service, trouble, then):
    broken = trouble is not fine and then != "is cancelled"
    assert await end_of(make, service, trouble, then) == (BROKEN if broken else ENDS[then])


async def test_how_episodes_end_whose_service_is_killed(make):
    together = asyncio.Barrier(len(ENDS))

    async def killed(env):
        await together.wait()
        await dies(env)

    with own_service(EnvServiceConfig(serve=SERVE)) as service:
        end = partial(end_of, partial(make, token=service.own_token), service.env_url, killed)
        others = [asyncio.ensure_future(end(then)) for then in ("returns", "raises", "is cancelled")]
        last = await end("times out", others)
    assert [await other for other in others] + [last] == [BROKEN, BROKEN, StopReason.CANCELLED, BROKEN]


@pytest.mark.fault(
    "Tools and environments",
    "the environment service is killed in the middle of episodes",
    "they end as errors with the cause, without rewards",
)
async def test_a_group_whose_service_is_killed_is_errors_with_the_cause(make, caplog):
    entered = []

    async def workflow(task, tuner):
        entered.append(await tuner.environment.step("right"))
        await until(lambda: len(entered) == 8)
        await tuner.environment.step("die")
        return WorkflowOutput(answer="done", reward=1.0)

    with own_service(EnvServiceConfig(serve=SERVE)) as service:
        group = await run_group(
            TASK, 8, make(service.env_url, workflow, token=service.own_token), seed=1, sampling=SAMPLING
        )
        await until(lambda: "has ended" in caplog.text)
    assert [episode.stop_reason for episode in group.episodes] == [StopReason.ERROR] * 8
    assert all(episode.reward is None and episode.error.kind == "EnvServiceError" for episode in group.episodes)
    assert all(
        "step" in episode.error.message and service.env_url in episode.error.message for episode in group.episodes
    )
    assert "that this run started has ended (exit code -9)" in caplog.text


async def test_the_episodes_task_has_the_environments_question_and_the_groups_has_not(make, service):
    seen = []

    async def workflow(task, model, tuner):
        seen.append(task)
        await tuner.environment.step("right")
        return WorkflowOutput(response="done")

    pytest.importorskip("agentscope")
    group = await run_group(TASK, 2, make(service, workflow), seed=1, sampling=SAMPLING)
    assert [episode.reward for episode in group.episodes] == [1 / 3] * 2
    assert group.task == TASK
    assert {episode.task.query for episode in group.episodes} == {"Go right."}
    assert [message["role"] for message in group.episodes[0].task.messages] == ["system", "user"]
    assert [row["query"] for row in seen] == ["Go right."] * 2


async def test_equal_episodes_at_one_service_do_not_meet(make, service):
    async def workflow(task, tuner):
        names.append(tuner.environment.instance.instance_id)
        await tuner.environment.step("right")
        await until(lambda: len(names) == 2)
        return WorkflowOutput(answer="done")

    names = []
    setup = make(service, workflow)
    episodes = await asyncio.gather(run(setup), run(setup))
    assert [episode.env_score for episode in episodes] == [1 / 3] * 2
    assert len(set(names)) == 2 and all(name.startswith("train/1/a/0-") for name in names)


@pytest.mark.fault(
    "Tools and environments",
    "an environment cannot be made",
    "the episode ends before its workflow begins, with the reason",
)
@pytest.mark.parametrize("env_type", ["corridor", "corrido"])
async def test_an_environment_that_cannot_be_made_ends_the_episode_before_its_workflow(make, service, env_type):
    async def workflow(task, tuner):
        raise AssertionError("it must not run")

    episode = await run(make(service, workflow), Task("broken", "", env_type=env_type))
    assert (episode.stop_reason, episode.error.stage, episode.turns) == (StopReason.ERROR, "environment", ())
    assert ("the walls fell in" if env_type == "corridor" else "corridor") in episode.error.message


async def test_making_an_environment_does_not_count_as_the_workflows_time(make, service):
    async def workflow(task, tuner):
        return WorkflowOutput(answer="done")

    setup = make(service, workflow, episode_timeout=0.3, environment_params={"seconds": 0.6})
    assert (await run(setup)).stop_reason is StopReason.COMPLETED


@pytest.mark.fault(
    "Tools and environments", "an episode is cancelled while its environment is made", "no instance is left behind"
)
async def test_an_episode_that_is_cancelled_while_its_environment_is_made_leaves_none(make, service, corridor):
    async def workflow(task, tuner):
        raise AssertionError("it must not run")

    before = httpx.get(f"{service}/metrics").text
    episode = asyncio.ensure_future(run(make(service, workflow, environment_params={"seconds": 0.5})))
    assert await asyncio.to_thread(corridor.something_slow_began.wait, 60)
    episode.cancel()
    with pytest.raises(asyncio.CancelledError):
        await episode
    assert "astune_env_instances_created_total 0" in before
    await until(lambda: "astune_env_instances_released_total 1" in httpx.get(f"{service}/metrics").text)


async def test_an_episode_that_is_cancelled_in_a_step_leaves_no_environment(make, service, corridor):
    async def workflow(task, tuner):
        await tuner.environment.step("sleep")

    episode = asyncio.ensure_future(run(make(service, workflow)))
    assert await asyncio.to_thread(corridor.something_slow_began.wait, 60)
    episode.cancel()
    with pytest.raises(asyncio.CancelledError):
        await episode
    await until(lambda: live_instances(service) == 0)


async def test_a_cancelled_agent_that_goes_on_after_its_step_was_cut_short_reaches_neither_model_nor_environment(
    make, service, corridor
):
    refused = []

    async def workflow(task, tuner):
        with contextlib.suppress(asyncio.CancelledError):  # as AgentScope's agents do
            await tuner.environment.step("sleep")
        for call in (tuner.environment.step("right"), tuner.chat(ChatRequest([{"role": "user", "content": "Hello"}]))):
            try:
                await call
            except RolloutError as error:
                refused.append(str(error))

    episode = asyncio.ensure_future(run(make(service, workflow, answers=["Never said."])))
    assert await asyncio.to_thread(corridor.something_slow_began.wait, 60)
    episode.cancel()
    with pytest.raises(asyncio.CancelledError):
        await episode
    assert len(refused) == 2 and all("over" in text for text in refused)
    await until(lambda: live_instances(service) == 0)


@pytest.mark.fault(
    "Tools and environments", "a left-behind agent acts after the end of its episode", "its steps are refused"
)
async def test_after_the_episode_nothing_can_be_done_in_its_environment(make, service):
    kept = []

    async def workflow(task, tuner):
        kept.append(tuner.environment)
        with pytest.raises(WorkflowError, match="has its environment"):
            tuner.use_environment(service, "another")
        return WorkflowOutput(answer="done", reward=0.5)

    episode = await run(make(service, workflow))
    assert (episode.reward, episode.env_score) == (0.5, 0.0)
    with pytest.raises(Exception, match="the episode is over"):
        await kept[0].step("right")


async def test_the_service_that_failed_first_is_the_cause_and_no_more_models_are_asked(make, service):
    async def workflow(task, tuner):
        client = tuner.openai_client()
        ask = {"model": "any", "messages": [{"role": "user", "content": "Hello"}]}
        await client.chat.completions.create(**ask)
        for _ in range(2):
            with contextlib.suppress(EnvServiceError):
                await tuner.environment.step("raise")
        await client.chat.completions.create(**ask)

    episode = await run(make(service, workflow, answers=["Hello", "Never said."]))
    assert (episode.stop_reason, episode.error.stage, len(episode.turns)) == (StopReason.ERROR, "environment", 1)
    assert "the floor is missing" in episode.error.message


def test_tasks_with_an_env_type_need_a_service():
    check_environments([Task("plain", "q")], EnvServiceConfig())
    tasks = [Task("plain", "q"), replace(TASK, place="train.jsonl:17")]
    with pytest.raises(ConfigError, match=r"'a' \(train\.jsonl:17\).*'corridor'.*env_service\.env_url"):
        check_environments(tasks, EnvServiceConfig())
    check_environments(tasks, EnvServiceConfig(env_url="http://127.0.0.1:1"))
    check_environments(tasks, EnvServiceConfig(serve="gymnasium:FrozenLake-v1"))
