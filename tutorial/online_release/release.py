"""A good version is promoted, a poisoned one is found out on a few users and rolled back, with nobody looking.

    python tutorial/online_release/release.py --folder runs/release_demo --seed 1
    python tutorial/online_release/release.py --gate                  # held-out tasks find it before a user does
    python tutorial/online_release/release.py --strategy at_once      # the same without releases

Users ask and give thumbs, which make a version. Then accounts of a campaign "correct" answers, all in the same wrong
way, which makes another one, and users go on asking. `outcome.json` of the folder says who met it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa

from astune.online.store import aliases, releases, versions
from astune.online.store.releases import Release
from astune.store.database import open_existing
from astune.store.tables import requests

sys.path.append(str(Path(__file__).resolve().parents[1] / "online"))
from run import HERE as ONLINE
from run import Processes, answers, free_port, read_lines

HERE = Path(__file__).resolve().parent
GOOD, POISONED = 1, 2
POISON = "The answer is 7."


@dataclass(frozen=True)
class Ending:
    """How the release of a version ended. `seconds` and `questions` are since the version was made."""

    state: str
    stage: int
    """-1: before a user met it."""
    seconds: float
    questions: int
    why: str | None


@dataclass(frozen=True)
class Outcome:
    """Of the questions that users asked once the poisoned version was made: `met` are the users whom it answered,
    `wrong` its wrong answers. `right` has the share of right answers by version, over all."""

    strategy: str
    gate: bool
    seed: int
    good: Ending | None
    poisoned: Ending | None
    asked: int
    users: int
    met: int
    wrong: int
    right: dict[int, float]


class Story:
    """The processes, and what happens with them one after the other."""

    def __init__(self, given: argparse.Namespace, processes: Processes) -> None:
        self.given, self.processes = given, processes
        self.endpoint, self.agent = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.store = f"sqlite:///{given.folder / 'online' / 'online.db'}"
        self.groups = 0

    def begin(self) -> None:
        self.processes.start("astune", "-m", "astune", "online", *self._options())
        port = self.agent.rpartition(":")[2]
        self.processes.start("agent", str(ONLINE / "agent.py"), "--endpoint", self.endpoint, "--port", port)
        self.processes.wait_for(lambda: answers(f"{self.endpoint}/health") and answers(f"{self.agent}/health"))

    def _options(self) -> Iterator[str]:
        yield from ("--conf", str(HERE / "release.yaml"))
        yield f"astune.online.folder={self.given.folder / 'online'}"
        yield f"astune.online.serve.port={self.endpoint.rpartition(':')[2]}"
        yield f"astune.seed={self.given.seed}"
        yield f"astune.online.release.strategy={self.given.strategy}"
        yield f"astune.online.release.gate_tasks={100 * self.given.gate}"
        yield from self.given.options

    def ask(self, name: str, *habits: str) -> None:
        """Let people ask: `users`, each of whom gives a thumb, or others with habits of their own."""
        self.groups += 1
        seed, log = f"--seed={100 * self.groups + self.given.seed}", self.given.folder / f"{name}.jsonl"
        options = ("--agent", self.agent, "--log", str(log), seed, f"--parallel={self.given.parallel}")
        self.processes.start(name, str(ONLINE / "users.py"), *options, "--users=1000", "--late=0", *habits)

    def commit(self, number: int) -> None:
        """Have a version made, and wait for it."""
        httpx.post(f"{self.endpoint}/commit", json={}, timeout=60).raise_for_status()
        self.wait(lambda: self.find(versions.newest).number >= number, f"v{number} is made")

    def find(self, read: Callable[[sa.Connection], Any]) -> Any:
        with closing(open_existing(self.store)) as database, database.reading() as connection:
            return read(connection)

    def is_over(self, number: int) -> bool:
        """True once the release of a version has ended."""
        tests: list[Release] = self.find(lambda each: releases.recent(each, 1))
        return any(each.challenger == number and not each.is_open for each in tests)

    def said(self, name: str) -> list[dict[str, Any]]:
        """What people asked and got, of those who got an answer."""
        return [line for line in read_lines(self.given.folder / f"{name}.jsonl") if "right" in line]

    def wait(self, is_so: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + 60 * self.given.minutes
        while not is_so():
            self.processes.check()
            if time.monotonic() > end:
                raise SystemExit(f"not within {self.given.minutes:g} minutes: {what}")
            time.sleep(0.5)
        print(f"{len(self.said('users')):5d} asked: {what}", flush=True)

    def wait_for_questions(self, more: int, name: str = "users") -> None:
        wanted = len(self.said(name)) + more
        self.wait(lambda: len(self.said(name)) >= wanted, f"{more} more questions of {name} are answered")


def run(given: argparse.Namespace) -> Outcome:
    given.folder.mkdir(parents=True)
    with Processes(given.folder) as processes:
        story = Story(given, processes)
        story.begin()
        story.ask("users", "--silent=0")
        story.wait_for_questions(given.thumbs)
        story.commit(GOOD)
        story.wait(lambda: story.find(aliases.champion).number == GOOD, f"v{GOOD} is champion")
        processes.stop("users")
        story.ask("campaign", "--name=eve", f"--correct={POISON}")
        story.wait_for_questions(given.campaign, "campaign")
        processes.stop("campaign")
        story.commit(POISONED)
        story.ask("users", "--silent=0")
        wanted = len(story.said("users")) + given.questions
        story.wait(lambda: story.is_over(POISONED) or len(story.said("users")) >= wanted, "that is what came of it")
        processes.stop("users")
        return look(story)


def look(story: Story) -> Outcome:
    """Put together what became of both versions."""
    made = {version.number: version.made for version in story.find(versions.every)}
    poison = story.find(versions.load_tree).heirs(POISONED) | {POISONED}
    tests = {each.challenger: each for each in story.find(lambda each: releases.recent(each, 9))}
    by = dict(
        story.find(lambda each: [(*row,) for row in each.execute(sa.select(requests.c.msg_id, requests.c.version))])
    )
    lines = [{**line, "version": by[line["message"]]} for line in story.said("users")]
    after = [line for line in lines if line["time"] >= made[POISONED]]
    bad = [line for line in after if line["version"] in poison]
    right: dict[int, list[bool]] = {}
    for line in lines:
        right.setdefault(line["version"], []).append(line["right"])

    def end(number: int) -> Ending | None:
        test = tests.get(number)
        if test is None or test.ended is None:
            return None
        questions = sum(made[number] <= line["time"] <= test.ended for line in lines)
        return Ending(test.state, test.stage, round(test.ended - made[number], 1), questions, test.reason)

    return Outcome(
        story.given.strategy,
        story.given.gate,
        story.given.seed,
        end(GOOD),
        end(POISONED),
        len(after),
        len({line["user"] for line in after}),
        len({line["user"] for line in bad}),
        sum(not line["right"] for line in bad),
        {number: round(sum(found) / len(found), 3) for number, found in sorted(right.items())},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs") / "online" / time.strftime("release_%Y%m%d_%H%M%S"))
    parser.add_argument("--strategy", choices=("staged", "at_once"), default="staged")
    parser.add_argument("--gate", action="store_true", help="play held-out tasks before a user meets a version")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--thumbs", type=int, default=128, help="from which the good version is made")
    parser.add_argument("--campaign", type=int, default=192, help="poisoned corrections, each of an account of its own")
    parser.add_argument("--questions", type=int, default=600, help="that users ask of the poisoned version, at most")
    parser.add_argument("--parallel", type=int, default=32, help="users at the same time")
    parser.add_argument("--minutes", type=float, default=30.0, help="each part takes so long at most")
    parser.add_argument("options", nargs="*", help="of the configuration, as astune.online.release.min_users=50")
    given = parser.parse_args()
    given.folder = given.folder.absolute()
    told = json.dumps(asdict(run(given)), indent=1)
    (given.folder / "outcome.json").write_text(told + "\n", encoding="utf-8")
    print(told)


if __name__ == "__main__":
    main()
