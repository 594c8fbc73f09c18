"""Tasks of an environment service: it knows their ids, and says the rest when an instance is made."""

from __future__ import annotations

from astune.clients.env_requests import Fault
from astune.clients.env_service import EnvServiceClient
from astune.config.tasks import TaskReaderConfig
from astune.errors import EnvServiceError, TaskError
from astune.task_reader.task_reader_base import Split
from astune.types import Task

KEY = "astune.task_reader.env_service"
START_ONE = (
    "Is a service running there? `astune env serve --env gymnasium:FrozenLake-v1` starts one, "
    f"and {KEY}.serve one for the time of a run."
)


class TaskReaderEnvService:
    """Reads `astune.task_reader.env_service`: asks the service for the task ids of a split.

    Raises `ConfigError` where no service is named, and `TaskError` where it does not answer with tasks.
    """

    def __init__(self, config: TaskReaderConfig) -> None:
        self._config = config.env_service

    def read(self, split: Split) -> list[Task]:
        name = self._config.training_split if split == "training" else self._config.validation_split
        if name is None:
            return []
        client = EnvServiceClient.of(self._config)
        env_type = self._config.env_type or _only_env_type(client)
        try:
            task_ids = client.task_ids(name, env_type)
        except EnvServiceError as error:
            raise TaskError(_with_advice(error, f"{KEY}.{split}_split {name!r}")) from error
        return [
            Task(task_id=task_id, query="", env_type=env_type, place=f"{client.url} {name}[{index}]")
            for index, task_id in enumerate(task_ids)
        ]


def _only_env_type(client: EnvServiceClient) -> str:
    try:
        env_types = client.env_types()
    except EnvServiceError as error:
        raise TaskError(
            _with_advice(error, f"{KEY}.env_type is not set, and what the service has is not known")
        ) from error
    if len(env_types) != 1:
        listed = ", ".join(env_types) or "none"
        raise TaskError(f"{KEY}.env_type: not set; expected one of the types that {client.url} serves: {listed}")
    return env_types[0]


def _with_advice(error: EnvServiceError, key: str) -> str:
    cause = error.__cause__
    no_reply = isinstance(cause, Fault) and cause.status is None
    return f"{key}: {error}" + (f". {START_ONE}" if no_reply else "")
