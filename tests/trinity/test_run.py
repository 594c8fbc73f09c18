"""The real thing on a CPU: Trinity's launcher, explorer, coordinator, runners, buffer, trainer and weight
synchronisation, with the math agent and its tool, over the tinker-compatible server. Only what needs a GPU is not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

pytest.importorskip("trinity")
pytest.importorskip("tinker")

import psutil
import torch
from safetensors.torch import load_file

from astune.algorithm import to_samples
from astune.algorithm.advantage import grpo
from astune.backbone.local.engine import load_policy
from astune.backbone.local.learning.learner import LocalLearner
from astune.config.load import LoadedConfig, load_config
from astune.monitor.episodes import EpisodeRecord, read_episodes
from astune.monitor.metrics import read_metrics
from astune.monitor.run_dir import RunDir
from astune.rollout.group import run_groups
from astune.support.resources import tutorial_dir
from astune.training.rollout_setup import rollout_setup, sampling_for, weighting_for
from astune.training.schedule import TaskSchedule, learning_rate
from astune.training.tasks import read_tasks
from astune.types import Episode, Group
from tests.launched import actor_of, wait_for
from tests.tools.noting import CUTS, SERVERS, check, check_cuts
from tests.trinity.pages import launch_as_written

DEMO = tutorial_dir() / "math_agent" / "demo.yaml"
RUN = Path("runs/math_agent/demo")
OF_PAGE = Path("runs/math_agent/trinity_cpu")
"""Of the command of docs/trinity.md."""
AGENT = """\
import os
from pathlib import Path

from tests.tools.noting import Noting

LOG = Path(__file__).with_name("log.txt")


def note(word):
    with LOG.open("a") as file:
        file.write(f"{os.getpid()} {word}\\n")


class Agent(Noting):
    @classmethod
    async def setup(cls):
        note("setup")
        if "BROKEN" in os.environ:
            raise ConnectionError("nobody answers")
        cls.opened = True

    @classmethod
    async def teardown(cls):
        note("teardown")

    async def execute(self, task, tuner):
        assert self.opened
        note("episode")
        return await super().execute(task, tuner)
"""
"""The demo's, which says what is called in each process."""
SETTINGS = (
    "astune.trainer.lr_schedule=constant",
    "astune.trainer.warmup_steps=0",
    "astune.trainer.tasks_per_step=2",
    "astune.trainer.total_steps=3",
    "astune.trainer.save_every=1",
    "astune.rollout.num_repeat=4",
    "astune.evaluation.every=2",
    "astune.task_reader.max_validation_tasks=4",
    "astune.monitor.check_invariants=true",
    "astune.monitor.progress=plain",
    CUTS,
)


OF_DEMOS_FILE = (
    "astune.trainer.tasks_per_step=2",
    "astune.rollout.num_repeat=4",
    "astune.evaluation.before=false",
    "astune.evaluation.every=0",
    "astune.monitor.progress=plain",
)
"""Short, and else as the file says: the demo's needs nothing but the flag."""


def launch(folder: Path, *more: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "astune", "--conf", str(DEMO), "--backbone=trinity", *OF_DEMOS_FILE, *more],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment() | variables,
    )


def environment() -> dict[str, str]:
    folders = [Path(__file__).parents[2], Path(__file__).parent / "stubs", DEMO.parent]
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}


def with_notes(folder: Path) -> str:
    """The setting that has `AGENT` play."""
    (folder / "agent.py").write_text(AGENT)
    return "astune.rollout.agentscope_learn_protocol=agent.py:Agent"


def calls(folder: Path) -> list[list[str]]:
    """What was called, in order, by each process."""
    processes: dict[str, list[str]] = {}
    for line in (folder / "log.txt").read_text().splitlines():
        process, word = line.split()
        processes.setdefault(process, []).append(word)
    return [*processes.values()]


def demo(*more: str) -> LoadedConfig:
    return load_config(DEMO, [*SETTINGS, *more], backbone="trinity")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder and the output of three steps of the run of docs/trinity.md, whose episodes two processes play."""
    folder = tmp_path_factory.mktemp("run")
    process = launch_as_written("docs/trinity.md", folder, *SETTINGS, SERVERS, with_notes(folder))
    output = end(process)
    assert process.returncode == 0, output
    return folder / OF_PAGE, output


def records(run: Path, phase: str = "train") -> list[EpisodeRecord]:
    return list(read_episodes(run / "episodes" / f"{phase}.jsonl"))


def test_the_run_makes_all_its_steps_and_looks_like_one_on_local(finished: tuple[Path, str]) -> None:
    run, output = finished
    steps = [row for row in read_metrics(run / "metrics.jsonl") if "tokens/trained" in row]
    assert [row["step"] for row in steps] == [1, 2, 3]
    assert [row["policy_version"] for row in steps] == [1, 2, 3]
    for row in steps:
        assert row["episodes/total"] == 8 and row["episodes/failed"] == 0
        assert row["policy_age/max"] == 0 if row["tokens/trained"] else row["groups/used"] == 0
        assert row["tokens/sampled"] == row["tokens/trained"] + row.get("tokens/dropped_no_signal", 0)
    for line in ("step 3/3", "held-out at step 0", "held-out at step 2", "held-out at step 3", "Done after 3 steps"):
        assert line in output
    assert list((run / "tensorboard").iterdir())


def test_the_run_without_a_gpu_leaves_what_the_page_says(finished: tuple[Path, str]) -> None:
    run, _ = finished
    for name in ("config.yaml", "report.html", "checkpoints/step_000003/trinity.json", "trinity/config.yaml"):
        assert (run / name).is_file(), name
    for name in ("global_step_3", "log/explorer.log", "log/trainer.log"):
        assert (run / "trinity/math_agent/trinity_cpu" / name).exists(), name
    assert (run / "trinity/tinker").is_dir() and (run / "trinity/tinker.log").is_file()


def test_every_process_sets_up_and_tears_down_once(finished: tuple[Path, str]) -> None:
    run, _ = finished
    processes = calls(run.parents[len(OF_PAGE.parts) - 1])
    assert len(processes) > 1
    for words in processes:
        assert words[0] == "setup" and words[-1] == "teardown"
        assert set(words[1:-1]) == {"episode"}


def test_evaluations_are_played_with_the_weights_of_their_step(finished: tuple[Path, str]) -> None:
    run, _ = finished
    versions: dict[int, set[int]] = {}
    for record in records(run, "eval_greedy"):
        versions.setdefault(record.step, set()).update(turn.policy_version for turn in record.episode.turns)
    assert versions == {0: {0}, 2: {2}, 3: {3}}


def test_agents_with_tools_play_the_same_episodes_as_on_the_local_backbone(finished: tuple[Path, str]) -> None:
    run, _ = finished
    here = {record.episode.episode_id: record.episode for record in records(run) if record.step == 1}
    config = demo().config.astune
    _, sampler, chat_format = load_policy(config)
    tasks = TaskSchedule(read_tasks(config).training, config).tasks(0)

    async def play() -> list[Group]:
        setup = rollout_setup(config, sampler, chat_format)
        sampling = sampling_for(config, "sampled")
        return await run_groups(tasks, 4, setup, seed=config.seed, sampling=sampling, max_concurrent=8, label="train/1")

    episodes = [episode for group in asyncio.run(play()) for episode in group.episodes]
    assert set(here) == {episode.episode_id for episode in episodes}
    assert any(len(episode.turns) > 1 for episode in episodes), "no agent called its tool"
    # Which requests meet in the server depends on time, and with them the last digit of a probability: one token in a
    # million may be another.
    same = [heard(here[episode.episode_id]) == heard(episode) for episode in episodes]
    assert sum(same) >= len(same) - 1


def heard(episode: Episode) -> tuple[object, ...]:
    return tuple((list(turn.prompt_ids), list(turn.output_ids)) for turn in episode.turns), episode.reward


def test_each_episode_has_a_server_of_tools_of_its_own(finished: tuple[Path, str]) -> None:
    run, _ = finished
    check([record.episode for record in records(run)])


def test_conversations_that_grow_too_long_are_cut(finished: tuple[Path, str]) -> None:
    run, _ = finished
    check_cuts([record.episode for record in records(run)])


def test_a_step_of_trinitys_trainer_is_a_step_of_the_local_learner(
    finished: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first update, from the recorded episodes. AdamW's first step moves a weight with gradient g by
    rate * g / (|g| + epsilon), and Trinity leaves epsilon at the protocol's 1e-12 where torch has 1e-8: so the weights
    are compared whose gradient is well above both."""
    run, _ = finished
    config = demo().config.astune
    groups: dict[str, list[Episode]] = {}
    for record in sorted((r for r in records(run) if r.step == 1), key=lambda r: r.episode.episode_id):
        groups.setdefault(record.episode.task.task_id, []).append(record.episode)
    made = [Group(episodes[0].task, tuple(episodes)) for episodes in groups.values()]
    samples, _ = to_samples(made, grpo, weighting_for(config))
    assert samples, "the first step has no signal with this seed"
    loaded, sampler, _ = load_policy(config)
    before = {name: weight.clone() for name, weight in loaded.model.state_dict().items()}
    learner = LocalLearner(loaded, sampler, config.algorithm, config.trainer)
    asyncio.run(learner.update(samples, learning_rate(config.trainer, 0, total_updates=3)))
    after = loaded.model.state_dict()

    theirs = load_file(next(run.glob("trinity/tinker/*/weights/*-state-1/model.safetensors")))
    ours = torch.cat([(after[name] - before[name]).flatten() for name in theirs])
    trinitys = torch.cat([(theirs[name] - before[name]).flatten() for name in theirs])
    rate = config.trainer.learning_rate
    clear = ours.abs() > 0.99 * rate
    assert float(clear.float().mean()) > 0.2
    assert float((ours - trinitys)[clear].abs().max()) < 0.02 * rate


def test_each_checkpoint_says_where_trinity_has_the_weights(finished: tuple[Path, str]) -> None:
    run, _ = finished
    places = [json.loads((folder / "trinity.json").read_text()) for folder in sorted((run / "checkpoints").iterdir())]
    assert [(place["step"], place["batch"]) for place in places] == [(1, 1), (2, 2), (3, 3)]
    assert all(Path(place["trinity"]).is_dir() for place in places)


# --- what goes wrong ---------------------------------------------------------------------------------------------


def trained(run: Path, step: int) -> Callable[[], bool]:
    """Whether the run folder has step `step`."""

    def done() -> bool:
        path = run / "metrics.jsonl"
        return path.is_file() and f'"policy_version": {step}.0' in path.read_text()

    return done


def kill_actor(process: subprocess.Popen[str], title: str) -> None:
    """As the kernel kills a process that needs too much memory."""
    actor_of(psutil.Process(process.pid), title).kill()


def end(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=600)
    return output


LONG = ("astune.trainer.total_steps=60", "astune.trainer.save_every=2", "astune.monitor.check_invariants=true")


REACT = "tutorial/react_agent/README.md"
OF_REACT = Path("runs/react_agent/demo")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str, Sequence[psutil.Process]]:
    """A folder with a run whose explorer was killed after step 3, its exit code, its output and its processes: the run
    of the ReAct tutorial with dynamic synchronisation, of which two batches come before new weights."""
    pytest.importorskip("agentscope")
    folder = tmp_path_factory.mktemp("killed")
    process = launch_as_written(REACT, folder, *OF_DEMOS_FILE, *LONG)
    wait_for(process, trained(folder / OF_REACT, 3), 600.0)
    family = psutil.Process(process.pid).children(recursive=True)
    kill_actor(process, "ray::Explorer")
    output = end(process)
    return folder, process.returncode, output, family


@pytest.mark.fault(
    "Runs and resuming", "Trinity's explorer is killed", "the run fails, names the process and leaves none behind"
)
def test_an_explorer_that_dies_is_a_loud_failure_that_leaves_nothing_behind(
    killed: tuple[Path, int, str, Sequence[psutil.Process]],
) -> None:
    folder, code, output, family = killed
    assert code == 1, output
    assert_gone(family)
    assert "of 60 steps" in output and "class_name: Explorer" in output, output
    begun = [record for record in records(folder / OF_REACT) if record.step <= 2]
    assert {turn.policy_version for record in begun for turn in record.episode.turns} == {0}
    assert any(len(record.episode.turns) > 1 for record in begun)


@pytest.mark.fault(
    "Runs and resuming",
    "a run on Trinity is killed or stopped by Ctrl-C",
    "it goes on from its checkpoint; no step or episode stands there twice",
)
def test_a_run_goes_on_from_its_checkpoint_and_ctrl_c_saves_where_it_is(
    killed: tuple[Path, int, str, Sequence[psutil.Process]],
) -> None:
    folder = killed[0]
    run = folder / OF_REACT
    begun = int(RunDir(run).checkpoints()[-1].name.removeprefix("step_"))  # it may have gone on before it was killed
    reached = max(row["step"] for row in read_metrics(run / "metrics.jsonl"))
    process = launch_as_written(REACT, folder, *OF_DEMOS_FILE, *LONG, "--resume")
    wait_for(process, trained(run, reached + 2), 600.0)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    output = end(process)
    assert process.returncode == 130 and "--resume" in output, output
    assert f"going on from step {begun} " in output
    steps = [row for row in read_metrics(run / "metrics.jsonl") if "tokens/trained" in row]
    done = len(steps)
    assert [row["step"] for row in steps] == [*range(1, done + 1)]
    # Two batches may wait while the step before them is trained, after which the explorer takes weights for two more.
    assert all(row["policy_age/max"] <= 3 for row in steps if row["tokens/trained"]), "explored with older weights"
    resumed = [record for record in records(run) if begun < record.step <= done]
    assert all(turn.policy_version >= begun for record in resumed for turn in record.episode.turns)
    assert (run / "checkpoints" / f"step_{done:06d}" / "trinity.json").is_file()
    counts: dict[int, int] = {}
    for record in records(run):
        counts[record.step] = counts.get(record.step, 0) + 1
    assert {step: counts[step] for step in range(1, done + 1)} == dict.fromkeys(range(1, done + 1), 8)
    assert_gone(family)


@pytest.mark.release  # in CI an explorer is killed, and the trainer of an online commit: test_online_training
@pytest.mark.fault(
    "Runs and resuming", "Trinity's trainer is killed", "the run fails, names the process and exits with 1"
)
def test_a_trainer_that_dies_is_a_loud_failure(tmp_path: Path) -> None:
    process = launch(tmp_path, *LONG)
    wait_for(process, trained(tmp_path / RUN, 1), 600.0)
    kill_actor(process, "ray::Trainer")
    output = end(process)
    assert process.returncode == 1, output
    assert "of 60 steps" in output and "class_name: Trainer" in output and "died" in output, output


def assert_gone(family: Sequence[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(family, timeout=600)
    assert [child.name() for child in alive] == []


@pytest.mark.release  # in CI: test_environments
@pytest.mark.fault(
    "Runs and resuming",
    "`setup` of the workflow fails in a process of Trinity's",
    "the run ends before its first episode and names the line",
)
def test_a_setup_that_fails_ends_the_run_and_says_why(tmp_path: Path) -> None:
    process = launch(tmp_path, with_notes(tmp_path), BROKEN="1")
    said = " ".join(end(process).split())
    assert process.returncode == 1
    assert "ConnectionError: nobody answers" in said and "agent.py" in said
    assert {word for words in calls(tmp_path) for word in words} == {"setup"}


@pytest.mark.release  # in CI: test_preflight
@pytest.mark.fault("What a run says", "no Ray cluster answers", "an error with the address before a run folder is made")
def test_a_run_that_cannot_begin_says_why_and_leaves_no_folder(tmp_path: Path) -> None:
    process = launch(tmp_path, "trinity.cluster.ray_address=127.0.0.1:9")
    output = end(process)
    assert process.returncode == 2 and "nothing answers at 127.0.0.1:9" in output, output
    assert not (tmp_path / RUN).exists()


def test_nothing_here_is_run_twice(finished: tuple[Path, str]) -> None:
    run, _ = finished
    names: Sequence[str] = [record.episode.episode_id for record in records(run)]
    assert len(names) == len(set(names)) == 24
