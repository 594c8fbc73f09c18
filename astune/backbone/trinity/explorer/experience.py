"""Turn ASTune's samples into Trinity's experiences, and pack an episode into one that only carries it, its envelope.

A sample is one row of tokens with spans that carry loss; an experience is one row of tokens of which everything after
`prompt_length` has a mask, a log-probability and an advantage:

    tokens          context ... context  SAMPLED  context  SAMPLED
    prompt_length   ------------------>|
    action_mask                         1  1  1   0  0  0  1  1  1
    advantages      weight * advantage * rows where the mask is 1

Trinity sums over the tokens of a row and divides by the number of rows in the trainer's batch; `rows` is that number,
so what remains is the sum of weight * loss that the local backbone minimises. Context after the last token with loss
trains nothing and is left out.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

import torch
from trinity.common.experience import EID, Experience

from astune.errors import TrainingError
from astune.monitor.jsonl import plain_foreign
from astune.types import Episode, Sample

EPISODE = "astune_episode"
"""Where an envelope has its episode in `Experience.info`."""


def pack_episode(episode: Episode, run: int) -> Experience:
    """An experience that only carries `episode`, attempt number `run` at its task, to `SamplesOperator`. The reward
    stands in the metrics, for Trinity's own log; an episode without verdict has none."""
    metrics = {} if episode.reward is None else {"reward": float(episode.reward)}
    return Experience(
        eid=EID(run=run),
        tokens=torch.zeros(2, dtype=torch.int32),
        prompt_length=1,
        logprobs=torch.zeros(1),
        action_mask=torch.zeros(1, dtype=torch.bool),
        info={EPISODE: pickle.dumps(portable(episode))},
        metrics=metrics,
    )


def portable(episode: Episode) -> Episode:
    """The episode as another process can unpickle it: an answer may be of any class of the user's, so it is sent in the
    form in which it is recorded."""
    if episode.output is None:
        return episode
    answer = plain_foreign(episode.output.answer)
    return replace(episode, output=replace(episode.output, answer=answer, response=answer))


def unpack_episode(experience: Experience) -> Episode:
    episode = pickle.loads(experience.info[EPISODE])
    assert isinstance(episode, Episode)
    return episode


def experiences_of(
    samples: Sequence[Sample], runs: dict[str, tuple[EID, float | None]], *, multiple: int, temperature: float
) -> list[Experience]:
    """The rows of one explored batch, filled up with rows without loss to a multiple of `multiple`, at least one.

    `runs` has the id of the envelope (batch, task, run) and the reward of every episode. A trainer that waits for
    rows would otherwise wait for ever where no group has signal, and its batches must fit its GPUs.

    Raises `TrainingError` for tokens that were sampled at another temperature than the trainer's.
    """
    rows = max(multiple, -(-len(samples) // multiple) * multiple)
    made: list[Experience] = []
    steps: dict[str, int] = {}
    for sample in samples:
        eid, reward = runs[sample.episode_id]
        step = steps[sample.episode_id] = steps.get(sample.episode_id, -1) + 1
        check_temperature(sample, temperature)
        own = EID(batch=eid.batch, task=eid.task, run=eid.run, step=step)
        made.append(experience_of(sample, own, reward, rows))
    batch = next((eid.batch for eid, _ in runs.values()), "")
    made += [filler(EID(batch=batch, task="filler", run=number)) for number in range(rows - len(made))]
    return made


def experience_of(sample: Sample, eid: EID, reward: float | None, rows: int) -> Experience:
    """One row. Its reward is the episode's, for advantage functions of Trinity's own (`trinity.algorithm`)."""
    line = sample.timeline
    trained = [number for number, weight in enumerate(sample.weights) if weight]
    first, last = line.spans[trained[0]].start, line.spans[trained[-1]].stop
    mask = torch.zeros(last, dtype=torch.bool)
    logprobs, advantages = torch.zeros(last), torch.zeros(last)
    for number in trained:
        span = line.spans[number]
        place = slice(span.start, span.stop)
        mask[place] = True
        logprobs[place] = torch.tensor(list(span.logprobs))
        advantages[place] = sample.advantages[number] * sample.weights[number] * rows
    return Experience(
        eid=eid,
        tokens=torch.tensor(list(line.token_ids[:last]), dtype=torch.int32),
        prompt_length=first,
        logprobs=logprobs[first:],
        action_mask=mask[first:],
        advantages=advantages[first:],
        returns=advantages[first:].clone(),
        reward=reward,
        info={
            "model_version": min(line.spans[number].policy_version for number in trained),
            "episode_id": sample.episode_id,
            "agent": line.agent,
        },
    )


def filler(eid: EID) -> Experience:
    """A row with one token that has a mask, as aggregations divide by their number, and an advantage of 0."""
    return Experience(
        eid=eid,
        tokens=torch.zeros(2, dtype=torch.int32),
        prompt_length=1,
        logprobs=torch.zeros(1),
        action_mask=torch.ones(1, dtype=torch.bool),
        advantages=torch.zeros(1),
        returns=torch.zeros(1),
        reward=0.0,
        info={"model_version": 0, "episode_id": ""},
    )


def check_temperature(sample: Sample, temperature: float) -> None:
    for span, weight in zip(sample.timeline.spans, sample.weights, strict=True):
        if weight and span.temperature != temperature:
            raise TrainingError(
                f"agent {sample.timeline.agent!r} sampled at temperature {span.temperature}, but Trinity trains all "
                f"tokens at {temperature}: leave the temperature to astune.rollout.temperature"
            )
