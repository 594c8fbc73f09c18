r"""How quick the math judge is, what a comparison that never ends costs, and how often it is wrong.

    .venv/bin/python benchmarks/math_judge.py
    .venv/bin/python benchmarks/math_judge.py --gsm8k train.jsonl      # lines of {"question", "answer"}

Throughput goes through `MathAnswerAsJudge.judge`, all checks of a round at once, as groups of episodes end. Numbers
are compared in the judge's process; every formula of the other two streams goes to math-verify, which the benchmark
makes sure of: "different" has no two equal pairs, "groups" has eight attempts at each task with three answers among
them. Beside it stand two loops without any pool, each in a process of its own: math-verify as its README calls it
(parse both, verify; without its timeouts, which only work in a main thread), and what our worker process does.
The limit is cores times the latter. All are warm and take turns; each round has pairs that none has seen. Figures are
medians of the rounds, ratios medians of the ratios of a round.

Hangs: `9^{9^{9^9}}` and its like among formulas, a second allowed for each comparison.

Agreement: each case is the whole output of a model and a label. The zoo (tests/task_judge/math/zoo.jsonl) was labelled
by hand; of GSM8K each gold answer is right for its own problem and wrong for another, or when changed, in seven
wordings. Exact and normalised match and math-verify get the answer that our judge extracts, which favours them; the
last number is that of the whole text. The zoo is no sample of what models write: it is chosen to be hard.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random

from bench_table import table_of
from rich.console import Console
from rich.table import Table

from astune.config.judges import TaskJudgeConfig
from astune.judging.agreement import wilson
from astune.task_judge import MathAnswerAsJudge
from astune.task_judge.math.compare import Relation, compare, for_algebra
from astune.task_judge.math.final_answer import extract_answer, reference_answer
from astune.task_judge.math.judge import MathOutcome
from astune.task_judge.math.normalise import normalise
from astune.types import Episode, StopReason, Task, WorkflowOutput

ZOO = Path(__file__).resolve().parents[1] / "tests/task_judge/math/zoo.jsonl"
ENDLESS = ("9^{9^{9^9}}", "(10^8)!", r"\int_0^1 x^{x^{x^x}} dx", "7^{7^{7^{7}}}")
Pair = tuple[str, str]
"""Reference and final answer."""


@dataclass(frozen=True)
class Case:
    reference: str
    output: str
    equal: bool
    question: str = "q"


def episode_of(reference: str, output: str, question: str = "q") -> Episode:
    task = Task("t", question, answer=reference)
    return Episode("e", task, (), (), StopReason.COMPLETED, WorkflowOutput(answer=output))


# Pairs


def numbers(count: int, chance: Random) -> list[Pair]:
    return [(f"{n:,}", str(n + chance.randrange(2))) for n in (chance.randrange(10**6) for _ in range(count))]


def formula(number: int, chance: Random) -> tuple[str, Callable[[int], str]]:
    """A reference and its answer in another form, which is right for 0 and wrong for 1."""
    a, b, c = (chance.randrange(2, 1000) for _ in range(3))
    kinds: list[tuple[str, Callable[[int], str]]] = [
        (rf"{a}\sqrt{{{b}}}", lambda off: rf"\sqrt{{{b}}}\cdot {a + off}"),
        (rf"\frac{{{a}\pi}}{{{b}}}", lambda off: rf"\frac{{{a + off}}}{{{b}}}\pi"),
        (f"x^2+{a}x+{b}", lambda off: f"{b + off}+{a}x+x^2"),
        (rf"(\frac{{{a}}}{{2}},{b})", lambda off: f"({a / 2}, {b + off})"),
        (rf"[\frac{{{a}}}{{2}},{a + b})", lambda off: f"[{a / 2}, {a + b + off})"),
        (rf"\{{{a},{b},{c}\}}", lambda off: rf"\{{{c + off},{a},{b}\}}"),
        (f"y={a}x+{b}", lambda off: f"y = {b + off} + {a}x"),
        (
            rf"\begin{{pmatrix}}{a}\\{b}\end{{pmatrix}}",
            lambda off: rf"\begin{{pmatrix}}{a}.0\\{b + off}\end{{pmatrix}}",
        ),
        (f"(x-{a})(x+{b})", lambda off: f"x^2+{b - a + off}x-{a * b}".replace("+-", "-")),
        (f"{a}+{b}i", lambda off: f"{b}i+{a + off}"),
    ]
    return kinds[number % len(kinds)]


def different(count: int, chance: Random) -> list[Pair]:
    pairs = [formula(number, chance) for number in range(count)]
    return [(reference, answer(chance.randrange(2))) for reference, answer in pairs]


def groups(count: int, chance: Random) -> list[Pair]:
    pairs = []
    for number in range(count // 8):
        reference, answer = formula(number, chance)
        pairs += [(reference, answer(chance.choice((0, 0, 1, 2)))) for _ in range(8)]
    return pairs


STREAMS: dict[str, Callable[[int, Random], list[Pair]]] = {
    "numbers": numbers,
    "formulas, different": different,
    "formulas, groups of 8": groups,
}


# Throughput


async def judge_rate(judge: MathAnswerAsJudge, pairs: Sequence[Pair]) -> float:
    episodes = [episode_of(reference, rf"So it is \boxed{{{answer}}}") for reference, answer in pairs]
    began = time.perf_counter()
    await asyncio.gather(*(judge.judge(episode.task, episode) for episode in episodes))
    return len(pairs) / (time.perf_counter() - began)


def math_verify_rate(pairs: Sequence[Pair]) -> float:
    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    began = time.perf_counter()
    for gold, answer in pairs:
        sides = [parse(f"${side}$", parsing_timeout=None) for side in (gold, answer)]
        verify(*sides, timeout_seconds=None)
    return len(pairs) / (time.perf_counter() - began)


def worker_rate(pairs: Sequence[Pair]) -> float:
    from astune.task_judge.math import worker as math_worker

    logging.disable(logging.CRITICAL)
    began = time.perf_counter()
    for reference, answer in pairs:
        math_worker.equal(reference, answer)
    return len(pairs) / (time.perf_counter() - began)


async def throughput(options: argparse.Namespace, console: Console) -> None:
    judges = {count: MathAnswerAsJudge(TaskJudgeConfig(), workers=count) for count in options.workers}
    with (
        ProcessPoolExecutor(1, get_context("spawn")) as theirs,
        ProcessPoolExecutor(1, get_context("spawn")) as ours,
    ):
        for name, stream in STREAMS.items():
            rates: dict[str, list[float]] = {}
            for number in range(options.rounds + 1):  # the first only warms up
                pairs = stream(options.checks, Random(f"{name} {number}"))
                if name != "numbers":
                    assert all(compare(normalise(r), normalise(a)) is Relation.ALGEBRA for r, a in pairs), name
                sent = [(for_algebra(normalise(r)), for_algebra(normalise(a))) for r, a in pairs]
                found = {"math-verify": theirs.submit(math_verify_rate, sent).result()}
                found["our worker's function"] = ours.submit(worker_rate, sent).result()
                for workers, judge in judges.items():
                    found[f"judge, {workers} workers"] = await judge_rate(judge, pairs)
                for way, rate in found.items():
                    rates.setdefault(way, []).extend([rate] if number else [])
            console.print(rates_table(name, rates))


def rates_table(name: str, rates: dict[str, list[float]]) -> Table:
    def over(way: str, other: str, cores: int = 1) -> str:
        return f"{statistics.median(a / b / cores for a, b in zip(rates[way], rates[other], strict=True)):.2f}"

    cores = os.cpu_count() or 1
    rows = [
        [way, f"{statistics.median(each):,.0f}", over(way, "math-verify"), over(way, "our worker's function", cores)]
        for way, each in rates.items()
    ]
    return table_of(name, ("", "checks/s", "times math-verify", f"of the limit of {cores} cores"), rows)


# Hangs


async def hangs(options: argparse.Namespace, console: Console) -> None:
    rows = []
    for workers in options.workers:
        chance = Random(workers)
        pairs = [formula(number, chance) for number in range(options.hang_checks)]
        labels: list[bool | None] = [bool(chance.randrange(2)) for _ in pairs]
        checks = [(ref, answer(0 if label else 1)) for (ref, answer), label in zip(pairs, labels, strict=True)]
        for count, place in enumerate(chance.sample(range(len(checks)), options.hanging)):
            checks[place], labels[place] = ("2", ENDLESS[count % len(ENDLESS)] + f"+{count}"), None
        config = TaskJudgeConfig(timeout=10.0, must_be_evaluated=False)
        judge = MathAnswerAsJudge(config, workers=workers)
        await judge_rate(judge, [(f"x+{number}", f"{number}+x") for number in range(workers * 4)])
        episodes = [episode_of(reference, rf"\boxed{{{answer}}}") for reference, answer in checks]
        began = time.perf_counter()
        found = await asyncio.gather(*(judge.judge(e.task, e) for e in episodes), return_exceptions=True)
        wall = time.perf_counter() - began
        stopped = sum(not isinstance(v, BaseException) and "was stopped" in str(v.reason) for v in found)
        others = [(v, label) for v, label in zip(found, labels, strict=True) if label is not None]
        right = sum(not isinstance(v, BaseException) and v.passed == label for v, label in others)
        floor = options.hanging / workers
        counts = f"{stopped} of {options.hanging}", f"{right} of {len(others)}"
        rows.append([str(workers), *counts, f"{wall:.1f}", f"{floor:.1f}"])
    title = (
        f"{options.hang_checks} formulas, {options.hanging} of them endless, a second of computing for each comparison"
    )
    columns = ("workers", "stopped", "others right", "s", "s of waiting for the endless alone")
    console.print(table_of(title, columns, rows))


# Agreement


def zoo() -> list[Case]:
    rows = [json.loads(line) for line in ZOO.read_text("utf-8").splitlines()]
    return [
        Case(
            row["reference"],
            answer if row["kind"] == "text" else f"<answer>{answer}</answer>",
            label == "right",
            row.get("question", "q"),
        )
        for row in rows
        for label in ("right", "wrong")
        for answer in row.get(label, ())
    ]


WORDINGS = (
    "{solution}\n#### {answer}",
    "{solution}\nSo the total is \\boxed{{{answer}}}.",
    "{solution}\nThe answer is {answer}. I hope it is correct.",
    "<think>{solution}</think>\n<answer>${answer}.00</answer>",
    "{solution}\n\n**Final Answer:** {answer} of them",
    "{solution}\n答案是{answer}。",
    "\\boxed{{{answer}\\text{{ in total}}}} is 100% certain (checked 2 times).",
)


def gsm8k(path: Path, rows: int) -> list[Case]:
    chance = Random(0)
    texts = [json.loads(line)["answer"] for line in path.read_text("utf-8").splitlines()[:rows]]
    golds = [reference_answer(text) for text in texts]
    cases = []
    for text, gold in zip(texts, golds, strict=True):
        solution, value = text.rpartition("\n####")[0], int(gold.replace(",", ""))
        other = int(chance.choice([each for each in golds if each != gold]).replace(",", ""))
        wrong = [other, value + 1, value * 10, -value if value else 7]
        for wording in WORDINGS:
            cases.append(Case(gold, wording.format(solution=solution, answer=f"{value:,}"), True))
            answer = chance.choice(wrong)
            cases.append(Case(gold, wording.format(solution=solution, answer=f"{answer:,}"), answer == value))
    return cases


def extracted(case: Case) -> str | None:
    final = extract_answer(case.output, "auto")
    return final.text if final else None


def exact(case: Case) -> bool:
    return extracted(case) == reference_answer(case.reference)


def last_number(case: Case) -> bool:
    found = [
        re.findall(r"-?(?:\d[\d,]*\.?\d*|\.\d+)", text) for text in (reference_answer(case.reference), case.output)
    ]
    values = [float(each[-1].replace(",", "").rstrip(".") or "nan") if each else None for each in found]
    return values[0] is not None and values[0] == values[1]


def stripped(text: str) -> str:
    """As Hendrycks et al. (MATH, 2021) normalise an answer before they compare it as text."""
    for gone in ("\n", "\\!", "\\left", "\\right", "^{\\circ}", "^\\circ", "\\$", "$", "\\%", "%", "\\ ", " "):
        text = text.replace(gone, "")
    text = re.sub(r"\\text\{[^{}]*\}$", "", text).replace("tfrac", "frac").replace("dfrac", "frac")
    text = re.sub(r"^\.(?=\d)", "0.", text.replace("{.", "{0."))
    text = text.split("=")[1] if text.count("=") == 1 and len(text.split("=")[0]) <= 2 else text
    text = re.sub(r"\\sqrt(\w)", r"\\sqrt{\1}", text)
    text = re.sub(r"\\frac(\w)(\w)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"^(\d+)/(\d+)$", r"\\frac{\1}{\2}", text)
    return "\\frac{1}{2}" if text == "0.5" else text


def normalised(case: Case) -> bool:
    answer = extracted(case)
    return answer is not None and stripped(answer) == stripped(reference_answer(case.reference))


def math_verify_alone(case: Case) -> bool:
    """By its defaults but for shorter timeouts; in the main thread, where they work."""
    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    sides = [parse(f"${text}$", parsing_timeout=2) for text in (reference_answer(case.reference), extracted(case))]
    return bool(verify(*sides, timeout_seconds=2))


async def our_outcomes(cases: Sequence[Case]) -> list[MathOutcome]:
    judge = MathAnswerAsJudge(TaskJudgeConfig())
    episodes = [episode_of(case.reference, case.output, case.question) for case in cases]
    return [each.outcome for each in await asyncio.gather(*(judge.result_of(e.task, e) for e in episodes))]


def share(count: int, of: int) -> str:
    low, high = wilson(count, of)
    return f"{count} of {of:,} ({100 * low:.1f} to {100 * high:.1f} %)"


async def agreement(name: str, cases: Sequence[Case], console: Console) -> None:
    outcomes = await our_outcomes(cases)
    judges = (exact, last_number, normalised, math_verify_alone)
    ways = {way.__name__.replace("_", " "): [way(case) for case in cases] for way in judges}
    ways["MathAnswerAsJudge"] = [outcome is MathOutcome.RIGHT for outcome in outcomes]
    right = [case.equal for case in cases]
    rows = []
    for way, given in ways.items():
        agree = sum(a == b for a, b in zip(given, right, strict=True))
        false_positives = sum(a and not b for a, b in zip(given, right, strict=True))
        false_negatives = sum(b and not a for a, b in zip(given, right, strict=True))
        accuracy = f"{100 * agree / len(cases):.1f} %"
        rows.append([way, accuracy, share(false_positives, right.count(False)), share(false_negatives, sum(right))])
    console.print(
        table_of(f"{name}: {len(cases):,} cases", ("", "accuracy", "false positives", "false negatives"), rows)
    )
    unread = sum(outcome in (MathOutcome.UNREAD, MathOutcome.FAILED) for outcome in outcomes)
    missed = sum(
        o in (MathOutcome.UNREAD, MathOutcome.FAILED) and equal for o, equal in zip(outcomes, right, strict=True)
    )
    console.print(f"{unread} of them MathAnswerAsJudge could not read, {missed} of those were right\n")


async def main(options: argparse.Namespace) -> None:
    console = Console(width=150)
    await throughput(options, console)
    await hangs(options, console)
    await agreement("Zoo", zoo(), console)
    if options.gsm8k:
        await agreement("GSM8K, seven wordings", gsm8k(options.gsm8k, options.rows), console)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--checks", type=int, default=800, help="per round and way")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hang-checks", type=int, default=400)
    parser.add_argument("--hanging", type=int, default=8)
    parser.add_argument("--gsm8k", type=Path, help="JSON Lines file of GSM8K's problems")
    parser.add_argument("--rows", type=int, default=300, help="problems of it")
    asyncio.run(main(parser.parse_args()))
