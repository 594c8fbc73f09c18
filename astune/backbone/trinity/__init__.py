"""The Trinity backbone: the same configuration on Trinity-RFT and Ray.

    backbone.py  checks the input, opens the run folder, then driver/run.py starts Trinity's launcher

    a task                                                              in the process of
      explorer/task_reader.py   reads it, in the schedule's order         Explorer
      explorer/workflow.py      plays its group with `run_group`          WorkflowRunner
      explorer/experience.py    packs each episode into an envelope       WorkflowRunner
      explorer/samples.py       unpacks the batch; `to_samples`; rows     RolloutCoordinator
      trainer/whole_steps.py    takes the rows of one batch for a step    Trainer
      trainer/algorithm.py      keeps advantages and weights as they are  Trainer
    a model call, within the episode
      the agent's client -> gateway -> context tracker                    WorkflowRunner
      explorer/policy.py        token ids to the engine and back          WorkflowRunner
    what happened
      shared/mailbox.py         an actor that holds shared/events.py      any -> driver
      driver/recorder.py        metrics, episodes, checkpoints, display   driver

    versions of `astune online`, without explorer
      online/learner.py         samples into the buffer, weights back     `astune online train`
      online/session.py         Trinity's launcher, mode `train`          `astune online train`

`conversion/` makes Trinity's configuration, which names the classes above by their import paths: Trinity imports them
in its own processes. So nothing is imported here or in the packages below; a process pays for what it uses.
"""
