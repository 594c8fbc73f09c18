"""The judge: from a finished episode to a reward, here 1 or 0."""

from astune import Episode, Task


def judge(task: Task, episode: Episode) -> bool:
    return episode.output is not None and f"The answer is {task.answer}." in str(episode.output.answer)
