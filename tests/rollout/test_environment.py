"""An episode whose workflow has created an environment at a service, which scores it and must get it back."""

import asyncio
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from astune.config.judges import TaskJudgeConfig
from astune.errors import RolloutError, WorkflowError
from astune.monitor.episodes import EpisodeRecord, episode_from_row, episode_to_row
from astune.recordings.diff import without_timing
from astune.rollout import environment
from astune.rollout.episode import run_episode
from astune.task_judge.env_service_as_judge import EnvServiceJudge
from astune.testing.chat_server import QuietServer
from astune.types import Sampling, StopReason, Task, WorkflowOutput
from tests.passing_time import pass_time

TASK = Task("t1", "Win.", env_type="shop")


class Service:
    """An environment service that answers `evaluate` with a status and a text after some seconds."""

    def __init__(self, url, server):
        self.url, self.asked = url, []
        self.status, self.text, self.seconds = 200, '{"data": 0.25}', 0.0
        self.hung_up = threading.Event()
        server.service = self

    @property
    def actions(self):
        return [action for action, _ in self.asked]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        service, action = self.server.service, self.path.rpartition("/")[2]
        service.asked.append((action, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        status, text = (200, '{"success": true}') if action == "release" else (service.status, service.text)
        if action == "evaluate":
            service.hung_up.wait(service.seconds)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args):
        pass


async def until(condition):
    async def waits():
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(waits(), 60)


@contextmanager
def running_service():
    with QuietServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        service = Service(f"http://127.0.0.1:{server.server_address[1]}", server)
        try:
            yield service
        finally:
            service.hung_up.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def service():
    with running_service() as service:
        yield service


@pytest.fixture
def run_in(make_setup, service):
    async def run(workflow=None, **options):
        async def plays(task, tuner):
            tuner.use_environment(service.url, "i-1")
            return WorkflowOutput(answer="done")

        setup = make_setup(workflow or plays, judge=EnvServiceJudge(TaskJudgeConfig()), **options)
        return await run_episode(TASK, setup, episode_id="test/t1/0", seed=1, sampling=Sampling(max_tokens=64))

    return run


async def test_the_score_is_asked_for_once_and_the_instance_released(run_in, service):
    episode = await run_in()
    envelope = {"env_type": "shop", "task_id": "t1", "instance_id": "i-1"}
    assert service.asked == [("evaluate", {**envelope, "params": {"sparse": False}}), ("release", envelope)]
    assert (episode.env_score, episode.env_error) == (0.25, "")
    assert (episode.reward, episode.verdict.passed, episode.verdict.judged_by) == (0.25, False, "EnvServiceJudge")


@pytest.mark.parametrize(
    ("text", "score"), [('{"data": 1}', 1.0), ('{"success": true, "data": -2.5}', -2.5), ('{"data": 0}', 0.0)]
)
async def test_scores_are_numbers_as_they_are(run_in, service, text, score):
    service.text = text
    assert (await run_in()).reward == score


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (500, "out of order", "status 500: 'out of order'"),
        (200, "out of order", "not JSON"),
        (200, "[0.5]", "'[0.5]'"),
        (200, '{"success": false, "data": 0.5}', '"success": false'),
        (200, '{"data": true}', "expected a finite number"),
        (200, '{"data": "0.5"}', "expected a finite number"),
        (200, '{"data": NaN}', "NaN is no number"),
        (200, "{}", "expected a finite number"),
    ],
)
async def test_a_service_that_gives_no_score_gives_no_reward(run_in, service, caplog, status, text, said):
    service.status, service.text = status, text
    episode = await run_in()
    assert episode.env_score is None and said in episode.env_error and said in caplog.text
    assert episode.verdict is None and episode.error.stage == "judge" and episode.env_error in episode.error.message
    assert service.actions == ["evaluate", "release"]


async def test_a_service_that_is_slow_is_waited_for_as_long_as_a_judge(run_in, service):
    service.seconds = 600.0
    episode = asyncio.ensure_future(run_in(judge_timeout=500.0))
    await until(lambda: service.actions == ["evaluate"])
    pass_time(501)
    assert "no answer within 500 s" in (await episode).env_error
    assert service.actions == ["evaluate", "release"]


async def test_a_service_that_is_gone_is_told_of(run_in, service, caplog):
    async def plays(task, tuner):
        tuner.use_environment("http://127.0.0.1:1", "i-1")
        return WorkflowOutput(answer="done")

    episode = await run_in(plays)
    assert "cannot be reached" in episode.env_error
    assert "environment i-1 was not released" in caplog.text


@pytest.mark.fault(
    "Tools and environments",
    "a workflow raises or hangs in the middle of an environment",
    "its instance is released, and no score is asked for",
)
async def test_of_a_workflow_that_raises_or_hangs_no_score_is_asked_and_its_instance_released(run_in, service):
    async def raises(task, tuner):
        tuner.use_environment(service.url, "i-1")
        raise ValueError("a bug")

    async def hangs(task, tuner):
        tuner.use_environment(service.url, "i-2")
        await asyncio.Event().wait()

    raised, hung = await run_in(raises), await run_in(hangs, episode_timeout=0.1)
    assert (raised.stop_reason, raised.env_score, raised.verdict) == (StopReason.ERROR, None, None)
    assert (hung.stop_reason, hung.env_score, hung.verdict) == (StopReason.TIMEOUT, None, None)
    assert service.actions == ["release"] * 2


async def test_an_episode_that_is_cancelled_gives_its_instance_back_first(run_in, service):
    used = asyncio.Event()

    async def hangs(task, tuner):
        tuner.use_environment(service.url, "i-1")
        used.set()
        await asyncio.Event().wait()

    run = asyncio.ensure_future(run_in(hangs))
    await used.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert service.actions == ["release"]


async def test_an_episode_that_is_cancelled_while_it_is_scored_gives_its_instance_back_once(run_in, service):
    service.seconds = 30.0
    run = asyncio.ensure_future(run_in())
    await until(lambda: service.asked)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert service.actions == ["evaluate", "release"]


@pytest.mark.fault("Tools and environments", "an episode is cancelled twice", "its instance is released all the same")
async def test_being_cancelled_twice_does_not_stop_the_release(run_in, service, monkeypatch):
    going, may_go = asyncio.Event(), asyncio.Event()
    release = environment._release

    async def slowly(instance, setup):
        going.set()
        await may_go.wait()
        await release(instance, setup)

    monkeypatch.setattr(environment, "_release", slowly)
    monkeypatch.setattr(environment, "CANCELLED_SECONDS", 0.05)
    run = asyncio.ensure_future(run_in())
    await going.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    may_go.set()
    await until(lambda: "release" in service.actions)
    assert service.actions == ["evaluate", "release"]


async def test_an_episode_without_environment_asks_nobody(run_in, service):
    async def plays(task, tuner):
        return WorkflowOutput(answer="done")

    episode = await run_in(plays)
    assert service.asked == [] and (episode.env_score, episode.env_error) == (None, "")
    assert "env_type" in episode.error.message and "tuner.use_environment" in episode.error.message


async def test_an_episode_has_one_environment_and_none_after_its_end(run_in, service):
    tuners = []

    async def twice(task, tuner):
        tuners.append(tuner)
        tuner.use_environment(service.url, "i-1", env_type="game", task_id="g-9")
        with pytest.raises(WorkflowError, match="has its environment, 'i-1' at http"):
            tuner.use_environment(service.url, "i-2")
        return WorkflowOutput(answer="done")

    await run_in(twice)
    assert [(body["instance_id"], body["env_type"], body["task_id"]) for _, body in service.asked] == [
        ("i-1", "game", "g-9")
    ] * 2
    with pytest.raises(RolloutError, match="is over"):
        tuners[0].use_environment(service.url, "i-3")


@pytest.mark.parametrize(("url", "instance_id"), [("127.0.0.1:80", "i-1"), ("http://127.0.0.1:80", "")])
async def test_what_is_no_instance_is_refused(run_in, url, instance_id):
    async def plays(task, tuner):
        tuner.use_environment(url, instance_id)

    episode = await run_in(plays)
    assert episode.error.kind == "WorkflowError" and "begins with http://" in episode.error.message


async def test_the_score_is_kept_in_the_record_of_the_episode(run_in, service):
    scored = await run_in()
    service.status = 500
    for episode in (scored, await run_in()):
        row = json.loads(json.dumps(episode_to_row(EpisodeRecord(1, "train", episode))))
        read = episode_from_row(row).episode
        assert (read.env_score, read.env_error) == (episode.env_score, episode.env_error)
    row = episode_to_row(EpisodeRecord(1, "train", scored))
    del row["env_score"], row["env_error"]  # as older runs wrote them
    assert without_timing(episode_from_row(row).episode).env_score is None
