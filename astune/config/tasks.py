"""The section `astune.task_reader`: where tasks come from, and the environments that some of them need."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, PrivateAttr, field_validator
from pydantic.config import JsonDict

from astune.config.chat_models import AskedModelsConfig
from astune.config.section import (
    STARTED,
    FromKey,
    Located,
    OnTrinity,
    OptionalPlugin,
    Plugin,
    Section,
    add_from,
    fate,
)
from astune.support.builtin import builtin_name


class JsonlFile(Section):
    file_path: Annotated[str | None, Located("file")] = Field(
        None,
        description="JSON Lines file, or .jsonl.gz, .json, .csv, .tsv, .parquet; relative to the file that names it",
    )


class JsonlReaderConfig(Section):
    training: JsonlFile = Field(default_factory=JsonlFile, description="tasks to train on")
    validation: JsonlFile = Field(default_factory=JsonlFile, description="held-out tasks for evaluation")


CSV_SUFFIXES = (".csv", ".tsv")
ROW_SUFFIXES = (".jsonl", ".json", ".gz", ".parquet", *CSV_SUFFIXES)
"""Files whose rows the reader `jsonl` reads."""


class CsvConfig(Section):
    separator: Literal["comma", "semicolon", "tab", "pipe"] | None = Field(
        None, description="between columns of .csv files: comma, semicolon, tab or pipe; null: comma, in .tsv files tab"
    )
    encoding: str = Field("utf-8", description="of .csv and .tsv files, as utf-16, latin-1 or cp1252")


class HuggingFaceReaderConfig(Section):
    dataset_path: Annotated[str | None, Located("folder")] = Field(
        None, description="hub id such as openai/gsm8k, or a local folder or file"
    )
    dataset_name: str | None = Field(None, description="name of the subset, e.g. main")
    revision: str | None = Field(None, description="branch, tag or commit on the hub; null: the newest")
    streaming: bool = Field(
        False, description="read rows from the hub as they are needed, up to max_training_tasks, and keep no copy"
    )
    training_split: str = Field("train", description="split to train on")
    validation_split: str | None = Field(None, description="held-out split; null: no evaluation tasks")


class ReasoningGymConfig(Section):
    datasets: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="names of reasoning-gym's data sets, each with its options, as {countdown: {max_numbers: 4}}",
    )
    training_tasks: PositiveInt = Field(1000, description="tasks to make for training, over all data sets")
    validation_tasks: NonNegativeInt = Field(100, description="held-out tasks to make, none of which is trained on")
    seed: NonNegativeInt = Field(0, description="another seed makes other tasks")


OR_NULL: JsonDict = {"type": ["object", "null"]}
"""The schema of a section of free keys that null empties."""


class EnvServiceConfig(Section):
    env_url: str | None = Field(
        None, pattern=r"^https?://.+", description="address of the environment service, as http://127.0.0.1:8080"
    )
    serve: OptionalPlugin = Field(
        None,
        description="instead of env_url: an environment that is served while the run lasts, as gymnasium:FrozenLake-v1",
        json_schema_extra=fate(
            OnTrinity(
                ours="the process that was started, which starts the service on this machine",
                cluster="runners on several machines share one service: start it with `astune env serve`, name "
                "it in astune.task_reader.env_service.env_url, and take the key out",
            )
        ),
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="options of the environment that serve names",
        json_schema_extra=fate(
            OnTrinity(
                ours="the process that was started, which starts the service on this machine",
                cluster="they are options of env_service.serve; take the key out, and give them to `astune env serve`",
            )
        )
        | OR_NULL,
    )
    env_type: str | None = Field(
        None, description="type of environment, where the service has several or tasks do not name theirs"
    )
    training_split: str = Field("train", description="type env_service: the service's tasks to train on")
    validation_split: str | None = Field(None, description="type env_service: its held-out tasks; null: none")
    params: dict[str, Any] = Field(
        default_factory=dict, description="sent along when an instance is created", json_schema_extra=OR_NULL
    )
    token_variable: str | None = Field(
        None, description="environment variable that holds the service's token; null: it asks for none"
    )
    timeout: PositiveFloat = Field(60.0, description="seconds that one call may take")
    create_timeout: PositiveFloat = Field(
        300.0, description="seconds to wait for an instance while the service is full"
    )
    retries: NonNegativeInt = Field(3, description="repeats of a call that failed, where a repeat cannot act twice")
    _own_token: str | None = PrivateAttr(None)

    def at(self, url: str, token: str) -> EnvServiceConfig:
        """For the service that `serve` named, now that it is there. The token goes into no file and no environment."""
        there = self.model_copy(update={"env_url": url, "serve": None, "options": {}, "token_variable": None})
        there._own_token = token
        return there

    @property
    def own_token(self) -> str | None:
        """The token of a service that the run started itself."""
        return self._own_token

    @field_validator("options", "params", mode="before")
    @classmethod
    def _null_is_empty(cls, value: Any) -> Any:
        """So that the command line can empty what a file has: `options=null`."""
        return {} if value is None else value


class FieldsConfig(Section):
    task_id: str | None = Field(
        None, description="column of the id; null: 'task_id' or 'id', else made from the content"
    )
    query: str | None = Field(
        None,
        description="the question: a column, a path as 'data.turns[0]', or a template as '{question}\\n{options}'; "
        "null: 'query' or 'question'",
    )
    answer: str | None = Field(
        None, description="the reference answer: column, path or template; null: 'answer' if there is one"
    )
    answer_regex: str | None = Field(
        None, description="what of it is the answer: the first group, as '####\\s*(.+)'; null: all of it"
    )
    messages: str | None = Field(
        None, description="column or path of a conversation to start from; null: 'messages' if there is one"
    )
    env_type: str | None = Field(
        None, description="column or path of the type of environment; null: 'env_type' if there is one"
    )
    metadata: tuple[str, ...] | None = Field(
        None, description="columns that the workflow and the judge see; null: the whole row"
    )


@add_from("file or folder of documents to ask about; null: the training tasks, varied")
class AugmentConfig(AskedModelsConfig, FromKey):
    target: PositiveInt | None = Field(
        None, description="tasks to make beside the training tasks, once, before a run; null: none"
    )
    file: Annotated[str | None, Located("file")] = Field(
        None, description="tasks that `astune data` made, read beside the training tasks; null: none"
    )
    writer: str | None = Field(
        None,
        description="a model that is loaded here and asked before `models`, or alone: a checkpoint, a model's folder "
        "or hub id, or none, the configured model; null: `models` alone",
    )
    max_calls: PositiveInt | None = Field(5000, description="most model calls, those from the cache not counted")
    max_cost: PositiveFloat | None = Field(None, description="most money, as the prices have it; null: no limit")
    checks: tuple[Literal["code", "agree", "agent"], ...] = Field(
        ("code", "agree"),
        min_length=1,
        description="what proves an answer, the next where one cannot: code that a model writes and a sandbox runs; "
        "agree: independent solutions; agent: `agent` plays, in its environment, and the judge says that it is right",
    )
    solutions: int = Field(3, ge=2, description="independent solutions, which all have to agree")
    agent: str | None = Field(
        None,
        description="for the check `agent`, the model on which the agent plays, as `astune eval --models` takes one: "
        "http://host/v1#name, one of astune.rollout.auxiliary_models, a checkpoint, or none, the configured model",
    )
    policy: str | None = Field(
        None,
        description="the model to train, named likewise: what the agent solves on it at times is kept; null: all",
    )
    tries: int = Field(4, ge=2, description="attempts of the policy at each task")
    quality: Annotated[str | None, Located("file")] = Field(
        None, description="rubric of `astune rubrics`, learned from rated tasks: what does not pass it is dropped"
    )
    chunk_words: PositiveInt = Field(200, description="of documents: most words that a question is made from")
    held_out_documents: float = Field(
        0.2, ge=0.0, lt=1.0, description="share of the documents whose questions are held out, by `astune data`"
    )
    temperature: float = Field(1.0, ge=0.0, description="of the replies")
    cache: str | None = Field(
        "runs/made_tasks.sqlite",
        description="file that keeps replies, so that none is paid twice, from the working directory; null: none",
    )


READERS = {
    "jsonl": "astune.task_reader.jsonl:TaskReaderJsonl",
    "huggingface": "astune.task_reader.huggingface:TaskReaderHuggingFace",
    "env_service": "astune.task_reader.env_service:TaskReaderEnvService",
    "reasoning_gym": "astune.task_reader.reasoning_gym:TaskReaderReasoningGym",
}
"""The places of the readers that ship, by the names by which other keys ask for them."""


class TaskReaderConfig(Section):
    type: Plugin = Field(
        "jsonl",
        description="'jsonl', 'huggingface', 'env_service', 'reasoning_gym', or a plug-in 'package.module:Class'",
    )
    jsonl: JsonlReaderConfig = Field(default_factory=JsonlReaderConfig, description="used by type jsonl")
    csv: CsvConfig = Field(default_factory=CsvConfig, description="how .csv and .tsv files are written")
    huggingface: HuggingFaceReaderConfig = Field(
        default_factory=HuggingFaceReaderConfig, description="used by type huggingface"
    )
    reasoning_gym: ReasoningGymConfig = Field(
        default_factory=ReasoningGymConfig, description="used by type reasoning_gym"
    )
    env_service: EnvServiceConfig = Field(
        default_factory=EnvServiceConfig, description="used by type env_service, and by tasks with an env_type"
    )
    fields: FieldsConfig = Field(default_factory=FieldsConfig, description="which column means what")
    augment: AugmentConfig = Field(
        default_factory=AugmentConfig,
        description="more training tasks, made by models and checked: docs/data.md",
        json_schema_extra=fate(OnTrinity(ours=STARTED, methods=("rl",))),
    )
    filter: str | None = Field(
        None, description="which rows, as 'level >= 3 and \"algebra\" in subject' (a Jinja expression); null: all"
    )
    validation_fraction: float | None = Field(
        None, gt=0.0, lt=1.0, description="part of the training tasks to hold out, where validation has no source"
    )
    split_seed: NonNegativeInt = Field(0, description="of validation_fraction: another seed holds out other tasks")
    shuffle: bool = Field(
        True,
        description="a new order of the training tasks in every epoch; false: as read",
        json_schema_extra=fate(OnTrinity(ours="our schedule, which is part of the reader")),
    )
    max_training_tasks: PositiveInt | None = Field(None, description="the first so many; null: all")
    max_validation_tasks: PositiveInt | None = Field(None, description="the first so many; null: all")
    on_bad_record: Literal["error", "skip"] = Field(
        "error", description="a record that is no task: error, or skip, counted and listed"
    )
    on_duplicate_id: Literal["error", "warn"] = Field(
        "error", description="a task id that is there twice; warn: the later one gets -2"
    )
    on_overlap: Literal["error", "warn"] = Field(
        "error", description="a question that is both trained on and held out; warn: both stay"
    )

    @field_validator("type")
    @classmethod
    def _has_its_short_name(cls, value: str) -> str:
        return builtin_name(value, READERS)


class TaskSources(NamedTuple):
    """The keys that say where training and held-out tasks come from, and whether they are set."""

    training: str
    has_training: bool
    held_out: str
    has_held_out: bool


def sources_of(reader: TaskReaderConfig) -> TaskSources | None:
    """None for a plug-in, whose keys are its own."""
    if reader.type == "jsonl":
        training, held_out = reader.jsonl.training.file_path, reader.jsonl.validation.file_path
        return TaskSources(
            "jsonl.training.file_path", training is not None, "jsonl.validation.file_path", held_out is not None
        )
    if reader.type == "huggingface":
        there = reader.huggingface.dataset_path is not None
        has_held_out = there and reader.huggingface.validation_split is not None
        return TaskSources("huggingface.dataset_path", there, "huggingface.validation_split", has_held_out)
    if reader.type == "reasoning_gym":
        gym = reader.reasoning_gym
        has_held_out = gym.validation_tasks > 0
        return TaskSources("reasoning_gym.datasets", bool(gym.datasets), "reasoning_gym.validation_tasks", has_held_out)
    if reader.type == "env_service":
        service = reader.env_service
        there = service.env_url is not None or service.serve is not None
        has_held_out = service.validation_split is not None
        return TaskSources("env_service.env_url", there, "env_service.validation_split", has_held_out)
    return None
