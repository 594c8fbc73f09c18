"""Several models in one run, adapters over the shipped model, on CPU."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("peft")

from safetensors.torch import load_file, save

from astune.algorithm import to_samples
from astune.backbone.local import engine as local_engine
from astune.backbone.local.engine import load_engine, load_learners, load_models
from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.learning.reference import score_samples
from astune.backbone.local.model.model import LoadedModel, load_model
from astune.backbone.local.sampling.adapter_sampler import NamedSamplers
from astune.backbone.local.sampling.sampler import Sampler
from astune.cli import main
from astune.config.load import load_config
from astune.errors import ConfigError, ModelError
from astune.monitor.checkpoint_names import best_of, find_checkpoint
from astune.monitor.episodes import read_episodes
from astune.monitor.run_dir import RunDir
from astune.rollout.own_turns import list_own
from astune.types import Group, RunReport, Sample, Sampling, Span, Timeline, Turn, Update
from astune.viewer import write_report
from astune.viewer.step_credit import Estimator, credit_step
from tests.backbone.local.test_examples import run_job, timeless
from tests.training.killed import Killed, raise_at

AGENTS = Path(__file__).with_name("village.py")
MODELS = {
    "wolf": {
        "trainer": {"learning_rate": 0.02, "updates_per_step": 2},
        "lora": {"rank": 2, "targets": ["q_proj"]},
        "algorithm": {"agent_reward": "leave_one_out"},
    },
    "villager": {"trainer": {"lr_schedule": "linear"}, "algorithm": {"advantage": "running_mean"}},
    "ghost": {"frozen": True},
    "past": {"past_of": "villager", "size": 2, "every": 1, "draw": "by_win_rate"},
}

BEST = {"wolf": "lowest eval/greedy/agent_reward/wolf_1", "villager": "eval/greedy/agent_reward/villager_1"}


def write_village(folder: Path, **sections: Any) -> Path:
    tasks = [{"query": f"What is {n} plus {n}?"} for n in range(4)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    config = {
        "project_name": "test",
        "experiment_name": "job",
        "runs_dir": str(folder / "runs"),
        "model": {"lora": {"rank": 4}, "device": "cpu"},
        "models": MODELS,
        "task_reader": {"jsonl": {"training": {"file_path": "train.jsonl"}}},
        "rollout": {
            "agentscope_learn_protocol": f"{AGENTS}:Village",
            "num_repeat": 2,
            "max_tokens": 6,
            "agents": {"wolf_*": "wolf", "villager_*": "ghost", "elder": "past"},
        },
        "trainer": {"total_steps": 3, "tasks_per_step": 2, "learning_rate": 0.01, "save_every": 1},
        "monitor": {"progress": "off", "trackers": []},
        **sections,
    }
    (folder / "job.yaml").write_text(json.dumps({"astune": config}))
    return folder / "job.yaml"


def files(report: RunReport) -> dict[str, bytes]:
    """What the newest checkpoint holds, by the paths of its files. safetensors writes what it says of a file in any
    order."""
    (*_, last) = RunDir(report.run_dir).checkpoints()
    held = {path.relative_to(last).as_posix(): path for path in last.rglob("*") if path.name != "COMPLETE"}
    return {
        name: save(load_file(path)) if path.suffix == ".safetensors" else path.read_bytes()
        for name, path in held.items()
        if path.is_file()
    }


Taught = dict[int, list[tuple[Sequence[Sample], float]]]


def run_noting(conf: Path) -> tuple[RunReport, Taught]:
    """Run a job, and note what each learner was given, in the order in which they first learned."""
    taught: Taught = {}
    update = LocalLearner.update

    async def note(self: LocalLearner, samples: Sequence[Sample], learning_rate: float) -> Update:
        taught.setdefault(id(self), []).append((samples, learning_rate))
        return await update(self, samples, learning_rate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalLearner, "update", note)
        return run_job(conf), taught


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunReport, Path, Taught]:
    """A run that nothing stopped, its configuration, and what each learner was given."""
    conf = write_village(tmp_path_factory.mktemp("village"))
    report, taught = run_noting(conf)
    return report, conf, taught


def test_each_model_learns_from_its_own_tokens_alone_bit_for_bit(
    straight: tuple[RunReport, Path, Taught], tmp_path: Path
) -> None:
    report, conf, taught = straight
    assert report.status == "completed" and len(taught) == 2
    config, kept = load_config(conf).config.astune, files(report)
    agents = {"wolf": {"wolf_1"}, "villager": {"chief"}}
    for (name, own), given in zip(agents.items(), taught.values(), strict=True):
        assert {sample.timeline.agent for samples, _ in given for sample in samples} == own
        learner = load_learners(config, load_models(config)[1])[name]
        for samples, rate in given:
            asyncio.run(learner.update(samples, rate))
            asyncio.run(learner.publish())
        (tmp_path / name).mkdir()
        learner.save(tmp_path / name)
        weights = "adapter_model.safetensors"
        assert save(load_file(tmp_path / name / weights)) == kept[f"{name}/{weights}"]
    rates = [[rate for _, rate in given] for given in taught.values()]
    assert rates == [[0.02] * 6, pytest.approx([0.01, 0.02 / 3, 0.01 / 3])]


def test_figures_receipt_and_records_say_which_model_it_was(straight: tuple[RunReport, Path, Taught]) -> None:
    report, *_ = straight
    for step, row in enumerate(timeless(report), start=1):
        wolf, villager = (
            {
                key.removeprefix(f"model/{name}/"): value
                for key, value in row.items()
                if key.startswith(f"model/{name}/")
            }
            for name in ("wolf", "villager")
        )
        assert (wolf["policy_version"], villager["policy_version"]) == (step, step)
        assert {"loss", "grad_norm", "tokens/trained", "groups/used"} <= wolf.keys() & villager.keys()
        assert row["tokens/trained"] == wolf["tokens/trained"] + villager["tokens/trained"]
        dropped = sum(value for key, value in row.items() if key.startswith("tokens/dropped_"))
        assert row["tokens/sampled"] == row["tokens/trained"] + dropped and row["tokens/dropped_frozen"] > 0
        assert not any(key.startswith("model/ghost") for key in row)
    (*_, last) = RunDir(report.run_dir).checkpoints()
    assert {path.name for path in last.iterdir() if path.is_dir()} == {"wolf", "villager", "past"}
    for record in read_episodes(report.run_dir / "episodes" / "train.jsonl"):
        assert [(turn.agent, turn.model) for turn in record.episode.turns] == [
            ("wolf_1", "wolf"),
            ("elder", "past"),
            ("villager_1", "ghost"),
            ("chief", "villager"),
            ("wolf_1", "wolf"),
            ("villager_1", "ghost"),
        ]
        assert {turn.policy_version for turn in record.episode.turns if turn.model == "ghost"} == {0}


def test_an_agent_is_paid_by_attempts_that_are_played_again(straight: tuple[RunReport, Path, Taught]) -> None:
    report, *_ = straight
    played, redrawn = (
        {record.episode.episode_id: record.episode for record in read_episodes(report.run_dir / "episodes" / name)}
        for name in ("train.jsonl", "redrawn.jsonl")
    )
    assert redrawn.keys() == {f"{name}~wolf_1" for name in played} and len(played) == 12
    for name, episode in played.items():
        again = redrawn[f"{name}~wolf_1"]
        assert episode.metrics["redrawn/wolf_1"] == again.reward
        assert episode.turns[0].prompt_ids == again.turns[0].prompt_ids
        assert [turn.model for turn in episode.turns] == [turn.model for turn in again.turns]
    assert (
        sum(tuple(e.turns[0].output_ids) != redrawn[f"{n}~wolf_1"].turns[0].output_ids for n, e in played.items()) > 6
    )
    for row in timeless(report):
        assert row["redrawn/episodes"] == 4 and row["redrawn/tokens"] > 0
        assert "tokens/dropped_not_replayed" not in row


def test_a_page_compares_each_model_with_itself(straight: tuple[RunReport, Path, Taught]) -> None:
    report, *_ = straight
    step = [record.episode for record in read_episodes(report.run_dir / "episodes" / "train.jsonl") if record.step == 1]
    estimator = Estimator.of({"astune.algorithm.advantage": "dr_grpo", "astune.models.wolf.frozen": False})
    shown = credit_step(step, estimator)
    for model in ("wolf", "villager"):
        samples, _ = to_samples(list_own([Group(step[0].task, tuple(step[:2]))], model), estimator.advantage)
        rows = {sample.episode_id: sample.advantages for sample in samples}
        for episode, credit in zip(step[:2], shown, strict=False):
            lines = zip(episode.timelines, credit.advantages or (), strict=True)
            own = [row for line, row in lines if episode.turns[line.spans[0].turn].model == model]
            assert not rows or [tuple(row) for row in own] == [rows[episode.episode_id]]


def test_an_opponent_is_an_earlier_version_the_same_for_all_attempts_at_a_task(
    straight: tuple[RunReport, Path, Taught],
) -> None:
    report, *_ = straight
    met: dict[tuple[int, str], set[int]] = {}
    for record in read_episodes(report.run_dir / "episodes" / "train.jsonl"):
        found = met.setdefault((record.step, record.episode.task.task_id), set())
        found |= {turn.policy_version for turn in record.episode.turns if turn.model == "past"}
    assert all(len(versions) == 1 for versions in met.values())
    assert {(step, *versions) for (step, _), versions in met.items()} <= {(1, 0), (2, 0), (2, 1), (3, 0), (3, 2)}
    assert len({version for versions in met.values() for version in versions}) > 1
    assert [row["model/past/versions"] for row in timeless(report)] == [2, 2, 2]
    kept = files(report)
    assert kept["past/1/adapter_model.safetensors"] == kept["villager/adapter_model.safetensors"]
    assert kept["past/1/adapter_model.safetensors"] != kept["past/adapter_model.safetensors"]


@pytest.mark.fault(
    "Runs and resuming",
    "a run with several models is killed after one of them has learned from a step, and the others have not",
    "it goes on from the checkpoint before, all of them, and ends bit for bit as if never stopped",
)
def test_a_run_goes_on_wherever_it_was_killed(
    straight: tuple[RunReport, Path, Taught], monkeypatch: pytest.MonkeyPatch
) -> None:
    report, conf, _ = straight
    name = "astune.experiment_name=killed"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        raise_at(patch, 6, LocalLearner, "update")  # the villager's of step 2, when the wolf has learned
        run_job(conf, name)
    assert [path.name for path in RunDir(report.run_dir.with_name("killed")).checkpoints()] == ["step_000001"]
    resumed = run_job(conf, name, resume=True)
    assert timeless(resumed) == timeless(report)
    assert files(resumed) == files(report)
    again = [[*read_episodes(each.run_dir / "episodes" / "redrawn.jsonl")] for each in (resumed, report)]
    assert [record.episode.episode_id for record in again[0]] == [record.episode.episode_id for record in again[1]]


@pytest.mark.release
def test_workers_and_stages_play_and_train_the_same_models(
    straight: tuple[RunReport, Path, Taught], tmp_path: Path
) -> None:
    report, *_ = straight
    stages = [{"trainer": {"total_steps": 1}}, {"trainer": {"total_steps": 1}}]
    conf = write_village(tmp_path, stages=stages, models=MODELS | {"past": {"frozen": True}})
    staged = run_job(conf, "astune.rollout.workers=1")
    first, second = timeless(staged)
    known = {name: value for name, value in timeless(report)[0].items() if not name.endswith("learning_rate")}
    known = {name: value for name, value in known.items() if not name.startswith("model/past")}
    assert {name: first[name] for name in known} == pytest.approx(known, rel=1e-4, abs=1e-6)
    assert second["model/wolf/policy_version"] == 1  # a stage begins with an optimizer and a version of its own
    kept = RunDir(staged.run_dir).checkpoints()
    wolves = [(path / "wolf" / "adapter_model.safetensors").read_bytes() for path in kept]
    assert len(wolves) == 2 and wolves[0] != wolves[1]


def test_a_model_begins_with_an_adapter_and_one_that_does_not_fit_harms_no_other(
    straight: tuple[RunReport, Path, Taught],
) -> None:
    report, conf, _ = straight
    start = RunDir(report.run_dir).checkpoints()[-1]
    config = load_config(conf, [f"astune.models.ghost.start_from={start / 'villager'}"]).config.astune
    held = load_models(config)[1]
    begun, untouched = (
        [parameter.abs().sum().item() for parameter in held[name].loaded.trainable()] for name in ("ghost", "villager")
    )
    assert all(begun) and untouched.count(0.0) == len(untouched) // 2  # B of a new one is 0
    engine = load_engine(config)
    assert engine.learners.keys() == {"wolf", "villager"}
    asyncio.run(engine.policy.generate([1, 2, 3], Sampling(max_tokens=2, model="ghost")))
    cache = cast("NamedSamplers", engine.policy).parts["ghost"]._sampler._cache
    assert cache.lengths.any()
    asyncio.run(engine.learners["wolf"].publish())
    assert not cache.lengths.any()  # what comes next does not depend on what a frozen one said before
    other = load_config(conf, [f"astune.models.villager.start_from={start / 'wolf'}"]).config.astune
    for wrong, said in (
        (start / "wolff", r"astune.models.villager.start_from: there is no folder '.*wolff'. Did you mean 'wolf'\?"),
        (
            start,
            r"villager.start_from: .* holds no adapter: .*; expected one of the adapters in it: past, villager, wolf",
        ),
    ):
        with pytest.raises(ModelError, match=said):
            load_models(load_config(conf, [f"astune.models.villager.start_from={wrong}"]).config.astune)
    with pytest.raises(ModelError, match=r"wolf is another one: astune.model.lora.rank is 4, and was 2"):
        load_models(other)


def test_each_model_may_keep_its_own_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = write_village(tmp_path)
    settings = ["astune.evaluation.decoding=[greedy]", "astune.evaluation.every=1", "astune.evaluation.before=false"]
    settings += [f"astune.task_reader.jsonl.validation.file_path={conf.with_name('train.jsonl')}"]
    settings += [
        "astune.task_reader.on_overlap=warn",
        "astune.trainer.keep_checkpoints=1",
        "astune.trainer.total_steps=2",
        "astune.trainer.tasks_per_step=1",
        "astune.rollout.num_repeat=2",
    ]
    for name, figure in BEST.items():
        settings.append(f"astune.models.{name}.trainer.keep_best={figure}")
    report = run_job(conf, *settings, "astune.monitor.progress=plain")
    logged = [json.loads(line) for line in (report.run_dir / "metrics.jsonl").read_text().splitlines()]
    best = {name: best_of(logged, figure) for name, figure in BEST.items()}
    assert report.summary["best_of_models"].keys() == best.keys() and "best_checkpoint" not in report.summary
    told = " ".join(capsys.readouterr().out.split())
    for name, found in best.items():
        assert found is not None
        path = RunDir(report.run_dir).checkpoint_path(found.step)
        assert find_checkpoint(f"{report.run_dir}@best:{name}") == path
        assert report.summary["best_of_models"][name]["path"] == str(path)
        assert f"best {name} step {found.step}, by " in told
    assert "by the lowest eval/greedy/agent_reward/wolf_1 " in write_report(report.run_dir).read_text()
    steps = {found.step for found in best.values() if found is not None}
    assert {int(path.name[5:]) for path in RunDir(report.run_dir).checkpoints()} == {2} | steps
    with pytest.raises(ConfigError, match="keep_best of model 'ghost' is not set"):
        find_checkpoint(f"{report.run_dir}@best:ghost")
    with pytest.raises(ConfigError, match="keep_best of the run is not set"):
        find_checkpoint(f"{report.run_dir}@best")
    with pytest.raises(ConfigError, match=r"stage 2: a model's own trainer\.keep_best; with stages the"):
        load_config(conf, [*settings, "astune.stages=[{trainer: {total_steps: 2}}, {trainer: {total_steps: 2}}]"])


def test_models_learn_by_turns_while_the_others_stay_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = write_village(tmp_path)
    more = ["astune.trainer.keep_checkpoints=3", "astune.monitor.progress=plain", "astune.models.idle={}"]
    more += ["astune.trainer.update=wolf, villager, villager, idle"]
    report = run_job(conf, *more)
    told = " ".join(capsys.readouterr().out.split())
    for when in ("in the first step", "in the whole run"):
        assert f"astune.models: {when} no agent runs on idle. There are: chief, elder," in told
    versions = [[row[f"model/{name}/policy_version"] for name in ("wolf", "villager")] for row in timeless(report)]
    assert versions == [[1, 0], [1, 1], [1, 2]]
    rates = [row.get("model/villager/learning_rate") for row in timeless(report)]
    assert rates == [None, pytest.approx(0.01), pytest.approx(0.005)]  # a schedule counts the model's own steps
    for row in timeless(report):
        taught, other = ("wolf", "villager") if row["step"] == 1 else ("villager", "wolf")
        assert (
            row[f"model/{taught}/tokens/trained"] == row["tokens/trained"] > 0 == row[f"model/{other}/tokens/trained"]
        )
        assert row["tokens/dropped_not_its_turn"] == row[f"model/{other}/tokens/dropped_not_its_turn"] > 0
    kept = RunDir(report.run_dir).checkpoints()
    tensors = [
        {name: load_file(path / name / "adapter_model.safetensors") for name in ("wolf", "villager")} for path in kept
    ]
    assert save(tensors[0]["wolf"]) == save(tensors[2]["wolf"])
    assert save(tensors[1]["villager"]) != save(tensors[2]["villager"])


def test_a_league_plays_each_version_of_one_model_against_each_of_the_other(
    straight: tuple[RunReport, Path, Taught],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report, conf, _ = straight
    loads, played = list[object](), Path("episodes") / "eval_greedy.jsonl"

    def note(*given: Any, **more: Any) -> LoadedModel:
        loads.append(given)
        return load_model(*given, **more)

    monkeypatch.setattr(local_engine, "load_model", note)
    held = [f"astune.task_reader.jsonl.validation.file_path={conf.with_name('train.jsonl')}"]
    held += ["astune.task_reader.on_overlap=warn", "astune.evaluation.decoding=[greedy]"]
    league = ["eval", "--conf", str(conf), "--limit", "2", "--league"]
    assert main([*league, "none", str(report.run_dir), "--out", str(tmp_path / "league"), "--json", *held]) == 0
    out = capsys.readouterr().out
    found = json.loads(out)
    names = ["base", "job/step_000003"]
    assert [(row["wolf"], row["villager"]) for row in found["won"]] == [
        (one, other) for one in names for other in names
    ]
    assert {row["won"]["n"] for row in found["won"]} == {2}
    assert len(loads) == 1  # for all pairs, each of which met its own versions
    said = {
        pair: {
            record.episode.task.task_id: tuple(record.episode.turns[0].output_ids)
            for record in read_episodes(tmp_path / "league" / pair / played)
        }
        for pair in ("0-0", "0-3", "3-0", "3-3")
    }
    assert said["0-0"] == said["0-3"] != said["3-0"] == said["3-3"]  # the wolf speaks first
    assert {row["player"] for row in found["ratings"]} == {
        f"{side} {name}" for side in ("wolf", "villager") for name in names
    }
    assert "how often wolf won against villager" in Path(found["report"]).read_text()
    begun = [RunDir(tmp_path / "league" / name).config_path.read_text() for name in ("0-0", "0-3", "3-0")]
    assert [text.count("step_000003/") for text in begun] == [0, 1, 1]
    assert main([*league, "none", *held]) == 2 and "expected two or more checkpoints" in capsys.readouterr().err
    assert main([*league, "none", "none", "--figures", "success", *held]) == 2
    assert "--league: it has no use for --figures" in capsys.readouterr().err


def write_ahead(folder: Path, name: str, most: int | None) -> Path:
    """Models that learn by turns; with `most` rollouts are up to so many steps ahead."""
    models = MODELS | {"wolf": {"trainer": {"learning_rate": 0.02}}, "villager": {}}
    ahead = {} if most is None else {"style": "async", "max_staleness": most}
    conf = write_village(folder, models=models, experiment_name=name, synchronizer=ahead)
    text = json.loads(conf.read_text())
    text["astune"]["rollout"]["max_concurrent"] = 4
    text["astune"]["trainer"] |= {"total_steps": 4, "keep_checkpoints": 9, "update": "alternate(1)"}
    conf.write_text(json.dumps(text))
    return conf


@pytest.mark.release  # in CI: test_ahead, with one model; the next, where all of them answer meanwhile
def test_threads_that_nothing_goes_on_beside_teach_each_model_the_same_bit_for_bit(tmp_path: Path) -> None:
    short = ("astune.trainer.total_steps=2", "astune.trainer.update=all")
    fixed, turns = (
        run_job(write_ahead(tmp_path, name, most), *short) for name, most in (("fixed", None), ("turns", 0))
    )
    spanning = "episodes/spanning_versions"
    assert timeless(fixed) == [{name: row[name] for name in row if name != spanning} for row in timeless(turns)]
    assert files(fixed) == files(turns)


def test_models_learn_while_all_of_them_answer_and_each_answer_is_of_the_version_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first updates wait until an answer has begun and ended meanwhile. The run is killed and goes on."""
    conf = write_ahead(tmp_path, "ahead", 1)
    answered, learning, waited = threading.Semaphore(0), threading.Event(), list[bool]()
    update, generate = LocalLearner._update, Sampler.generate

    def learn(self: LocalLearner, *given: Any) -> Update:
        if len(waited) < 2:
            learning.set()
            waited.append(answered.acquire(timeout=100))
            learning.clear()
        return update(self, *given)

    async def answer(self: Sampler, *given: Any) -> Any:
        beside = learning.is_set()
        made = await generate(self, *given)
        if beside and learning.is_set():
            answered.release()
        return made

    monkeypatch.setattr(LocalLearner, "_update", learn)
    monkeypatch.setattr(Sampler, "generate", answer)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        raise_at(patch, 3, LocalLearner, "update")
        run_job(conf)
    report = run_job(conf, resume=True)
    assert report.status == "completed" and waited == [True, True]
    rows = timeless(report)
    versions = {name: [int(row[f"model/{name}/policy_version"]) for row in rows] for name in ("wolf", "villager")}
    assert versions == {"wolf": [1, 1, 2, 2], "villager": [0, 1, 1, 2]}
    records = [*read_episodes(report.run_dir / "episodes" / "train.jsonl")]
    assert len({record.episode.episode_id for record in records}) == len(records) == 16

    said: dict[tuple[str, int], list[Turn]] = {}
    for record in records:
        for turn in record.episode.turns:
            said.setdefault((turn.model, turn.policy_version), []).append(turn)
            if turn.model in versions:
                before = [0, *versions[turn.model]]
                assert before[max(record.step - 2, 0)] <= turn.policy_version <= before[record.step - 1]
    assert {name for name, _ in said} == {"wolf", "villager", "ghost", "past"} and len(said) >= 6
    held = load_models(load_config(conf).config.astune)[1]
    for (name, version), turns in sorted(said.items()):
        if version:
            own = "villager" if name == "past" else name
            step = versions[own].index(version) + 1
            held[name].loaded.begin_adapter(RunDir(report.run_dir).checkpoint_path(step) / own)
        for turn in turns[:4]:
            tokens = (*turn.prompt_ids, *turn.output_ids)
            span = Span(0, len(turn.prompt_ids), len(tokens), 0, turn.temperature, True, tuple(turn.logprobs))
            count = len(turn.output_ids)
            sample = Sample(Timeline(name, tokens, (span,)), (1.0,), (1 / count,), "t", "e")
            (found,) = score_samples(held[name].loaded, [sample], 10**4)
            assert found == pytest.approx(list(turn.logprobs), abs=1e-4)


@pytest.mark.release
def test_the_debugger_and_an_evaluation_play_all_models(
    straight: tuple[RunReport, Path, Taught], capsys: pytest.CaptureFixture[str]
) -> None:
    report, conf, _ = straight
    start = RunDir(report.run_dir).checkpoints()[-1]
    held = f"astune.task_reader.jsonl.validation.file_path={conf.with_name('train.jsonl')}"
    settings = [held, "astune.task_reader.on_overlap=warn", "astune.evaluation.decoding=[greedy]"]
    assert main(["eval", "--conf", str(conf), "--checkpoint", str(start), *settings]) == 0
    played = report.run_dir.parent.glob("job-eval/*/episodes/eval_greedy.jsonl")
    turns = [turn for record in read_episodes(next(played)) for turn in record.episode.turns]
    assert {turn.model for turn in turns} == {"wolf", "past", "ghost", "villager"}
    assert main(["--conf", str(conf), "--backbone=debug", "--repeat=2"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert all(f"these attempts alone would do, of {name}" in told for name in ("wolf", "villager"))
    assert "nothing is played again here, so agents are paid the episode's reward" in told
