"""The whole of it with one command: the service, the trainer, the agent and its users, until the model is good.

    python tutorial/online/run.py --wrong 0.1 --folder runs/online_demo

While users ask, an examiner puts the same held-out questions to the agent under every new version, greedily: what is
sampled greedily is never trained on, and nobody rates it. `progress.jsonl` of the folder has what came out, `chart.svg`
is drawn from it.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from astune.support.http.serving import bound_socket

sys.path += [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "math_agent")]
from chart import Progress, picture, table
from make_tasks import Problem, problems
from users import is_right

HERE = Path(__file__).resolve().parent
START_SECONDS = 120.0
STOP_SECONDS = 60.0
EXAMINERS = 16


class Processes:
    """Processes with a log file each, stopped in the opposite order of their start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        while self._running:
            self.stop(self._running[-1][0])

    def start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log)
        self._running.append((name, process))

    def stop(self, name: str) -> None:
        """With Ctrl-C, as a person would; killed if that does not help."""
        process = next(process for known, process in self._running if known == name)
        self._running = [(known, other) for known, other in self._running if known != name]
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def pid(self, name: str) -> int:
        return next(process.pid for known, process in self._running if known == name)

    def check(self) -> None:
        """Raises SystemExit if one of them has ended."""
        for name, process in self._running:
            if process.poll() is not None:
                log = self.folder / f"{name}.log"
                end = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
                raise SystemExit(f"{name} ended with exit code {process.returncode}; {log} says:\n{end}")

    def wait_for(self, is_there: Callable[[], bool]) -> None:
        end = time.monotonic() + START_SECONDS
        while not is_there():
            self.check()
            if time.monotonic() > end:
                raise SystemExit(f"nothing answered in {START_SECONDS:.0f} seconds; the logs are in {self.folder}")
            time.sleep(0.2)


class Examiner:
    """Asks the agent questions that nobody else asks, greedily, and looks what the users got meanwhile."""

    def __init__(self, agent: str, endpoint: str, questions: Sequence[Problem], users_log: Path) -> None:
        self._agent, self._endpoint = agent, endpoint
        self._http = httpx.Client(timeout=300.0)
        self._questions = questions
        self._log = users_log
        self._seen = 0
        self._began = time.monotonic()

    def version(self) -> int:
        """That answers now."""
        return int(self._http.get(f"{self._endpoint}/health").json()["version"])

    def examine(self) -> Progress:
        """Of the version that answered most of the questions: the next may take over meanwhile."""
        at = time.monotonic() - self._began
        with ThreadPoolExecutor(EXAMINERS) as pool:
            answers = list(pool.map(self._ask, self._questions))
        version = Counter(version for version, _ in answers).most_common(1)[0][0]
        its_own = [right for by, right in answers if by == version]
        users = [line for line in read_lines(self._log) if "right" in line]
        new, self._seen = users[self._seen :], len(users)
        return Progress(
            version=version,
            seconds=round(at, 1),
            held_out=sum(its_own) / len(its_own),
            questions=len(its_own),
            asked=len(users),
            thumbs=sum(user["said"] in ("up", "down") for user in users),
            remarks=sum(user["said"] not in ("up", "down", None) for user in users),
            users=sum(user["right"] for user in new) / len(new) if new else None,
        )

    def _ask(self, problem: Problem) -> tuple[int, bool]:
        """The version that answered, and whether it was right."""
        asked = {"question": problem.query, "user": "examiner", "temperature": 0.0}
        reply = self._http.post(f"{self._agent}/ask", json=asked).raise_for_status().json()
        request = self._http.get(f"{self._endpoint}/v1/astune/requests/{reply['message']}").raise_for_status().json()
        return request["version"], is_right(reply["answer"], problem.answer)


def run(given: argparse.Namespace) -> list[Progress]:
    folder: Path = given.folder
    folder.mkdir(parents=True)
    endpoint, agent = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    with Processes(folder) as processes:
        processes.start("astune", "-m", "astune", "online", *online_options(given, endpoint))
        processes.start("agent", str(HERE / "agent.py"), "--endpoint", endpoint, "--port", agent.rpartition(":")[2])
        processes.wait_for(lambda: answers(f"{endpoint}/health") and answers(f"{agent}/health"))
        log = folder / "users.jsonl"
        examiner = Examiner(agent, endpoint, list(islice(problems("heldout", seed=0), given.exam)), log)
        found = [kept(examiner.examine(), folder)]
        names = ("wrong", "silent", "late", "flatterer", "parallel", "seed")
        habits = [f"--{name}={getattr(given, name)}" for name in names] + ["--follow"] * given.follow
        processes.start("users", str(HERE / "users.py"), "--agent", agent, "--log", str(log), *habits)
        end = time.monotonic() + 60 * given.minutes
        while found[-1].version < given.versions and time.monotonic() < end:
            processes.check()
            if examiner.version() > found[-1].version and (progress := examiner.examine()).version > found[-1].version:
                found.append(kept(progress, folder))
            time.sleep(0.2)
        processes.stop("users")
    return found


def online_options(given: argparse.Namespace, endpoint: str) -> Iterator[str]:
    yield from ("--conf", str(HERE / "online.yaml"))
    yield f"astune.online.folder={given.folder / 'online'}"
    yield f"astune.online.serve.port={endpoint.rpartition(':')[2]}"
    yield f"astune.seed={given.seed}"
    if given.follow:
        yield "astune.online.feedback.follow.judge=rules"
    yield from given.options


def read_lines(log: Path) -> list[dict[str, Any]]:
    """Of a log that somebody writes to: the last line may not be whole yet."""
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def free_port() -> int:
    with bound_socket("127.0.0.1", 0) as bound:
        return int(bound.getsockname()[1])


def answers(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False


def kept(progress: Progress, folder: Path) -> Progress:
    """Shown and written."""
    with (folder / "progress.jsonl").open("a", encoding="utf-8") as file:
        file.write(progress.to_line())
    users = "" if progress.users is None else f", users got {progress.users:.0%} right since the last one"
    remarks = f", {progress.remarks} remarks" if progress.remarks else ""
    print(
        f"{progress.seconds:5.0f} s  version {progress.version}: {progress.held_out:.0%} of held-out questions right"
        f"{users} ({progress.asked} asked, {progress.thumbs} thumbs{remarks})",
        flush=True,
    )
    return progress


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs") / "online" / time.strftime("demo_%Y%m%d_%H%M%S"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--versions", type=int, default=6, help="ends when so many were made")
    parser.add_argument("--minutes", type=float, default=30.0, help="ends after so long in any case")
    parser.add_argument("--exam", type=int, default=100, help="held-out questions for each version")
    parser.add_argument("--wrong", type=float, default=0.0, help="share of thumbs that are the wrong way round")
    parser.add_argument("--silent", type=float, default=0.25, help="share of users that say nothing")
    parser.add_argument("--late", type=float, default=0.2, help="share of thumbs that come late")
    parser.add_argument("--follow", action="store_true", help="nobody gives a thumb: what users say next is judged")
    parser.add_argument(
        "--flatterer", type=float, default=0.0, help="with --follow: share of one who praises what is wrong"
    )
    parser.add_argument("--parallel", type=int, default=32, help="users at the same time")
    parser.add_argument("options", nargs="*", help="of the configuration, as astune.trainer.learning_rate=1e-3")
    given = parser.parse_args()
    found = run(given)
    (given.folder / "chart.svg").write_text(picture([found]), encoding="utf-8")
    print(table([found]))
    print(f"chart  {given.folder / 'chart.svg'}")


if __name__ == "__main__":
    main()
