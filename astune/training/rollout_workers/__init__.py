"""Episodes played in processes beside the engine's (`astune.rollout.workers`).

    engine's process                                    a worker
    run_episode ─> EpisodeWorkers ─> EpisodeProcess ══> EpisodeWorker ─> play_episode ─> the workflow
                                            │ <══ WorkerReply: calls as token ids ── RemotePolicy <─┘
                                  Policy.generate ══> Work: answers
    the judge  <─ the episode, without a verdict <══ WorkerReply: ended

What crosses the border is in `messages`; `EpisodeWorker` knows of it no more than a function that sends. A worker never
imports torch. `rollout.rounds` keeps workers and engine in step.
"""

from astune.training.rollout_workers.pool import EpisodeWorkers

__all__ = ["EpisodeWorkers"]
