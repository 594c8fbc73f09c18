"""Every episode of a run as one JSON line: readable by people, and complete enough to be read back.

    {"step": 3, "phase": "train", "episode_id": "...", "task_id": "...", "reward": 1.0, "passed": true,
     "stop_reason": "completed", "error": null, "answer": "42", "verdict": {...}, "metrics": {...}, "task": {...},
     "turns": [{"agent": "solver", "messages_kept": 2, "messages": [...], "response": {...}, ...}, ...],
     "timelines": [{"agent": "solver", "fork": null, "tokens_kept": 0, "token_ids": [...],
                    "spans": [{"turn": 0, "logprobs": [...], ...}, ...]}]}

A turn's `messages` are those after the first `messages_kept` of the same agent's turn before, and `tools` is left out
where it did not change. In the same way a timeline's `token_ids` are those after the first `tokens_kept` of the same
agent's timeline before, and a shared span leaves its logprobs to the span of its turn that is not. So ids stand once; a
turn holds ids of its own only if no span has it. An episode in an environment has `env_score` and `env_error` too, one
whose tool results were seen `tools`: {"calculator": {"calls": 3, "errors": 1, "message": "..."}}.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from astune.monitor.jsonl import LineFile, broken_line, keep_lines, plain, plain_foreign, read_lines
from astune.monitor.run_dir import RunDir
from astune.support.sequences import common_start
from astune.token_ids import WIDTH, Logprobs, TokenIds, shared_bytes
from astune.types import Episode, EpisodeError, Span, StopReason, Task, Timeline, ToolUse, Turn, Verdict, WorkflowOutput

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

    def write(self, episode: Episode, *, step: int, phase: str) -> None:
        """What is not JSON in the answer or the task's row is written as text; logprobs keep five digits. Raises
        RunFolderError where the disk does not take it."""
        if phase not in self._files:
            self._files[phase] = LineFile(episodes_path(self._folder, phase))
        row = episode_to_row(EpisodeRecord(step, phase, episode))
        self._files[phase].append_plain(row)
        if self._sink is not None:
            self._sink.write(row)

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
        done = None if evaluated is None else {"train", *(f"eval/{decoding}" for decoding in evaluated)}
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
            raise broken_line(path, number, f"not an episode ({type(error).__name__}: {error})") from error


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
        row["tools"] = {name: vars(use) for name, use in episode.tools.items()}
    plain_row: dict[str, Any] = plain(row)
    return plain_row


def _output_to_row(output: WorkflowOutput) -> dict[str, Any]:
    row: dict[str, Any] = {"reward": output.reward, "metrics": output.metrics}
    same = output.response is output.answer  # their == is somebody else's code
    return row if same else {**row, "response": plain_foreign(output.response)}


def _verdict_to_row(verdict: Verdict) -> dict[str, Any]:
    row = {"reason": verdict.reason, "metrics": verdict.metrics, "judged_by": verdict.judged_by}
    return {**row, "undecided": True} if verdict.undecided else row


def _turns_to_rows(episode: Episode) -> list[dict[str, Any]]:
    found = _ids_in_timelines(episode.timelines)
    rows = []
    former: dict[str, Turn] = {}
    for index, turn in enumerate(episode.turns):
        before = former.get(turn.agent)
        kept = 0 if before is None else common_start(before.messages, turn.messages)
        row: dict[str, Any] = {
            "agent": turn.agent,
            "messages_kept": kept,
            "messages": turn.messages[kept:],
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
        if turn.tools != (() if before is None else before.tools):
            row["tools"] = turn.tools
        if found.get(index) != (turn.prompt_ids, turn.output_ids, turn.logprobs):
            row |= {"prompt_ids": list(turn.prompt_ids), "output_ids": list(turn.output_ids)}
            row["logprobs"] = _rounded(turn.logprobs)
        rows.append(row)
        former[turn.agent] = turn
    return rows


_Ids = tuple[Sequence[int], Sequence[int], Sequence[float]]


def _ids_in_timelines(timelines: Sequence[Timeline]) -> dict[int, _Ids]:
    """Per turn number its prompt, output and logprobs, as the first span that it wrote has them."""
    found: dict[int, _Ids] = {}
    for timeline in timelines:
        ids = tuple(timeline.token_ids)
        for span in timeline.spans:
            found.setdefault(span.turn, (ids[: span.start], ids[span.start : span.stop], span.logprobs))
    return found


def _rounded(logprobs: Sequence[float]) -> list[float]:
    return [round(logprob, LOGPROB_DIGITS) for logprob in logprobs]


def _timelines_to_rows(timelines: Sequence[Timeline]) -> list[dict[str, Any]]:
    rows = []
    former: dict[str, bytes] = {}
    own = {span.turn for timeline in timelines for span in timeline.spans if not span.shared}
    for timeline in timelines:
        data = TokenIds.of(timeline.token_ids).packed()
        kept = shared_bytes(former.get(timeline.agent, b""), data)
        former[timeline.agent] = data
        spans = []
        for span in timeline.spans:
            known = span.shared and span.turn in own
            spans.append({**vars(span), "logprobs": None if known else _rounded(span.logprobs)})
        ids = list(TokenIds.from_packed(data[kept:]))
        row = {"agent": timeline.agent, "fork": timeline.fork, "tokens_kept": kept // WIDTH, "token_ids": ids}
        rows.append({**row, "spans": spans})
    return rows


def episode_from_row(row: Mapping[str, Any]) -> EpisodeRecord:
    timelines = _timelines_from_rows(row["timelines"])
    output, verdict, error = row["output"], row["verdict"], row["error"]
    if output is not None:
        output = WorkflowOutput(**{"answer": row["answer"], **output})
    if verdict is not None:
        verdict = Verdict(reward=_number(row["reward"]), passed=row["passed"], **verdict)
    episode = Episode(
        episode_id=row["episode_id"],
        task=Task(**{**row["task"], "messages": tuple(row["task"]["messages"])}),
        turns=_turns_from_rows(row["turns"], _ids_in_timelines(timelines)),
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
        env_score=row.get("env_score"),
        env_error=row.get("env_error", ""),
    )
    return EpisodeRecord(row["step"], row["phase"], episode)


def _turns_from_rows(rows: Sequence[Mapping[str, Any]], found: Mapping[int, _Ids]) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    former: dict[str, Turn] = {}
    for index, row in enumerate(rows):
        values = dict(row)
        before = former.get(values["agent"])
        number_kept = values.pop("messages_kept")
        kept = () if before is None else before.messages[:number_kept]
        if "output_ids" not in values:
            values |= dict(zip(("prompt_ids", "output_ids", "logprobs"), found[index], strict=True))
        tools = tuple(values["tools"]) if "tools" in values else () if before is None else before.tools
        values |= {"messages": (*kept, *values["messages"]), "tools": tools}
        values["logprobs"] = list(map(_number, values["logprobs"]))
        turns.append(Turn(**values))
        former[turns[-1].agent] = turns[-1]
    return tuple(turns)


def _timelines_from_rows(rows: Sequence[Mapping[str, Any]]) -> tuple[Timeline, ...]:
    written = [values for row in rows for values in row["spans"] if values["logprobs"] is not None]
    logprobs = {values["turn"]: Logprobs(map(_number, values["logprobs"])) for values in reversed(written)}
    timelines = []
    former: dict[str, list[int]] = {}
    for row in rows:
        ids = [*former.get(row["agent"], [])[: row["tokens_kept"]], *row["token_ids"]]
        former[row["agent"]] = ids
        spans = tuple(Span(**{**values, "logprobs": logprobs[values["turn"]]}) for values in row["spans"])
        timelines.append(Timeline(row["agent"], ids, spans, row["fork"]))
    return tuple(timelines)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
