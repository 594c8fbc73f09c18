"""The section `astune.monitor`: what a run shows and keeps, and the trackers that its figures go to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, NonNegativeInt, field_validator, model_validator

from astune.config.section import Located, OnTrinity, Section, fate
from astune.errors import nearest
from astune.support.builtin import builtin_name


class BuiltInTracker(NamedTuple):
    """`package` is what has to be importable, `extra` what installs it; "" where ASTune itself brings it."""

    place: str
    package: str
    extra: str = ""


TRACKERS = {
    "tensorboard": BuiltInTracker("astune.monitor.trackers.tensorboard:TensorBoard", "tensorboard"),
    "wandb": BuiltInTracker("astune.monitor.trackers.wandb:WandbTracker", "wandb", "wandb"),
    "swanlab": BuiltInTracker("astune.monitor.trackers.swanlab:SwanLabTracker", "swanlab", "swanlab"),
    "mlflow": BuiltInTracker("astune.monitor.trackers.mlflow:MlflowTracker", "mlflow", "mlflow"),
    "trackio": BuiltInTracker("astune.monitor.trackers.trackio:TrackioTracker", "trackio", "trackio"),
}
"""The trackers that ship. Each but the first has a section of its name in `MonitorConfig`."""
PLACES = {name: tracker.place for name, tracker in TRACKERS.items()}
SECRET = re.compile(r"://[^/@\s]*:[^/@\s]*@|[?&](write_)?token=")
"""A password or token within an address."""


class WandbConfig(Section):
    project: str | None = Field(None, description="null: astune.project_name")
    entity: str | None = Field(None, description="user or team; null: the one of the key")
    group: str | None = Field(None, description="runs that belong together")
    mode: Literal["online", "offline"] | None = Field(
        None, description="offline: into the run folder, for `wandb sync`; null: WANDB_MODE, else online"
    )


class SwanLabConfig(Section):
    project: str | None = Field(None, description="null: astune.project_name")
    workspace: str | None = Field(None, description="user or organisation; null: the one of the key")
    mode: Literal["online", "offline"] = Field("online", description="offline: into the run folder, for `swanlab sync`")


class MlflowConfig(Section):
    tracking_uri: str | None = Field(
        None, description="server or database, as sqlite:///FILE; null: MLFLOW_TRACKING_URI, else MLflow's own"
    )
    experiment: str | None = Field(None, description="null: astune.project_name")


class TrackioConfig(Section):
    project: str | None = Field(None, description="null: astune.project_name")
    space_id: str | None = Field(None, description="a Space of Hugging Face's that shows it; null: this machine")
    server_url: str | None = Field(
        None, pattern=r"^https?://.+", description="a Trackio server of one's own; its token: TRACKIO_WRITE_TOKEN"
    )
    private: bool = Field(True, description="whether a Space that is made for it is private")


class MonitorConfig(Section):
    check_invariants: bool = Field(
        False,
        description="check every episode and every step against the rules of the context tracker (debug does)",
        json_schema_extra=fate(
            OnTrinity(
                ours="the workflow inside Trinity's runners and our samples operator, in Trinity's experience pipeline",
                methods=("rl",),
            )
        ),
    )
    trackers: Annotated[tuple[str, ...], Located("plugin")] = Field(
        ("tensorboard",),
        description="where the figures of what trains go besides metrics.jsonl: 'tensorboard', 'wandb', 'swanlab', "
        "'mlflow', 'trackio' or a plug-in; `astune eval`, `prompt` and `compare` write their own tables",
    )
    tracker_episodes: NonNegativeInt = Field(
        0,
        description="episodes of each step and evaluation, one of a task, that trackers but TensorBoard get whole",
        json_schema_extra=fate(
            OnTrinity(unsupported="Trinity's runners send episodes one by one, into the run folder; take the key out")
        ),
    )
    wandb: WandbConfig = Field(default_factory=WandbConfig, description="for the tracker 'wandb'")
    swanlab: SwanLabConfig = Field(default_factory=SwanLabConfig, description="for the tracker 'swanlab'")
    mlflow: MlflowConfig = Field(default_factory=MlflowConfig, description="for the tracker 'mlflow'")
    trackio: TrackioConfig = Field(default_factory=TrackioConfig, description="for the tracker 'trackio'")
    progress: Literal["auto", "bar", "plain", "off"] = Field(
        "auto", description="auto: bars on a terminal, lines elsewhere"
    )
    log_json: bool = Field(False, description="write run.log and the files of logs/ as JSON Lines")
    store: str | None = Field(
        None,
        description="database that gets episodes and samples of a run besides: sqlite:///FILE or postgresql://...; "
        "null: none",
        json_schema_extra=fate(
            OnTrinity(
                ours="the process that was started writes the episodes into it; samples are weighed in "
                "Trinity's own processes and are not",
                methods=("rl",),
            )
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _older_spelling(cls, values: Any) -> Any:
        """`tensorboard: false` stands in files and runs from before there were other trackers."""
        if not isinstance(values, dict) or not isinstance(values.get("tensorboard"), bool):
            return values
        wanted = values["tensorboard"]
        values = {name: value for name, value in values.items() if name != "tensorboard"}
        given = values.get("trackers", ("tensorboard",))
        if not wanted and isinstance(given, list | tuple):
            values["trackers"] = [name for name in given if name != "tensorboard"]
        return values

    @field_validator("trackers")
    @classmethod
    def _are_trackers(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for spec in given:
            if builtin_name(spec, PLACES) not in TRACKERS and ":" not in spec and "->" not in spec:
                known = f"{nearest(spec, TRACKERS)} There are: {', '.join(TRACKERS)}"
                raise ValueError(
                    f"the name of a tracker or a plug-in ('package.module:Name' or 'path/file.py:Name').{known}"
                )
        names = [name_of_tracker(spec) for spec in given]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"each tracker once, and {twice!r} is there twice")
        return given


def name_of_tracker(spec: str) -> str:
    """Name a tracker as messages and the run folder do.

    >>> name_of_tracker("wandb"), name_of_tracker("mine.py:Curves")
    ('wandb', 'Curves')
    """
    known = builtin_name(spec, PLACES)
    return known if known in TRACKERS else re.split(":|->", spec)[-1]


def tracker_contradictions(monitor: MonitorConfig) -> Iterator[tuple[str, str]]:
    """Keys for a tracker that is not there, and secrets, which would stand in config.yaml."""
    names = list(map(name_of_tracker, monitor.trackers))
    for tracker in TRACKERS:
        section = getattr(monitor, tracker, None)
        for key in section.find_changed() if isinstance(section, Section) else ():
            place = f"astune.monitor.{tracker}.{key}"
            if tracker not in names:
                yield (
                    place,
                    f"for the tracker {tracker!r}, which astune.monitor.trackers does not name; take the key out",
                )
            if SECRET.search(str(getattr(section, key))):
                yield (
                    place,
                    "holds a password or token, which would be written into the run folder; give it by the environment",
                )
    if monitor.tracker_episodes and not {*names} - {"tensorboard"}:
        yield (
            "astune.monitor.tracker_episodes",
            "no tracker of astune.monitor.trackers shows episodes; take the key out",
        )
    if monitor.trackio.space_id is not None and monitor.trackio.server_url is not None:
        yield "astune.monitor.trackio.server_url", "astune.monitor.trackio.space_id is set too; take one of the two out"
