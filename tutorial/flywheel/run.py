"""Turns of a flywheel with one command: serve, make data of what users say, train, compare, serve what is better.

    python tutorial/flywheel/run.py --folder runs/flywheel/demo
    python tutorial/flywheel/run.py --folder runs/flywheel/demo --follow 2    # which answers turn 2 learned from

The folder has `turns.jsonl`, a line for each turn, `chart.svg`, and what each step said in `wheel.log`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa
import yaml

import astune
from astune.cli import main as command
from astune.store.database import open_existing
from astune.store.tables import requests
from astune.testing import ScriptedChatServer

sys.path.append(str(Path(__file__).resolve().parents[2]))
from tutorial.flywheel.teacher import Teacher
from tutorial.online.chart import draw
from tutorial.online.run import Processes, answers, free_port, read_lines

HERE = Path(__file__).resolve().parent
CONF, ONLINE = HERE / "flywheel.yaml", HERE.parent / "online"
CERTAIN = 0.05
"""p of the paired test below which a model that solves more takes over."""


@dataclass(frozen=True)
class Turn:
    """What a turn of the wheel came to. Success is that on held-out tasks, sampled, with its 95 % interval."""

    number: int
    asked: int
    right: int
    """Answers to users that were."""
    tasks: int
    """With a reference: from all answers so far."""
    pairs: int
    made: int
    """Variants of those tasks, with checked answers."""
    dropped: dict[str, int]
    before: float
    after: float
    after_interval: tuple[float, float] | None
    gain: float
    gain_interval: tuple[float, float] | None
    p: float
    promoted: bool

    def show(self) -> str:
        low, high = self.after_interval or (self.after, self.after)
        least, most = self.gain_interval or (self.gain, self.gain)
        return (
            f"| {self.number} | {self.right} of {self.asked} | {self.tasks} + {self.made} | {self.before:.1%} | "
            f"{self.after:.1%} ({low:.1%} to {high:.1%}) | {self.gain:+.1%} ({least:+.1%} to {most:+.1%}) | "
            f"{self.p:.2g} | {'yes' if self.promoted else 'no'} |"
        )


class Wheel:
    """The service with its store, the agent in front of it, and the model that answers."""

    def __init__(self, given: argparse.Namespace, teacher: str) -> None:
        self.given, self.folder = given, given.folder
        self.endpoint, self.agent = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.champion = "none"
        """The run that made the model which answers; at first none."""
        models = [{"base_url": teacher, "model": "teacher"}]
        self.keys = [
            *(f"astune.online.folder={self.folder / 'online'}", f"astune.runs_dir={self.folder / 'runs'}"),
            *(f"astune.online.serve.port={self.endpoint.rpartition(':')[2]}", f"astune.seed={given.seed}"),
            *(f"astune.task_reader.augment.models={json.dumps(models)}", *given.options),
        ]

    def begin(self, processes: Processes) -> None:
        processes.start("service", "-m", "astune", "online", "serve", "--conf", str(CONF), *self.keys)
        port = self.agent.rpartition(":")[2]
        processes.start("agent", str(ONLINE / "agent.py"), "--endpoint", self.endpoint, "--port", port)
        processes.wait_for(lambda: answers(f"{self.endpoint}/health") and answers(f"{self.agent}/health"))

    def turn(self, number: int, processes: Processes) -> Turn:
        """Turn it once; what it makes stands in a folder of its own."""
        folder = self.folder / f"turn_{number}"
        folder.mkdir()
        users, traced, more = (folder / f"{name}.jsonl" for name in ("users", "traced", "more"))
        self.ask(users, number)
        self.astune("data", "from-traces", self.folder / "online" / "online.db", "--out", traced)
        report = json.loads(traced.with_suffix(".report.json").read_text(encoding="utf-8"))
        target = self.given.variants * report["with_reference"]
        self.astune("data", "expand", "--seeds", traced, "--target", target, "--out", more, fewer=True)
        run = self.train(number, traced, more)
        found = self.compare(run, traced)
        promoted = found.difference.mean > 0 and found.test.p < CERTAIN
        self.astune("online", "versions", "import", run, "--parent", "champion")
        if promoted:
            self.astune("online", "versions", "promote", f"v{number}")
            processes.wait_for(lambda: httpx.get(f"{self.endpoint}/health").json()["version"] == number)
            self.champion = str(run)
        said = read_lines(users)
        made = json.loads(more.with_suffix(".report.json").read_text(encoding="utf-8"))
        return Turn(
            number,
            len(said),
            sum(line.get("right", False) for line in said),
            report["with_reference"],
            report["pairs"],
            made["kept"],
            made["dropped"],
            found.first.mean,
            found.second.mean,
            found.second.interval,
            found.difference.mean,
            found.difference.interval,
            found.test.p,
            promoted,
        )

    def ask(self, log: Path, number: int) -> None:
        """Let people ask what nobody asked before, and say what they think of the answers."""
        options = ("--agent", self.agent, "--log", str(log), f"--seed={100 * self.given.seed + number}", "--late=0")
        habits = (f"--count={self.given.questions}", f"--corrects={self.given.corrects}", f"--wrong={self.given.wrong}")
        subprocess.run([sys.executable, str(ONLINE / "users.py"), *options, *habits], check=True)

    def train(self, number: int, traced: Path, more: Path) -> Path:
        """Go on from the model that answers."""
        model = [] if self.champion == "none" else [f"astune.model.path={astune.Run(self.champion).model}"]
        data = [f"jsonl.training.file_path={traced}", f"augment.file={more}"]
        keys = [f"astune.experiment_name=turn_{number}", *model, *(f"astune.task_reader.{key}" for key in data)]
        self.astune("run", *keys)
        return self.folder / "runs" / "flywheel" / f"turn_{number}"

    def compare(self, run: Path, traced: Path) -> Any:
        """Compare it with the model that answers, on the same held-out tasks."""
        options = (key.removeprefix("astune.").split("=", 1) for key in self.given.options)
        keys = {name: yaml.safe_load(value) for name, value in options}
        keys |= {"task_reader.jsonl.training.file_path": str(traced), "runs_dir": str(self.folder / "runs")}
        found = astune.evaluate(conf=CONF, models=[self.champion, str(run)], **keys)
        return next(row for row in found.compared[0].rows if (row.evaluation, row.figure) == ("sampled", "success"))

    def astune(self, *words: object, fewer: bool = False) -> None:
        """Run a command. With `fewer` it may make fewer tasks than it was to."""
        line = [*map(str, words), "--conf", str(CONF), *self.keys]
        with (self.folder / "wheel.log").open("a", encoding="utf-8") as log, redirect_stdout(log), redirect_stderr(log):
            print(f"$ astune {shlex.join(line)}", flush=True)
            code = command(line)
        if code > fewer:
            raise SystemExit(f"astune {' '.join(map(str, words[:3]))} ended with {code}: see {self.folder}/wheel.log")


def follow(folder: Path, number: int) -> Iterator[dict[str, Any]]:
    """The tasks that a turn was trained on, each with the answer that it came from: who gave it, and what was said."""
    turn = folder / f"turn_{number}"
    rows = {row["task_id"]: row for name in ("traced", "more") for row in read_lines(turn / f"{name}.jsonl")}
    with closing(open_existing(f"sqlite:///{folder / 'online' / 'online.db'}")) as store, store.reading() as connection:
        versions = {row.msg_id: row.version for row in connection.execute(sa.select(requests))}
    run = astune.Run(folder / "runs" / "flywheel" / f"turn_{number}")
    for name in dict.fromkeys(record.episode.task.task_id for record in run.episodes("train")):
        lineage = rows[name]["lineage"]
        source = rows[lineage["seed"]]["lineage"] if "seed" in lineage else lineage
        answer = source["trace"]["place"].removeprefix("answer ")
        yield {
            "task": name,
            "query": rows[name]["query"],
            "how": "variant" if "seed" in lineage else source["reference"],
            "answer": answer,
            "version": versions[answer],
            "signs": source["signs"],
        }


def spin(given: argparse.Namespace) -> list[Turn]:
    given.folder.mkdir(parents=True)
    turns = []
    with ScriptedChatServer(Teacher(), usage=True) as teacher, Processes(given.folder) as processes:
        wheel = Wheel(given, teacher.base_url)
        wheel.begin(processes)
        for number in range(1, given.turns + 1):
            turns.append(wheel.turn(number, processes))
            with (given.folder / "turns.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(turns[-1])) + "\n")
            print(turns[-1].show(), flush=True)
    line = [(0, turns[0].before), *((turn.number, turn.after) for turn in turns)]
    told = "held-out tasks, sampled, before the first turn (v0) and after each"
    (given.folder / "chart.svg").write_text(draw([line], "Success by turns of the flywheel", told), encoding="utf-8")
    return turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs") / "flywheel" / time.strftime("demo_%Y%m%d_%H%M%S"))
    parser.add_argument("--follow", type=int, metavar="TURN", help="show the answers that a turn of the folder used")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--questions", type=int, default=128, help="of users, in each turn")
    parser.add_argument("--corrects", type=float, default=0.5, help="share of those with a wrong answer who correct it")
    parser.add_argument("--wrong", type=float, default=0.0, help="share of thumbs that are the wrong way round")
    parser.add_argument("--variants", type=int, default=2, help="to make, for each task with a reference")
    parser.add_argument("options", nargs="*", help="of the configuration, as astune.trainer.total_steps=8")
    given = parser.parse_args()
    given.folder = given.folder.absolute()
    if given.follow is None:
        spin(given)
        return
    found = list(follow(given.folder, given.follow))
    for line in found:
        print(json.dumps(line, ensure_ascii=False))
    for (version, how), count in sorted(Counter((line["version"], line["how"]) for line in found).items()):
        print(f"answers of v{version}: {count} tasks by {how}")


if __name__ == "__main__":
    main()
