"""verl's training workers (FSDP2 on gloo) and servers on a real Ray. All tests share one engine and go on from each
other's weights; the last ones kill its processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray import PlacementGroupID
from ray.util.placement_group import PlacementGroup
from safetensors.torch import load_file

from astune.algorithm import to_samples
from astune.algorithm.advantage import grpo
from astune.backbone.local.engine import LocalBackbone, load_policy
from astune.backbone.local.engine import load_engine as load_local
from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.model import save_model
from astune.backbone.policies.compared import whole_row
from astune.backbone.ray_cluster.nodes import live_nodes
from astune.backbone.verl import engine as verl_engine
from astune.backbone.verl.backbone import VerlBackbone
from astune.backbone.verl.servers.cpu_server import server_name
from astune.backbone.verl.servers.policy import ServersPolicy
from astune.backbone.verl.servers.publish import PublishedWeights
from astune.config.load import load_config
from astune.config.schema import AstuneConfig
from astune.errors import ContextOverflow, TrainingError, WorkflowError
from astune.monitor import RunDir, read_episodes, read_metrics
from astune.monitor.episodes import EpisodeRecord
from astune.rollout.setup import Attempt
from astune.support.resources import tiny_model_dir
from astune.support.run_log import command_log, open_log
from astune.training.candidates import Candidate
from astune.training.engine import Engine, LoadEngine
from astune.training.held_out import Evaluation
from astune.training.rollout_setup import sampling_for, weighting_for
from astune.training.schedule import learning_rate
from astune.training.standalone import play
from astune.training.start import run_training
from astune.training.tasks import read_tasks
from astune.types import Episode, Generation, Group, Policy, RunReport, Sample, Sampling, StopReason, Task
from tests.backbone.local.test_examples import CONVERSATIONS
from tests.backbone.local.test_preferences import pairs
from tests.tools.noting import CUTS, check, check_cuts
from tests.tools.noting import SETTINGS as TOOLS
from tests.verl.apart import AHEAD, APART, Watched
from tests.verl.on_ray import demo, run_on, second_node, started
from tests.verl.playing import TASKS, Playing, what_came

STAGES = (
    {"algorithm": {"method": "sft"}, "trainer": {"examples": "said.jsonl", "tasks_per_step": 2}},
    {"algorithm": {"method": "dpo"}, "trainer": {"examples": "pairs.jsonl", "tasks_per_step": 3}},
)
PROMPTS = [[5, 9, 20, 31], [7, 7, 7, 8, 40], list(range(30, 90))]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with started() as engine:
        yield engine


@pytest.fixture(scope="module")
def finished(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    """The tutorial's agent for three steps on the engine, and an evaluation."""
    folder = tmp_path_factory.mktemp("runs")
    more = ("astune.evaluation.after=true", "astune.task_reader.max_validation_tasks=4")
    return run_on(engine, f"astune.runs_dir={folder}", *more, *TOOLS)


def played(report: RunReport) -> list[EpisodeRecord]:
    return list(read_episodes(report.run_dir / "episodes" / "train.jsonl"))


def weights_of(engine: Engine) -> PublishedWeights:
    assert isinstance(engine.policy, ServersPolicy)
    return engine.policy._remember.__self__  # type: ignore[union-attr]


def rows(*lengths: int) -> list[Sample]:
    return [whole_row([(7 * number + place) % 300 + 5 for place in range(n)]) for number, n in enumerate(lengths)]


def learned(engine: Engine) -> None:
    """One update that moves all weights, and weights that are published."""

    async def once() -> None:
        await engine.learner.update([replace(row, advantages=(1.0,)) for row in rows(20, 9)], 1e-3)
        await engine.learner.publish()

    asyncio.run(once())


# --- the same as on `local` --------------------------------------------------------------------------------------


def test_episodes_are_those_of_the_local_backbone(finished: RunReport, tmp_path: Path) -> None:
    """Those of the first step, which both play with the same weights. Which requests meet in a server depends on time,
    and with them the last digit of a probability, so one token in a million may be another."""
    assert finished.error is None and (finished.status, finished.steps) == ("completed", 3)
    settings = (f"astune.runs_dir={tmp_path}", "astune.trainer.total_steps=1", CUTS)
    here = played(run_training(demo(*settings, backbone="local"), load_local))
    there = {record.episode.episode_id: record.episode for record in played(finished)}
    assert len(there) == 3 * 4 * 4 and len(here) == 4 * 4
    same = [
        [turn.output_ids for turn in record.episode.turns]
        == [turn.output_ids for turn in there[record.episode.episode_id].turns]
        for record in here
    ]
    assert sum(same) >= len(same) - 2


def compare_with_local(report: RunReport, config: AstuneConfig, file: str) -> None:
    """The steps of a run, taken once more on `local` from the episodes that were played: the same figures, and in the
    end the same weights in the `file` of the checkpoint."""
    loaded, sampler, _ = load_policy(config)
    learner = LocalLearner(loaded, sampler, config.algorithm, config.trainer)
    save_model(loaded, report.run_dir / "begun")
    for row in [row for row in read_metrics(report.run_dir / "metrics.jsonl") if "loss" in row]:
        groups: dict[str, list[Episode]] = {}
        for record in played(report):
            if record.step == row["step"]:
                groups.setdefault(record.episode.task.task_id, []).append(record.episode)
        made = [Group(episodes[0].task, tuple(episodes)) for episodes in groups.values()]
        assert any(len(episode.turns) > 1 for group in made for episode in group.episodes), "no agent called its tool"
        samples, _ = to_samples(made, grpo, weighting_for(config))
        rate = learning_rate(config.trainer, learner.updates, 3)
        expected = asyncio.run(learner.update(samples, rate)).metrics
        assert row["policy_age/max"] == 0 and row["servers/logprob_difference"] < 1e-4
        for name in ("loss", "grad_norm", "clip_fraction", "learning_rate"):
            assert row[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-5), name
    assert learner.updates == 3
    save_model(loaded, report.run_dir / "ended")
    folders = report.run_dir / "checkpoints" / "step_000003", report.run_dir / "ended", report.run_dir / "begun"
    there, here, begun = (load_file(folder / file) for folder in folders)
    moved = sum(float((here[name] - begun[name]).abs().sum()) for name in here)
    assert sum(float((there[name] - here[name]).abs().sum()) for name in here) < 0.01 * moved


def test_each_episode_has_a_server_of_tools_of_its_own(finished: RunReport) -> None:
    check([record.episode for record in played(finished)])


def test_conversations_that_grow_too_long_are_cut(finished: RunReport) -> None:
    check_cuts([record.episode for record in played(finished)])


def test_steps_are_those_of_the_local_backbone(finished: RunReport) -> None:
    compare_with_local(finished, demo(backbone="local").config.astune, "model.safetensors")
    figures = {name for row in read_metrics(finished.run_dir / "metrics.jsonl") for name in row}
    assert {"eval/greedy/reward", "eval/sampled/reward"} <= figures


def test_servers_answer_as_the_local_sampler_does(engine: Engine, tmp_path: Path) -> None:
    engine.learner.save(tmp_path)
    model = demo(backbone="local").config.astune.model.model_copy(update={"path": str(tmp_path)})
    _, sampler, _ = load_policy(demo(backbone="local").config.astune.model_copy(update={"model": model}))
    version = asyncio.run(engine.learner.publish())
    wanted = [
        Sampling(24, seed=1),
        Sampling(24, temperature=0.0),
        Sampling(24, temperature=0.7, top_p=0.9, top_k=20, seed=3),
        Sampling(24, stop=("e",), seed=4),
        Sampling(24, stop_token_ids=engine.chat_format.stop_token_ids, seed=5),
    ]

    async def ask(policy: Policy) -> list[Generation]:
        calls = [policy.generate(prompt, sampling) for prompt in PROMPTS for sampling in wanted]
        return list(await asyncio.gather(*calls))

    for theirs, ours in zip(asyncio.run(ask(engine.policy)), asyncio.run(ask(sampler)), strict=True):
        assert theirs.output_ids == ours.output_ids and theirs.finish_reason == ours.finish_reason
        assert theirs.logprobs == pytest.approx(ours.logprobs, abs=1e-4)
        assert theirs.policy_version == version


def test_an_evaluation_alone_is_that_of_the_local_backbone(engine: Engine, tmp_path: Path) -> None:
    """Of the same weights: the servers are given them before they are asked."""
    learned(engine)
    (tmp_path / "model").mkdir()
    engine.learner.save(tmp_path / "model")
    loaded = demo(backbone="local")
    tasks = list(read_tasks(loaded.config.astune).held_out)[:6]
    greedy, own = Evaluation("", tasks, 0, "greedy", 1), replace(engine, close=lambda: None)

    def answers(name: str, load: LoadEngine) -> list[Any]:
        candidate = Candidate(name, model=str(tmp_path / "model"))
        played = play(loaded.config, loaded.config.astune, candidate, [greedy], load, tmp_path / name)
        return [group.episodes[0].output for group in played.groups["greedy"]]

    found = answers("there", lambda config: own)
    assert None not in found and found == answers("here", load_local)


def test_what_a_server_would_cut_or_refuse_is_told_as_by_the_local_sampler(engine: Engine) -> None:
    longest = engine.policy.context_length
    with pytest.raises(ContextOverflow, match=f"exceed the context length of {longest}"):
        asyncio.run(engine.policy.generate([5] * (longest - 3), Sampling(4)))
    with pytest.raises(WorkflowError, match="token id 1000000"):
        asyncio.run(engine.policy.generate([5, 1000000], Sampling(4)))


def test_the_comparison_is_of_the_same_tokens(engine: Engine) -> None:
    """What servers say of a text is what the trainer says of it: else the comparison of weights would mean nothing."""
    asyncio.run(engine.learner.publish())
    wanted = rows(30, 2, 200)
    replica = weights_of(engine).replicas[1]
    from astune.backbone.verl.servers import publish

    outputs = ray.get([publish._score(replica, row) for row in wanted])
    for output, expected in zip(outputs, asyncio.run(engine.learner.logprobs(wanted)), strict=True):
        told = [entry[0] for entry in output.extra_fields["prompt_logprobs"]]
        assert told[:-1] == pytest.approx(list(expected), abs=1e-4)


# --- weights that do not arrive ----------------------------------------------------------------------------------


@pytest.mark.fault(
    "Runs and resuming",
    "a server of verl keeps its old weights, and says so or says that they are new",
    "the hand-over is refused, with the server and how far it is off; the run ends",
)
@pytest.mark.parametrize("lies", [False, True], ids=["it says so", "it says that they are new"])
def test_a_server_that_did_not_get_the_weights_is_found(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, lies: bool
) -> None:
    learned(engine)
    weights = weights_of(engine)
    update, server = weights._manager.update_weights, weights.replicas[1].servers[0]
    old = ray.get(server.__ray_call__.remote(lambda self: (dict(self._model.state_dict()), self._version)))

    def but_one(global_steps: int) -> None:
        update(global_steps=global_steps)
        ray.get(server.load_weights.remote(old[0], global_steps if lies else old[1]))

    with monkeypatch.context() as patch:
        patch.setattr(weights._manager, "update_weights", but_one)
        with pytest.raises(TrainingError, match=r"server 1 (does not have the trainer's weights|was to get)"):
            learned(engine)
    learned(engine)  # and the next time all is well


# --- episodes in actors, on two nodes ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def raylet(engine: Engine) -> Iterator[psutil.Process]:
    with second_node() as raylet:
        yield raylet


@pytest.fixture(scope="module")
def playing(engine: Engine, raylet: psutil.Process, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playing]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("actors")
        patch.setenv("ASTUNE_TEST_FOLDER", str(folder))
        asyncio.run(engine.learner.publish())
        playing = Playing(engine, folder)
        with playing.runner:
            playing.runner.run(playing.player.__aenter__())
            yield playing
            playing.runner.run(playing.player.__aexit__(None, None, None))


def test_actors_on_two_nodes_play_what_one_process_plays(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    assert len({worker.machine for worker in playing.player.workers}) == 2
    with command_log(None):
        open_log(playing.folder, as_json=False)
        played = [playing.both(task, "a") for task in TASKS]
    for there, here in played:
        assert what_came(there) == what_came(here)
        assert [len(each.turns) for each in there] == [1, 2, 2]
        assert there[2].stop_reason is StopReason.MAX_TURNS
        for one, other in zip(there, here, strict=True):
            assert [turn.policy_version for turn in one.turns] == [turn.policy_version for turn in other.turns]
            for turn, same in zip(one.turns, other.turns, strict=True):
                assert turn.prompt_ids == same.prompt_ids
                assert turn.logprobs == pytest.approx(same.logprobs, abs=1e-4)
    assert capsys.readouterr().out.count("printed by a/t0/") == 6
    logs = [(playing.folder / "logs" / f"worker-{number}.log").read_text() for number in range(2)]
    assert "".join(logs).count("printed by a/t0/") == 3


def test_answers_to_actors_are_among_those_that_weights_are_compared_by(playing: Playing, engine: Engine) -> None:
    (episode, *_) = playing.runner.run(playing.play(playing.setup, TASKS[0], label="compared"))
    turn = episode.turns[-1]
    assert (*turn.prompt_ids, *turn.output_ids) in weights_of(engine)._compared._recent


def test_an_episode_in_an_actor_ends_when_it_is_cancelled(playing: Playing) -> None:
    async def cancelled() -> None:
        task = Task("w", "Wait?", answer="4", metadata={"waits_for": "nothing"})
        job = asyncio.create_task(playing.play(playing.setup, task, label="b"))
        await playing.begun(task)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job

    playing.runner.run(cancelled())
    assert len(list(playing.folder.glob("stopped-*"))) == 3
    assert all(worker.load == 0 for worker in playing.player.workers)


def test_an_episode_in_an_actor_that_is_late_ends_with_what_it_got_to(playing: Playing) -> None:
    async def cut_off() -> Episode:
        late, task = asyncio.Event(), Task("l", "Late?", metadata={"waits_for": "nothing"})
        attempt = Attempt(task, "l/l/1", 5, sampling_for(playing.config, "sampled"))
        job = asyncio.create_task(playing.player.play(attempt, late))
        await playing.begun(task, 1)
        late.set()
        return await job

    episode = playing.runner.run(cut_off())
    assert episode.stop_reason is StopReason.LATE and len(episode.turns) == 1


@pytest.mark.fault(
    "Runs and resuming",
    "an actor that plays episodes on a cluster is killed (`astune.rollout.workers` on verl)",
    "another takes its place and its episodes are played again, once, which are counted",
)
def test_the_episodes_of_an_actor_that_is_killed_are_played_again(
    playing: Playing, caplog: pytest.LogCaptureFixture
) -> None:
    there, here = playing.both(Task("d", "Die?", answer="4", metadata={"dies": True}), "c")
    again = [each.metrics.get("played_again", 0.0) for each in there]
    assert again[1] == 1.0 and set(again) <= {0.0, 1.0}
    assert what_came(there) == what_came(here)
    assert "a worker of astune.rollout.workers was lost" in caplog.text
    playing.runner.run(playing.all_ready())
    assert len({worker.machine for worker in playing.player.workers}) == 2


@pytest.mark.fault(
    "Runs and resuming",
    "a node of the cluster is lost while it plays episodes (`astune.rollout.workers` on verl)",
    "they are played again on the others, and their workers begin there",
)
def test_the_episodes_of_a_node_that_is_lost_are_played_on_the_others(playing: Playing, raylet: psutil.Process) -> None:
    async def lose_a_node() -> list[Episode]:
        task = Task("n", "Node?", answer="4", metadata={"waits_for": "node-lost"})
        job = asyncio.create_task(playing.play(playing.setup, task, label="n"))
        await playing.begun(task)
        raylet.kill()
        while len({worker.machine for worker in playing.player.workers if worker.ready}) == 2:
            await asyncio.sleep(0.1)
        (playing.folder / "node-lost").touch()
        episodes = await job
        await playing.all_ready()
        return episodes

    there = playing.runner.run(lose_a_node())
    assert {each.metrics.get("played_again", 0.0) for each in there} == {0.0, 1.0}
    here = playing.runner.run(playing.play(playing.alone, there[0].task, label="n"))
    assert what_came(there) == what_came(here)
    assert len(live_nodes()) == len({worker.machine for worker in playing.player.workers}) == 1


def test_no_actor_calls_the_model_while_weights_change(playing: Playing, engine: Engine) -> None:
    """Both actors wait within an episode, and go on while their calls are held."""

    async def weights_change() -> list[Episode]:
        task = Task("g", "Gate?", answer="4", metadata={"waits_for": "held"})
        job = asyncio.create_task(playing.play(playing.setup, task, label="g"))
        await playing.begun(task)
        async with playing.player.hold_calls():
            (playing.folder / "held").touch()
            await engine.learner.update([replace(row, advantages=(1.0,)) for row in rows(20, 9)], 1e-3)
            await engine.learner.publish()
        return await job

    before = engine.learner.policy_version
    episodes = playing.runner.run(weights_change())
    versions = [[turn.policy_version for turn in episode.turns] for episode in episodes]
    assert versions == [[before], [before, before + 1], [before, before + 1]]


@pytest.mark.fault(
    "Runs and resuming",
    "an actor that plays episodes on verl is lost as weights are handed over beside it "
    "(`astune.synchronizer.style: async`)",
    "the hand-over does not wait for it, and the one in its place plays once that is done",
)
def test_an_actor_that_is_lost_holds_up_no_weights(playing: Playing) -> None:
    async def lost_meanwhile() -> None:
        lost = playing.player.workers[0]
        ray.kill(lost._actor)  # type: ignore[attr-defined]
        async with playing.player.hold_calls():
            while (next := playing.player.workers[0]) is lost or next._listening is None:  # type: ignore[attr-defined]
                await asyncio.sleep(0.1)
            await asyncio.sleep(0)
            assert not next.ready
        await playing.all_ready()

    playing.runner.run(lost_meanwhile())


# --- processes that die: nothing goes on after these -------------------------------------------------------------


def kill(actor: object) -> None:
    """As the kernel kills a process that needs too much memory."""
    os.kill(ray.get(actor.__ray_call__.remote(lambda self: os.getpid())), signal.SIGKILL)  # type: ignore[attr-defined]


@pytest.mark.fault(
    "Runs and resuming",
    "a server of verl is killed while episodes wait for it",
    "the run names it and ends at once with 1; the steps done are saved",
)
def test_a_server_that_dies_ends_the_run_with_its_steps_saved(
    engine: Engine, finished: RunReport, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine.learner.load(finished.run_dir / "checkpoints" / "step_000003")

    class Killing(ServersPolicy):
        """Kills a server in the second step."""

        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
            if engine.learner.changes > before and not killed:
                killed.append(True)
                kill(weights_of(engine).replicas[0].servers[0])
            return await super().generate(prompt_ids, sampling)

    killed: list[bool] = []
    before = engine.learner.changes
    policy = Killing.__new__(Killing)
    vars(policy).update(vars(engine.policy))
    report = run_on(replace(engine, policy=policy), f"astune.runs_dir={tmp_path}", "astune.trainer.save_every=0")
    assert (report.status, report.steps, report.error) == ("failed", 1, None)
    assert "stopped: server 0 died" in " ".join(capfd.readouterr().out.split())
    assert RunDir(report.run_dir).latest_checkpoint() == RunDir(report.run_dir).checkpoint_path(1)


@pytest.mark.fault(
    "Runs and resuming",
    "a training worker of verl is killed",
    "the update says which one and why, not that the others wait for it",
)
def test_a_training_worker_that_dies_is_named(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(engine.lost.__self__.actors, "server 0")  # type: ignore[attr-defined]  # dead already
    workers = engine.learner._workers._group.workers  # type: ignore[attr-defined]
    kill(workers[1])
    with pytest.raises(TrainingError, match="training worker 1 died"):
        asyncio.run(engine.learner.update([replace(row, advantages=(1.0,)) for row in rows(20, 9)], 1e-2))


# --- other runs on the same Ray, once its GPUs are free --------------------------------------------------------------


def free() -> None:
    """End the training workers there are, and wait for what they had."""
    for number in ray.util.placement_group_table():
        ray.util.remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(number)))
    until = time.monotonic() + 600
    while ray.available_resources().get("GPU") != ray.cluster_resources()["GPU"]:
        assert time.monotonic() < until, ray.available_resources()
        time.sleep(0.05)


@contextmanager
def ray_that_is_there(config: AstuneConfig, settings: object) -> Iterator[None]:
    """In the place of a Ray that ends with a run, or with a stage of one."""
    yield
    free()


def test_stages_that_learn_from_examples_are_those_of_the_local_backbone(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each begins with new workers, which load what the one before has saved. Nothing is played, so no server starts.
    The weights are compared by how far they moved in all: Adam moves by its whole rate one whose gradient is no more
    than rounding."""
    for name, examples in (("said", CONVERSATIONS), ("pairs", pairs())):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, examples)))
    own = {
        "project_name": "stages",
        "runs_dir": str(tmp_path / "runs"),
        "trainer": {"learning_rate": 1e-3, "total_steps": 2},
        "monitor": {"progress": "plain", "trackers": []},
        "stages": STAGES,
    }
    (tmp_path / "job.yaml").write_text(json.dumps({"astune": own}))
    free()
    monkeypatch.setattr(verl_engine, "ray_session", ray_that_is_there)
    found = []
    for backbone in (VerlBackbone(), LocalBackbone()):
        name = f"astune.experiment_name={backbone.name}"
        report = backbone.run(load_config(tmp_path / "job.yaml", [name], backbone=backbone.name))
        assert (report.status, report.steps) == ("completed", 4)
        weights = load_file(report.run_dir / "checkpoints" / "step_000004" / "model.safetensors")
        found.append((read_metrics(report.run_dir / "metrics.jsonl"), weights))
    (there, trained), (here, expected) = found
    for row, other in zip(there, here, strict=True):
        assert row.keys() == other.keys()
        for figure in set(other) - {"tokens/packed", "tokens/flattened_per_packed"}:
            if not figure.startswith("time/"):
                assert row[figure] == pytest.approx(other[figure], rel=1e-3, abs=1e-5), (row["step"], figure)
    begun = load_file(tiny_model_dir() / "model.safetensors")
    moved = sum(float((expected[name] - begun[name]).abs().sum()) for name in expected)
    assert sum(float((trained[name] - expected[name]).abs().sum()) for name in expected) < 0.01 * moved


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_a_run_with_an_adapter_takes_the_steps_of_the_local_backbone(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has not the adapter of a step would end the run."""
    for replica in weights_of(engine).replicas:
        ray.kill(replica.servers[0])
    free()
    monkeypatch.setattr(verl_engine, "ray_session", ray_that_is_there)
    settings = (f"astune.runs_dir={tmp_path}", "astune.model.lora.rank=8", "astune.trainer.learning_rate=1e-3")
    loaded = demo(*settings, "verl.trainer.n_gpus_per_node=1")
    report = run_training(loaded, partial(verl_engine.load_engine, loaded))
    assert report.error is None and (report.status, report.steps) == ("completed", 3)
    compare_with_local(report, demo(*settings, backbone="local").config.astune, "adapter_model.safetensors")


@pytest.mark.fault(
    "Runs and resuming",
    "a run on verl whose rollouts are ahead of training is stopped",
    "the step that is learned is saved; resumed, it plays again what was not trained and trains nothing twice",
)
def test_rollouts_go_on_while_workers_train(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        with contextlib.suppress(ValueError):  # what ran before may have had fewer, and some may be dead
            ray.kill(ray.get_actor(server_name(number)))
    free()
    monkeypatch.setattr(verl_engine, "ray_session", ray_that_is_there)
    settings = (f"astune.runs_dir={tmp_path}", *APART)
    loaded = demo(*settings)
    watched = Watched(verl_engine.load_engine(loaded, loaded.config.astune))
    (tmp_path / "begun").mkdir()
    watched.engine.learner.save(tmp_path / "begun")
    ahead = (*settings, *AHEAD, "astune.rollout.max_concurrent=8", "astune.trainer.total_steps=4")

    watched.stop_in = 2
    stopped = run_on(watched.engine, *ahead, "astune.trainer.save_every=0")
    assert (stopped.status, stopped.steps) == ("interrupted", 2)
    watched.stop_in = 0
    done = run_on(watched.engine, *ahead, "astune.resume=true")
    assert done.error is None and (done.status, done.steps) == ("completed", 4)
    watched.assert_ahead(4)
    names = [(record.step, record.episode.episode_id) for record in played(done)]
    assert len(set(names)) == len(names) == 4 * 4 * 4
    steps = [row for row in read_metrics(done.run_dir / "metrics.jsonl") if "loss" in row]
    ages = [row["policy_age/max"] for row in steps if "policy_age/max" in row]
    assert max(ages) == 1 and all(row["servers/logprob_difference"] < 1e-4 for row in steps)

    told = []
    for style in (("astune.synchronizer.style=async", "astune.synchronizer.max_staleness=0"), ()):
        watched.engine.learner.load(tmp_path / "begun")
        name = f"astune.experiment_name=in_turns_{len(style)}"
        report = run_on(watched.engine, *settings, *style, name, "astune.trainer.total_steps=2")
        told.append({record.episode.episode_id: what_came([record.episode]) for record in played(report)})
    there, here = told
    assert there.keys() == here.keys() and sum(there[name] == here[name] for name in here) >= len(here) - 2


@pytest.mark.fault(
    "Runs and resuming",
    "a process of verl is killed while it starts",
    "the run ends at once with 1 and the name of the process; no run folder is left",
)
def test_a_process_that_dies_while_it_starts_is_named(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def workers() -> set[psutil.Process]:
        return {child for child in psutil.Process().children(recursive=True) if is_worker(child)}

    def is_worker(child: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return child.name().startswith("ray::AstuneWorker")
        return False

    def kill_the_first() -> None:
        while not (begun := workers() - before) and not over.wait(0.05):
            pass
        for worker in begun:
            worker.kill()

    free()
    monkeypatch.setattr(verl_engine, "ray_session", ray_that_is_there)
    before, over = workers(), threading.Event()
    (tmp_path / "said.jsonl").write_text("\n".join(map(json.dumps, CONVERSATIONS)))
    stage = {**STAGES[0], "project_name": "dies", "runs_dir": str(tmp_path / "runs")}
    (tmp_path / "job.yaml").write_text(json.dumps({"astune": stage}))
    loaded = load_config(tmp_path / "job.yaml", ["astune.trainer.total_steps=1"], backbone="verl")
    killing = threading.Thread(target=kill_the_first)
    killing.start()
    try:
        with pytest.raises(TrainingError, match="class_name: AstuneWorker"):
            VerlBackbone().run(loaded)
    finally:
        over.set()
        killing.join()
    assert not (tmp_path / "runs").exists()
