"""`astune.online`: the service that a deployed agent talks to, what users say, and training from it."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from astune.config.chat_models import AskedModelsConfig
from astune.config.section import Located, OptionalPlugin, Section
from astune.errors import nearest

DAY = 86400.0


class OnlineEngineConfig(Section):
    """An engine that answers in the place of ASTune's own sampler: vLLM, which gives token ids."""

    base_url: str = Field(pattern=r"^https?://", description="of its OpenAI-compatible API, as http://host:8000/v1")
    model: str = Field(description="as the engine calls it")
    api_key_env: str | None = Field(None, description="the environment variable that holds the key; null: none")
    timeout: PositiveFloat = Field(300.0, description="seconds for one answer")


class ServeConfig(Section):
    """`astune online serve`."""

    host: str = Field("127.0.0.1", description="any other than this machine's own demands tokens")
    port: NonNegativeInt = Field(8010, le=65535, description="0: any that is free")
    hosts: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]] = Field(
        default_factory=list,
        description="names that lead to the service, as shop.example: without tokens it answers to these and to its "
        "address alone, and pages of a browser may come from these alone",
    )
    tokens: dict[str, str] = Field(
        default_factory=dict,
        description="who may call: a name for each client, and the environment variable that holds its token",
    )
    feedback_without_token: bool = Field(
        False,
        description="take feedback and commits without a token, as the Java client sends them; it counts as that of "
        "the client whose answers it is about",
    )
    engine: OnlineEngineConfig | None = Field(None, description="a vLLM to sample from: {base_url, model}; null: ours")
    max_conversations: PositiveInt = Field(2000, description="kept in memory; others are read from the store")
    max_under_way: PositiveInt = Field(1024, description="requests at the same time; more are told to come back (429)")
    requests_per_minute: PositiveInt | None = Field(None, description="of one client; null: no limit")
    poll_seconds: PositiveFloat = Field(1.0, description="from one look for a new version to the next")
    pin_seconds: PositiveFloat = Field(
        1800.0, description="a conversation keeps its version until it has rested for so long, or that is rolled back"
    )
    every_commits: PositiveInt = Field(
        1,
        description="champion moves to the version that is so many commits after it; training goes on from the newest",
    )
    most_versions: int = Field(
        3, ge=2, description="in memory at the same time: the champion, a challenger, those that conversations keep"
    )
    update_at_once: PositiveInt = Field(1, description="servers over one store that load a new version at a time")
    drain_seconds: NonNegativeFloat = Field(
        10.0,
        description="after SIGTERM `/ready` answers 503 and requests are answered for so long, if there are other "
        "servers",
    )
    slow_seconds: PositiveFloat = Field(30.0, description="a request that takes longer is counted as slow")
    operators: dict[str, str] = Field(
        default_factory=dict,
        description="who may choose a version by X-ASTune-Pin-Version: a name for each, and the environment variable "
        "that holds the token; what they ask counts in no figure and is not trained",
    )


class FollowModelsConfig(AskedModelsConfig):
    """The models that the judge `model` of what followed asks."""

    temperature: NonNegativeFloat = Field(0.7, description="of the replies; at 0 all votes are the same")
    votes: PositiveInt = Field(3, description="replies to each question")
    agreeing: PositiveInt = Field(2, description="a vote that fewer of them have is 0; more than half must have it")
    instructions: str = Field("", description="what the judge should know of the agent's job")
    most_characters: PositiveInt = Field(
        4000, description="of the exchange and of what followed, each: more is left out from the middle"
    )

    @model_validator(mode="after")
    def _so_many_vote(self) -> FollowModelsConfig:
        if self.agreeing > self.votes:
            raise ValueError(f"agreeing {self.agreeing} must not be above votes {self.votes}")
        return self


class FollowConfig(Section):
    """A judge that sees what the user did after an answer. It votes -1, 0 or +1, which become `least`, nothing and
    `most` of `astune.online.feedback`."""

    judge: OptionalPlugin = Field(
        None, description="rules, model (asks llm), or 'package.module:Name'; null: what followed is not looked at"
    )
    share: float = Field(
        1.0, gt=0.0, le=1.0, description="of the exchanges that something followed, so many are judged"
    )
    silence_seconds: PositiveFloat | None = Field(
        None, description="an exchange that nothing followed for so long is judged too; null: silence says nothing"
    )
    words: dict[str, Literal[-1, 0, 1]] = Field(
        default_factory=dict, description="of users, beside those that the judge rules knows, and what they say"
    )
    signs: dict[Literal["repeat", "rephrase", "retry", "edit", "corrected", "silence"], Literal[-1, 0, 1]] = Field(
        default_factory=dict, description="what users do, and what the judge rules takes it for, where not as it ships"
    )
    least_agreement: float = Field(
        0.4,
        ge=-1.0,
        le=1.0,
        description="Cohen's kappa of the judge with people's scores; below it what it says is held; -1: no bound",
    )
    least_compared: PositiveInt = Field(
        30, description="answers that both have judged, at most 5 of one user, before the bound holds"
    )
    llm: FollowModelsConfig = Field(default_factory=FollowModelsConfig, description="used by the judge model")


class FeedbackConfig(Section):
    """Rules by which the words of users become rewards."""

    rewards: dict[str, float] = Field(
        default_factory=dict, description="weights of named rewards, which add up; a name that is not here weighs 1"
    )
    least: float = Field(0.0, description="values below are refused")
    most: float = Field(1.0, description="values above are refused")
    wait_seconds: PositiveFloat = Field(3600.0, description="for an answer that is not known yet; then it is expired")
    per_user_per_hour: PositiveInt = Field(120, description="of one user; what is more is held for a look")
    unnamed_per_hour: PositiveInt = Field(
        3600, description="of all people of a client who are not named; what is more is held for a look"
    )
    per_conversation: PositiveInt = Field(50, description="of one conversation; what is more is held for a look")
    hold_outliers: PositiveFloat | None = Field(
        None, description="a user's mean so many standard errors off everyone's is held for a look; null: nobody's"
    )
    judge_share: float = Field(
        0.0, ge=0.0, le=1.0, description="of the exchanges that nobody rated, astune.task_judge scores so many"
    )
    judge_comparisons: bool = Field(
        False,
        description="astune.task_judge says of two compared answers which is better; raters see that after their vote",
    )
    judge_after_seconds: NonNegativeFloat = Field(600.0, description="an exchange counts as unrated after so long")
    follow: FollowConfig = Field(default_factory=FollowConfig, description="a judge of what users did after an answer")

    rating_as: str | None = Field(
        None, description="a rating of 1 to 5 is this named reward, which has a weight; null: the reward without a name"
    )

    @model_validator(mode="after")
    def _rating_has_a_weight(self) -> FeedbackConfig:
        if self.rating_as is not None and self.rating_as not in self.rewards:
            raise ValueError(
                f"rating_as {self.rating_as!r}: rewards has no weight for it.{nearest(self.rating_as, self.rewards)}"
            )
        return self

    @model_validator(mode="after")
    def _bounds_leave_room(self) -> FeedbackConfig:
        if self.least >= self.most:
            raise ValueError(f"least {self.least:g} must be below most {self.most:g}")
        return self


class CommitConfig(Section):
    """`astune online train`: when and from what a new version is made."""

    every_seconds: PositiveFloat | None = Field(300.0, description="null: never by the clock")
    every_episodes: PositiveInt | None = Field(None, description="as soon as so many are rated; null: never by number")
    base: str = Field(
        "champion", description="what the next version is made from: an alias, or a version as v7 or as people call it"
    )
    min_episodes: PositiveInt = Field(8, description="fewer make no version: they wait for the next commit")
    max_episodes: PositiveInt = Field(256, description="of one version: the newest so many; others wait")
    max_age_seconds: PositiveFloat = Field(7 * DAY, description="older exchanges are left out, and counted")
    max_versions_behind: NonNegativeInt = Field(
        8,
        description="exchanges of versions that are more steps from the base in the tree of versions are left out, and "
        "counted",
    )
    group_wait_seconds: NonNegativeFloat = Field(
        60.0, description="how long repeats of one task wait for each other, if nobody asks for a commit"
    )
    replay_share: float = Field(
        0.0, ge=0.0, lt=1.0, description="episodes of earlier commits, as a share of a commit, against forgetting"
    )
    max_kl: PositiveFloat | None = Field(
        0.1, description="mean KL of a token from the version before; beyond it half the rate is tried; null: no limit"
    )
    most_per_author: float = Field(
        0.02,
        gt=0.0,
        le=1.0,
        description="one user's share of what a version learns, at most; of fewer than 1 / most_per_author users all "
        "have the same; what is of fewer users than that, and than min_episodes, waits for others; 1: no limit",
    )
    weight_thumbs: NonNegativeFloat = Field(
        0.0, description="of a thumb learned by KTO, in rated answers; 0: thumbs are rewards of 1 and 0"
    )
    weight_preferences: NonNegativeFloat = Field(
        0.5, description="of two answers that users compared, learned by DPO, in rated answers"
    )
    weight_corrections: NonNegativeFloat = Field(
        1.0, description="of an answer that a user wrote, learned by SFT, in rated answers"
    )
    weight_hints: NonNegativeFloat = Field(
        0.0,
        description="of a hint of what would have been better, in rated answers: the model with the hint in its prompt "
        "teaches the model without, as by 0.5; 0: hints teach nothing",
    )


class GuardrailConfig(Section):
    """Each is how much worse the challenger may be than the champion; null: as much as it will."""

    errors: PositiveFloat | None = Field(0.02, description="share of the requests that fail")
    empty: PositiveFloat | None = Field(0.02, description="share of the requests with an empty answer")
    slow: PositiveFloat | None = Field(0.05, description="share of the requests that take too long")
    tool_failures: PositiveFloat | None = Field(0.05, description="share of the calls of tools that fail")
    tokens: PositiveFloat | None = Field(0.5, description="of a request, as a part of the champion's")
    seconds: PositiveFloat | None = Field(None, description="of a request, as a part of the champion's")
    rated: PositiveFloat | None = Field(0.1, description="share of the exchanges that people rate, which may be less")
    metric: PositiveFloat | None = Field(0.05, description="the metric that decides, which may be less")


class ReleaseConfig(Section):
    """`astune online release`: a new version earns its traffic; what is compared, and what ends a test."""

    strategy: Literal["at_once", "staged"] = Field(
        "at_once",
        description="at_once: a version answers everybody as soon as it is made; staged: it is released stage by stage",
    )
    stages: list[Annotated[float, Field(gt=0.0, le=1.0)]] = Field(
        [0.05, 0.25, 1.0], min_length=1, description="the challenger's share of the users in each stage, widening"
    )
    metric: str = Field(
        "reward",
        min_length=1,
        description="what decides: reward or thumbs of people, judged (by astune.task_judge), or the name of a reward",
    )
    secondary: list[str] = Field(
        default_factory=list, description="metrics that are shown beside it, with Holm's correction"
    )
    effect: PositiveFloat = Field(0.05, description="the smallest difference of the metric that matters")
    alpha: float = Field(
        0.05, gt=0.0, lt=1.0, description="the chance of a false alarm over all looks, where versions are alike"
    )
    guardrails: GuardrailConfig = Field(
        default_factory=GuardrailConfig, description="what the challenger may be worse in; more rolls it back"
    )

    min_users: PositiveInt = Field(50, description="users who have met the challenger, before a stage ends")
    unnamed: bool = Field(
        False, description="a conversation without `user` counts as one; false: users are those that requests name"
    )
    min_hours: NonNegativeFloat = Field(1.0, description="before a stage ends")
    max_hours: PositiveFloat = Field(336.0, description="a stage that is not decided by then is held, and says why")
    cool_down_hours: NonNegativeFloat = Field(1.0, description="from a release that did not end well to the next one")
    look_seconds: PositiveFloat = Field(
        10.0, description="from one look at the figures to the next; nine times as long as a look takes at least"
    )
    gate_tasks: NonNegativeInt = Field(
        100,
        description="held-out tasks of astune.task_reader that both versions play before a user meets the challenger: "
        "the first so many; 0: none",
    )
    while_testing: Literal["wait", "replace"] = Field(
        "wait",
        description="the trainer makes no version while one is tested or waits for its test; replace: it does, and the "
        "newer one is tested in its place",
    )
    forget: bool = Field(True, description="what a version was made from that is rolled back is never learned again")

    @model_validator(mode="after")
    def _stages_widen(self) -> ReleaseConfig:
        if self.stages[0] == 1.0:
            raise ValueError(f"stages {self.stages}: the first leaves nobody to compare with; that is strategy at_once")
        if self.max_hours <= self.min_hours:
            raise ValueError(f"max_hours {self.max_hours:g} must be more than min_hours {self.min_hours:g}")
        if any(after <= before for before, after in pairwise(self.stages)):
            raise ValueError(f"stages {self.stages}: each must be larger than the one before, so that nobody goes back")
        return self


class OnlineConfig(Section):
    folder: Annotated[str | None, Located("folder")] = Field(
        None, description="of the service: versions, figures; null: <runs_dir>/<project>/<experiment>"
    )
    store: str | None = Field(
        None, description="database: sqlite:///FILE or postgresql+psycopg://...; null: online.db in the folder"
    )
    keep_days: PositiveFloat | None = Field(None, description="conversations are deleted after so long; null: never")
    redact: OptionalPlugin = Field(
        None, description="'package.module:function' that takes a message and returns what may be written of it"
    )
    telemetry: str | None = Field(
        None,
        pattern=r"^https?://",
        description="an OpenTelemetry collector that takes OTLP over HTTP, as http://localhost:4318; null: none",
    )
    serve: ServeConfig = Field(default_factory=ServeConfig, description="the service")
    feedback: FeedbackConfig = Field(default_factory=FeedbackConfig, description="what is made of what users say")
    commit: CommitConfig = Field(default_factory=CommitConfig, description="when and from what a version is made")
    release: ReleaseConfig = Field(default_factory=ReleaseConfig, description="how a version becomes champion")
