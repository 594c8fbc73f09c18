"""A rubric is learned from examples: what is planted is found, nothing leaks, nothing is paid twice."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from astune.config.load import load_config
from astune.config.schema import Config
from astune.errors import AstuneError, ConfigError
from astune.rubrics.edits import edits_of
from astune.rubrics.examples import read_examples
from astune.rubrics.from_config import learn_rubric
from astune.rubrics.learn import NothingHelps
from astune.rubrics.prompts import ARRANGE, HOLISTIC, PROPOSE, REVISE
from astune.rubrics.split import split_examples
from astune.task_judge.llm.fence import read_fences
from astune.task_judge.llm.pointwise import JUDGE
from astune.task_judge.llm.rubric import load_rubric, save_rubric
from astune.testing import Faults, PlantedWorld, ScriptedChatServer
from astune.testing.planted_rubrics import NoWatch

ROOT = Path(__file__).parents[2]
DAY = date(2026, 1, 2)


class RubricRun:
    """Examples of a world, a server that answers as its model does, and runs on them."""

    def __init__(self, folder: Path, world: PlantedWorld) -> None:
        self.folder = folder
        self.world = world
        self.out = folder / "rubrics.yaml"
        world.write_examples(folder / "examples.jsonl")

    def config(self, base_url: str, **rubrics: Any) -> Path:
        rubrics = {"examples": "examples.jsonl", "out": "rubrics.yaml", **rubrics}
        models = [
            {"base_url": base_url, "model": "planted", "max_retries": 0, "prompt_price": 1, "completion_price": 2}
        ]
        llm = {"models": models, "cache": None, "max_concurrent": rubrics.pop("max_concurrent", 8)}
        path = self.folder / "conf.yaml"
        path.write_text(json.dumps({"astune": {"rubrics": rubrics, "task_judge": {"llm": llm}}}))
        return path

    def learn(self, server: ScriptedChatServer, *, keep_edited: bool = False, **rubrics: Any) -> Any:
        loaded = load_config(self.config(server.base_url, **rubrics), [], for_run=False)
        return learn_rubric(loaded, NoWatch(), DAY, keep_edited=keep_edited)[0]

    def forget(self) -> None:
        for path in self.folder.glob("rubrics.yaml*"):
            path.unlink()


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., RubricRun]:
    return lambda *arguments, **options: RubricRun(tmp_path, PlantedWorld(*arguments, **options))


def jobs(server: ScriptedChatServer) -> list[str]:
    return [request["messages"][0]["content"].split("\n")[0] for request in server.requests]


def fences(request: dict[str, Any]) -> list[tuple[str, str]]:
    return [fence for message in request["messages"] for fence in read_fences(message["content"])]


@pytest.mark.parametrize(("seed", "n", "kind"), [(3, 40, "scored"), (7, 24, "paired"), (3, 12, "ranked")])
def test_planted_criteria_are_found_and_judge_better_than_no_rubric(run, seed, n, kind):
    run = run(seed, n, kind, noise=0.0, judge_noise=0.0)
    with ScriptedChatServer(run.world.model()) as server:
        rubric = run.learn(server, rounds=1)
    assert run.world.finds(rubric) == run.world.planted
    assert rubric == load_rubric(run.out)
    report = rubric.report
    assert report["test"]["accuracy"] > report["baselines"]["without_rubric"]["accuracy"]
    assert report["test"]["accuracy"] > report["baselines"]["majority"]["accuracy"]
    assert rubric.provenance["digest"] == rubric.digest and not edits_of(rubric)
    assert all(criterion.theme and criterion.sources for criterion in rubric.criteria)


def test_test_examples_are_seen_last_and_only_by_the_judges(run):
    run = run(1, 20, "paired")
    with ScriptedChatServer(run.world.model()) as server:
        run.learn(server, rounds=2)
    order = jobs(server)
    chosen = max(at for at, job in enumerate(order) if job in (PROPOSE, REVISE, ARRANGE))
    early = {text for request in server.requests[: chosen + 1] for _, text in fences(request)}
    late = {text for request in server.requests[chosen + 1 :] for name, text in fences(request) if name == "answer"}
    tested = [row for row in run.world.examples if not {row["chosen"], row["rejected"]} & early]
    assert len(tested) == 5  # a quarter
    assert {answer for row in tested for answer in (row["chosen"], row["rejected"])} <= late
    assert {order[at] for at in range(chosen + 1, len(order))} == {JUDGE, HOLISTIC}


def test_judges_do_not_see_what_people_said(run):
    """The same answers with the opposite scores make the same questions to the judge of a given set of criteria."""
    run = run(1, 16, "scored")
    with ScriptedChatServer(run.world.model()) as server:
        run.learn(server, rounds=1)
    answers = {row["answer"] for row in run.world.examples}
    for request, job in zip(server.requests, jobs(server), strict=True):
        if job in (JUDGE, HOLISTIC):
            assert {name for name, _ in fences(request)} <= {"task", "criteria", "answer"}
            assert sum(text in answers for _, text in fences(request)) == 1
    proposals = [fences(request) for request, job in zip(server.requests, jobs(server), strict=True) if job == PROPOSE]
    assert all({"better", "worse"} <= {name for name, _ in shown} for shown in proposals)


def test_the_order_of_replies_changes_nothing(run):
    run = run(2, 12, "scored")
    model, written = run.world.model(), []
    for concurrent in (1, 12):
        run.forget()

        def late(body: dict[str, Any], concurrent: int = concurrent) -> Any:
            time.sleep(hash(json.dumps(body)) % 7 / 1000 if concurrent > 1 else 0)
            return model(body)

        with ScriptedChatServer(late, usage=True) as server:
            run.learn(server, rounds=1, max_concurrent=concurrent)
        written.append(run.out.read_bytes())
    assert written[0] == written[1]


def test_a_second_run_asks_nothing_and_writes_the_same(run):
    run = run(2, 12, "scored")
    with ScriptedChatServer(run.world.model(), usage=True) as server:
        rubric = run.learn(server, rounds=1)
        first, asked = run.out.read_bytes(), len(server.requests)
        run.learn(server, rounds=1)
    assert len(server.requests) == asked and run.out.read_bytes() == first
    assert rubric.provenance["replies"] == asked
    assert rubric.provenance["prompt_tokens"] > 0 and rubric.provenance["cost"] > 0


def test_a_spent_budget_ends_the_run_and_the_same_command_goes_on(run):
    run = run(2, 12, "scored")
    with ScriptedChatServer(run.world.model(), usage=True) as server:
        run.learn(server, rounds=1)
    whole, written = len(server.requests), run.out.read_bytes()
    run.forget()
    ended = 0
    with ScriptedChatServer(run.world.model(), usage=True) as server:
        while not run.out.exists():
            before = len(server.requests)
            try:
                run.learn(server, rounds=1, max_calls=whole // 3)
            except AstuneError as error:
                assert "the same command goes on from there" in str(error)
                assert len(server.requests) - before == whole // 3
                ended += 1
    assert ended in (3, 4) and len(server.requests) == whole and run.out.read_bytes() == written


@pytest.mark.fault("Rubrics", "learning a rubric is killed", "the same command goes on, and nothing is paid twice")
def test_after_a_kill_nothing_is_paid_twice(run):
    run = run(4, 8, "paired")
    model = run.world.model()
    with ScriptedChatServer(model, usage=True) as server:
        run.learn(server, rounds=1, max_concurrent=1)
    whole, written = Counter(json.dumps(body) for body in server.requests), run.out.read_bytes()
    run.forget()
    answered: Counter[str] = Counter()
    kills = [whole.total() // 4, whole.total() * 3 // 4]
    running: list[subprocess.Popen[bytes]] = []

    def fatal(body: dict[str, Any]) -> Any:
        if kills and answered.total() == kills[0]:
            kills.pop(0)
            running[-1].send_signal(signal.SIGKILL)
            return 500
        answered[json.dumps(body)] += 1
        return model(body)

    with ScriptedChatServer(fatal, usage=True) as server:
        conf = run.config(server.base_url, rounds=1, max_concurrent=1)
        command = [sys.executable, str(ROOT / "launcher.py"), "rubrics", "--conf", str(conf)]
        codes = []
        for _ in range(3):
            running.append(subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=-3, stderr=-3))
            codes.append(running[-1].wait())
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 3]  # written, and no better than the judge without a rubric
    assert answered == whole
    learned, expected = load_rubric(run.out), written.decode().replace(DAY.isoformat(), date.today().isoformat())
    assert learned.report and run.out.read_text() == expected


def test_what_cannot_be_judged_is_no_agreement(run):
    run = run(3, 16, "scored", noise=0.0, judge_noise=0.0)
    model = run.world.model()
    with ScriptedChatServer(model) as server:
        good = run.learn(server, rounds=1)
    run.forget()
    examples = read_examples(run.folder / "examples.jsonl")
    hard = {one.answers[0] for one in split_examples(examples, Config().astune.seed).test}

    def refuses(body: dict[str, Any]) -> Any:
        judges = body["messages"][0]["content"].startswith(JUDGE)
        return (
            "{}"
            if judges and any(text in hard for _, text in read_fences(body["messages"][1]["content"]))
            else model(body)
        )

    with ScriptedChatServer(refuses) as server:
        rubric = run.learn(server, rounds=1)
    assert rubric.report["test"]["could_not_judge"] == rubric.report["test"]["n"] == good.report["test"]["n"]
    assert rubric.report["test"]["accuracy"] == 0.0 < good.report["test"]["accuracy"]


@pytest.mark.fault("Rubrics", "no criterion helps", "no rubric is written")
def test_where_nothing_helps_no_file_is_written(run):
    run = run(1, 10, "scored")
    model = run.world.model()

    def indifferent(body: dict[str, Any]) -> Any:
        reply = model(body)
        if not body["messages"][0]["content"].startswith(JUDGE):
            return reply
        scores = json.loads(reply)["criteria"]
        return json.dumps({"criteria": [{**score, "score": 1} for score in scores]})

    with ScriptedChatServer(indifferent) as server, pytest.raises(NothingHelps) as error:
        run.learn(server, rounds=1)
    assert not run.out.exists()
    assert error.value.candidates and {gain for _, gain in error.value.candidates} == {0.0}


def test_models_that_are_gone_end_the_run_at_once(run):
    run = run(1, 10, "scored")
    with ScriptedChatServer([401] * 1000) as server, pytest.raises(AstuneError, match="none is paid twice"):
        run.learn(server, max_concurrent=2)
    assert len(server.requests) <= 2


@pytest.mark.fault("Rubrics", "a rubric was edited by hand and is learned again", "it is not written over")
def test_edits_survive_a_run_with_keep_edited_and_are_not_overwritten_without(run):
    run = run(3, 20, "scored", noise=0.0, judge_noise=0.0)
    with ScriptedChatServer(run.world.model()) as server:
        learned = run.learn(server, rounds=1)
        kept, gone, *others = learned.criteria
        kept = kept.model_copy(update={"text": "Greets the customer by name.", "weight": 2.5})
        save_rubric(learned.model_copy(update={"criteria": (kept, *others)}), run.out)
        with pytest.raises(ConfigError, match=f"{kept.id}.*{gone.id} .taken out.*--keep-edited"):
            run.learn(server, rounds=1)
        again = run.learn(server, rounds=1, keep_edited=True)
        later = run.learn(server, rounds=1, keep_edited=True)
    found = {one.id: one for one in again.criteria}
    assert found[kept.id] == kept.model_copy(update={"edited": True})
    assert gone.id not in found and len(found) > 1
    assert {one.id: one for one in later.criteria}[kept.id].edited


def test_anchors_of_scaled_criteria_are_in_the_rubric_and_on_the_scale(run):
    run = run(3, 16, "scored", noise=0.0, judge_noise=0.0)
    with ScriptedChatServer(run.world.model()) as server:
        rubric = run.learn(server, rounds=1, scale="scaled")
    assert all((one.min, one.max) == (0, 4) and set(one.anchors) == {0, 4} for one in rubric.criteria)


@pytest.mark.fault("Rubrics", "replies of the models are malformed now and then", "a rubric is learned all the same")
def test_a_server_with_faults_is_lived_with(run):
    run = run(3, 16, "scored", faults=Faults(malformed=0.1, missing=0.1, repeated=0.1))
    with ScriptedChatServer(run.world.model()) as server:
        rubric = run.learn(server, rounds=1)
    assert rubric.criteria and threading.active_count() < 50
