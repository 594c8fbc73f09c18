"""Every episode of a run as one JSON line: readable by people, and complete enough to be read back.

    {"step": 3, "phase": "train", "episode_id": "...", "task_id": "...", "reward": 1.0, "passed": true,
     "stop_reason": "completed", "error": null, "answer": "42", "verdict": {...}, "metrics": {...}, "task": {...},
     "turns": [{"agent": "solver", "messages": [[0, 0, 2], {...}], "response": {...}, ...}, ...],
     "timelines": [{"agent": "solver", "fork": null, "tokens_kept": 0, "token_ids": [...],
                    "spans": [{"turn": 0, "logprobs": [...], ...}, ...]}]}

Nothing stands twice, so that a line is as long as what is new in each turn. A turn's `messages` are those that nobody
has said before, and by turn, start and stop those that an earlier one has (see `said`). In the same way a timeline's
`token_ids` are those after the first `tokens_kept`, and its `spans` those after the first `spans_kept`, of the timeline
`of`: its number, left out where it is the one before of the same agent. A shared span leaves its logprobs to the span
of its turn that is not; a turn holds ids of its own only if no span has it. An episode in an environment has
`env_score` and `env_error` too, one whose tool results were seen `tools`: {"calculator": {"calls": 3, "errors": 1,
"message": "..."}}.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from astune.monitor.jsonl import LineFile, keep_lines, line_error, plain, plain_foreign, read_lines
from astune.monitor.run_dir import RunDir
from astune.monitor.said import ReadTurns, SaidBefore
from astune.sampling import ContextCut
from astune.token_ids import WIDTH, Logprobs, TokenIds, count_shared_bytes
from astune.types import (
    Episode,
    EpisodeError,
    Span,
    StopReason,
    Task,
    Timeline,
    ToolUse,
    Turn,
    Verdict,
    WorkflowOutput,
)

LOGPROB_DIGITS = 5
UNREADABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)
"""What making an episode from something else raises."""


@dataclass(frozen=True)
class EpisodeRecord:
    """An episode and where in the run it was played. `phase` is "train", "eval/greedy", "eval/hard/greedy"."""

    step: int
    phase: str
    episode: Episode


class EpisodeSink(Protocol):
    """A second place for the lines of a log, which goes back as the files do."""

    def write(self, row: Mapping[str, Any]) -> None: ...

    def truncate_after(self, step: int, phases: Collection[str] | None = None) -> None: ...

    def sync(self) -> None: ...


class EpisodeLog:
    """Writes `episodes/train.jsonl`, `episodes/eval_sampled.jsonl` and so on, one file per phase.

    with EpisodeLog(run_dir) as log:
        log.write(episode, step=3, phase="train")
    """

    def __init__(self, run_dir: RunDir, sink: EpisodeSink | None = None) -> None:
        self._folder = run_dir.episodes_dir
        self._sink = sink
        self._files: dict[str, LineFile] = {}

    def write(self, episode: Episode, *, step: int, phase: str) -> Path:
        """Write a line, and return its file. Values in the answer or the task's row that are not JSON are written as
        text; logprobs keep five digits. Raises RunFolderError where the disk does not take it."""
        if phase not in self._files:
            self._files[phase] = LineFile(episodes_path(self._folder, phase))
        row = episode_to_row(EpisodeRecord(step, phase, episode))
        self._files[phase].append_plain(row)
        if self._sink is not None:
            self._sink.write(row)
        return self._files[phase].path

    def sync(self) -> None:
        """Waits until all that was written is on the disk."""
        for file in self._files.values():
            file.sync()
        if self._sink is not None:
            self._sink.sync()

    def truncate_after(self, step: int, evaluated: Collection[str] | None = None) -> None:
        """Forgets the episodes of later steps: a run resumed from that checkpoint plays them again. With `evaluated`,
        the names of the evaluations that were done at `step`, also those of an evaluation that was broken off there."""
        self.close()
        done = None if evaluated is None else {"train", "redrawn", *(f"eval/{decoding}" for decoding in evaluated)}
        for path in self._folder.glob("*.jsonl"):
            keep_lines(
                path,
                lambda row: row["step"] < step or (row["step"] == step and (done is None or row.get("phase") in done)),
            )
        if self._sink is not None:
            self._sink.truncate_after(step, done)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def __enter__(self) -> EpisodeLog:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def episodes_path(folder: Path, phase: str) -> Path:
    return folder / f"{phase.replace('/', '_')}.jsonl"


def read_episodes(path: Path) -> Iterator[EpisodeRecord]:
    """The episodes of one file in the order they were written, one in memory at a time."""
    for number, row in enumerate(read_lines(path), start=1):
        try:
            yield episode_from_row(row)
        except UNREADABLE as error:
            raise line_error(path, number, f"not an episode ({type(error).__name__}: {error})") from error


def episode_to_row(record: EpisodeRecord) -> dict[str, Any]:
    episode = record.episode
    verdict = episode.verdict
    row: dict[str, Any] = {
        "step": record.step,
        "phase": record.phase,
        "episode_id": episode.episode_id,
        "task_id": episode.task.task_id,
        "reward": episode.reward,
        "passed": None if verdict is None else verdict.passed,
        "stop_reason": episode.stop_reason.value,
        "error": None if episode.error is None else vars(episode.error),
        "answer": None if episode.output is None else plain_foreign(episode.output.answer),
        "output": None if episode.output is None else _output_to_row(episode.output),
        "verdict": None if verdict is None else _verdict_to_row(verdict),
        "metrics": episode.metrics,
        "unique_tokens": episode.unique_tokens,
        "agent_rewards": episode.agent_rewards,
        "turn_rewards": {str(turn): reward for turn, reward in episode.turn_rewards.items()},
        "task": {name: value for name, value in vars(episode.task).items() if name != "place"},
        "turns": _turns_to_rows(episode),
        "timelines": _timelines_to_rows(episode.timelines),
    }
    if episode.env_score is not None or episode.env_error:
        row |= {"env_score": episode.env_score, "env_error": episode.env_error}
    if episode.tools:
        row["tools"] = {name: _use_to_row(use) for name, use in episode.tools.items()}
    if episode.no_credit:
        row["no_credit"] = sorted(episode.no_credit)
    plain_row: dict[str, Any] = plain(row)
    return plain_row


def _output_to_row(output: WorkflowOutput) -> dict[str, Any]:
    row: dict[str, Any] = {"reward": output.reward, "metrics": output.metrics}
    if output.events:
        row["events"] = plain_foreign(output.events)
    same = output.response is output.answer  # their == is somebody else's code
    return row if same else {**row, "response": plain_foreign(output.response)}


def _use_to_row(use: ToolUse) -> dict[str, Any]:
    return {name: value for name, value in vars(use).items() if name != "causes" or value}


def _verdict_to_row(verdict: Verdict) -> dict[str, Any]:
    row = {"reason": verdict.reason, "metrics": verdict.metrics, "judged_by": verdict.judged_by}
    return {**row, "undecided": True} if verdict.undecided else row


def _turns_to_rows(episode: Episode) -> list[dict[str, Any]]:
    found = _turns_in_timelines(episode)
    said = SaidBefore()
    rows = []
    for index, turn in enumerate(episode.turns):
        messages, new_tools = said.add(turn)
        row: dict[str, Any] = {
            "agent": turn.agent,
            "messages": messages,
            "response": turn.response,
            "finish_reason": turn.finish_reason,
            "policy_version": turn.policy_version,
            "temperature": turn.temperature,
            "excluded": turn.excluded,
            "exact": turn.exact,
            "fork": turn.fork,
            "follows": turn.follows,
            "call": turn.call,
        }
        if turn.unread:
            row["unread"] = True
        if turn.cut is not None:
            row["cut"] = vars(turn.cut)
        if turn.model:
            row["model"] = turn.model
        row |= new_tools
        if index not in found:
            row |= {"prompt_ids": list(turn.prompt_ids), "output_ids": list(turn.output_ids)}
            row["logprobs"] = _round_logprobs(turn.logprobs)
        rows.append(row)
    return rows


def _turns_in_timelines(episode: Episode) -> set[int]:
    """Numbers of the turns whose ids and logprobs are those of the first span that has their number."""
    met, found = set[int](), set[int]()
    for timeline in episode.timelines:
        ids = TokenIds.of(timeline.token_ids)
        data, links = ids.pack(), ids.links()
        link: TokenIds | None = ids
        for span in reversed(timeline.spans):
            if span.turn in met or span.turn >= len(episode.turns):
                continue
            met.add(span.turn)
            turn = episode.turns[span.turn]
            while link is not None and len(link) > span.start:
                link, _ = next(links, (None, None))
            start, stop = span.start * WIDTH, span.stop * WIDTH
            # Most prompts are a part of the rope, and need not be looked through.
            same_prompt = turn.prompt_ids is link or turn.prompt_ids == TokenIds.from_packed(data[:start])
            same_output = turn.output_ids == TokenIds.from_packed(data[start:stop])
            if same_prompt and same_output and (turn.logprobs is span.logprobs or turn.logprobs == span.logprobs):
                found.add(span.turn)
    return found


def _round_logprobs(logprobs: Sequence[float]) -> list[float]:
    return [round(logprob, LOGPROB_DIGITS) for logprob in logprobs]


def _timelines_to_rows(timelines: Sequence[Timeline]) -> list[dict[str, Any]]:
    rows = []
    latest: dict[str, int] = {}
    links: dict[tuple[str, int], int] = {}  # an agent's first timeline that has a part of a rope, by id() of the part
    owners = {span.turn for timeline in timelines for span in timeline.spans if not span.shared}
    for number, timeline in enumerate(timelines):
        row: dict[str, Any] = {"agent": timeline.agent, "fork": timeline.fork}
        of = latest.get(timeline.agent)
        data = TokenIds.of(timeline.token_ids).pack()
        kept = 0 if of is None else count_shared_bytes(TokenIds.of(timelines[of].token_ids).pack(), data)
        for link, _ in TokenIds.of(timeline.token_ids).links():
            if links.setdefault((timeline.agent, id(link)), number) != number:
                if len(link) > kept // WIDTH:
                    row["of"] = of = links[timeline.agent, id(link)]
                    kept = count_shared_bytes(TokenIds.of(timelines[of].token_ids).pack(), data)
                break
        before = None if of is None else timelines[of]
        row |= {"tokens_kept": kept // WIDTH, "token_ids": list(TokenIds.from_packed(data[kept:]))}
        spans_kept = 0 if before is None else _count_same_spans(before.spans, timeline.spans)
        if spans_kept:
            row["spans_kept"] = spans_kept
        row["spans"] = []
        for span in timeline.spans[spans_kept:]:
            known = span.shared and span.turn in owners
            row["spans"].append({**vars(span), "logprobs": None if known else _round_logprobs(span.logprobs)})
        latest[timeline.agent] = number
        rows.append(row)
    return rows


def _count_same_spans(before: Sequence[Span], spans: Sequence[Span]) -> int:
    """Count the shared spans at the start of `spans` that are those of `before`."""
    for count, (old, new) in enumerate(zip(before, spans, strict=False)):
        if not new.shared or old.logprobs is not new.logprobs or (old.turn, old.start) != (new.turn, new.start):
            return count
    return min(len(before), len(spans))


def episode_from_row(row: Mapping[str, Any]) -> EpisodeRecord:
    timelines = _timelines_from_rows(row["timelines"])
    output, verdict, error = row["output"], row["verdict"], row["error"]
    if output is not None:
        output = WorkflowOutput(**{"answer": row["answer"], **output})
    if verdict is not None:
        verdict = Verdict(reward=_read_number(row["reward"]), passed=row["passed"], **verdict)
    episode = Episode(
        episode_id=row["episode_id"],
        task=Task(**{**row["task"], "messages": tuple(row["task"]["messages"])}),
        turns=_turns_from_rows(row["turns"], timelines),
        timelines=timelines,
        stop_reason=StopReason(row["stop_reason"]),
        output=output,
        verdict=verdict,
        error=None if error is None else EpisodeError(**error),
        metrics=row["metrics"],
        unique_tokens=row["unique_tokens"],
        agent_rewards=row["agent_rewards"],
        turn_rewards={int(turn): reward for turn, reward in row["turn_rewards"].items()},
        tools={name: ToolUse(**use) for name, use in row.get("tools", {}).items()},
        no_credit=frozenset(row.get("no_credit", ())),
        env_score=row.get("env_score"),
        env_error=row.get("env_error", ""),
    )
    return EpisodeRecord(row["step"], row["phase"], episode)


def _turns_from_rows(rows: Sequence[Mapping[str, Any]], timelines: Sequence[Timeline]) -> tuple[Turn, ...]:
    found = _ids_in_timelines(timelines)
    turns: list[Turn] = []
    read = ReadTurns()
    for index, row in enumerate(rows):
        values = {**row, "messages": read.messages(row), "tools": read.tools(row)}
        values.pop("messages_kept", None)
        if "cut" in row:
            values["cut"] = ContextCut(**row["cut"])
        if "output_ids" in values:
            values["logprobs"] = list(map(_read_number, values["logprobs"]))
        else:
            values |= dict(zip(("prompt_ids", "output_ids", "logprobs"), found[index], strict=True))
        turns.append(Turn(**values))
        read.add(turns[-1])
    return tuple(turns)


def _ids_in_timelines(timelines: Sequence[Timeline]) -> dict[int, tuple[TokenIds, TokenIds, Sequence[float]]]:
    """Per turn number its prompt, output and logprobs, as the first span that it wrote has them. Prompts share with the
    timeline what they have of it."""
    found = {}
    for timeline in timelines:
        ids = TokenIds.of(timeline.token_ids)
        for span in timeline.spans:
            if span.turn not in found:
                prompt, whole = ids.start(span.start), ids.start(span.stop)
                output = TokenIds.from_packed(
                    whole.own if whole.before is prompt else whole.pack()[span.start * WIDTH :]
                )
                found[span.turn] = prompt, output, span.logprobs
    return found


def _timelines_from_rows(rows: Sequence[Mapping[str, Any]]) -> tuple[Timeline, ...]:
    written = [values for row in rows for values in row["spans"] if values["logprobs"] is not None]
    logprobs = {values["turn"]: Logprobs(map(_read_number, values["logprobs"])) for values in reversed(written)}
    shared: dict[int, Span] = {}
    timelines: list[Timeline] = []
    latest: dict[str, int] = {}
    for number, row in enumerate(rows):
        of = row.get("of", latest.get(row["agent"]))
        before = Timeline(row["agent"], (), ()) if of is None else timelines[of]
        ids = TokenIds.of(before.token_ids).start(row["tokens_kept"]) + row["token_ids"]
        spans = [_share_span(span, shared) for span in before.spans[: row.get("spans_kept", 0)]]
        spans += [Span(**{**values, "logprobs": logprobs[values["turn"]]}) for values in row["spans"]]
        timelines.append(Timeline(row["agent"], ids, tuple(spans), row["fork"]))
        latest[row["agent"]] = number
    return tuple(timelines)


def _share_span(span: Span, shared: dict[int, Span]) -> Span:
    """`span` as other timelines have it, one object for all of them."""
    return shared.setdefault(span.turn, span if span.shared else replace(span, shared=True))


def _read_number(value: float | None) -> float:
    return math.nan if value is None else value
