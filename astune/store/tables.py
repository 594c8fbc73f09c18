"""Every table and column. A change here needs a migration (`migrations/versions`), which a test compares with this.

Times are seconds since 1970, UTC. Token ids are packed 32-bit integers, log-probabilities packed 64-bit floats, both
little-endian (`packing`). JSON is strict JSON.

    conversation: calls that belong together. Its requests go on from each other (`follows`).
    exchange: what happened between a user's message and the answer to it: one or more requests of a conversation, by
        the msg_id of the first. It is what feedback judges.
    episode: exchanges as they were judged together, made at a commit.
"""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Name = sa.String(255)
"""Longest names of people and things that clients name: longer ones are refused at the door."""
BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""SQLite counts up only what it calls INTEGER."""


def _number() -> sa.Column[int]:
    return sa.Column("id", BigId, primary_key=True, autoincrement=True)


def _msg_id(primary_key: bool = False) -> sa.Column[str]:
    to = sa.ForeignKey("requests.msg_id", ondelete="CASCADE")
    return sa.Column("msg_id", Name, to, primary_key=primary_key, nullable=False)


conversations = sa.Table(
    "conversations",
    metadata,
    sa.Column("conversation_id", Name, primary_key=True),
    sa.Column("key", sa.String(600), unique=True, doc="what clients call it, behind whose it is; null: by history"),
    sa.Column("client", Name, nullable=False, doc="name of the client's token; empty without tokens"),
    sa.Column("user", Name, index=True),
    sa.Column("task_id", Name),
    sa.Column("run_id", Name),
    sa.Column("began", sa.Float, nullable=False),
    sa.Column("last", sa.Float, nullable=False, index=True),
)

requests = sa.Table(
    "requests",
    metadata,
    sa.Column("msg_id", Name, primary_key=True, doc="`id` of the reply"),
    sa.Column(
        "conversation_id",
        Name,
        sa.ForeignKey("conversations.conversation_id", ondelete="CASCADE"),
        nullable=False,
    ),
    sa.Column("number", sa.Integer, nullable=False, doc="within the conversation, from 0"),
    sa.Column("exchange", Name, nullable=False, index=True, doc="msg_id of the exchange's first request"),
    sa.Column("follows", Name, index=True, doc="msg_id whose answer stands last in this one's history"),
    sa.Column("follows_choice", sa.Integer, doc="which of the answers of `follows` that is"),
    sa.Column("seen", sa.Integer, nullable=False, doc="requests of the conversation answered before this one began"),
    sa.Column("agent", Name, nullable=False),
    sa.Column("client", Name, nullable=False),
    sa.Column("user", Name, index=True),
    sa.Column("task_id", Name, index=True),
    sa.Column("run_id", Name),
    sa.Column("model", Name, nullable=False, doc="as asked for"),
    sa.Column("version", sa.Integer, nullable=False, index=True, doc="policy version that answered; -1: another model"),
    sa.Column("asked", sa.Float, nullable=False),
    sa.Column("answered", sa.Float, nullable=False, index=True),
    sa.Column("messages_kept", sa.Integer, nullable=False, doc="first messages, as `follows` has them and its answer"),
    sa.Column("messages", sa.JSON, nullable=False, doc="those after `messages_kept`, in OpenAI's shape"),
    sa.Column(
        "instructions",
        sa.Integer,
        doc="of one to /v1/responses that may be continued: its first messages that do not carry over; null: another",
    ),
    sa.Column("tools", sa.JSON, doc="null: as `follows` has them"),
    sa.Column("redacted", sa.Boolean, nullable=False, default=False),
    sa.UniqueConstraint("conversation_id", "number"),
)

turns = sa.Table(
    "turns",
    metadata,
    _number(),
    _msg_id(),
    sa.Column("choice", sa.Integer, nullable=False),
    sa.Column("call", sa.Integer, nullable=False, doc="`Turn.call`: in the order in which calls began"),
    sa.Column("prompt_kept", sa.Integer, nullable=False, doc="first ids of the prompt, as in the turn `prompt_of`"),
    sa.Column("prompt_of", BigId, doc="a turn: its prompt and output begin with those ids"),
    sa.Column("prompt_ids", sa.LargeBinary, nullable=False, doc="ids after `prompt_kept`"),
    sa.Column("forced", sa.Integer, nullable=False, doc="last ids of the prompt, which the answer had to begin with"),
    sa.Column("output_ids", sa.LargeBinary, nullable=False),
    sa.Column("shown", sa.Integer, doc="first sampled ids that the message has; null: all. A stop text is not shown"),
    sa.Column("logprobs", sa.LargeBinary, nullable=False),
    sa.Column("policy_version", sa.Integer, nullable=False),
    sa.Column("finish_reason", sa.String(16), nullable=False),
    sa.Column("temperature", sa.Float, nullable=False),
    sa.Column("excluded", sa.String(32)),
    sa.Column("exact", sa.Boolean, nullable=False),
    sa.Column("fork", sa.String(64)),
    sa.Column("response", sa.JSON, nullable=False, doc="OpenAI's assistant message"),
    sa.Column("history", sa.String(64), nullable=False, doc="digest of the conversation up to and with this answer"),
    sa.UniqueConstraint("msg_id", "choice"),
    sa.Index("ix_turns_history", "history"),
)

feedback = sa.Table(
    "feedback",
    metadata,
    _number(),
    sa.Column("received", sa.Float, nullable=False, index=True),
    sa.Column(
        "author", Name, nullable=False, doc="user, else the client's token, else empty; `judge:<name>` of a judge"
    ),
    sa.Column("client", Name, nullable=False),
    sa.Column("body", sa.String(64), nullable=False, index=True, doc="digest of what it came in, with others"),
    sa.Column("kind", sa.String(16), nullable=False, doc="number, thumb, rating, correction, preference"),
    sa.Column("name", Name, nullable=False, doc="of a named reward; `reward` where it has none"),
    sa.Column("value", sa.Float, doc="null for corrections and preferences"),
    sa.Column("comment", sa.Text),
    sa.Column("correction", sa.Text, doc="the answer that would have been right"),
    sa.Column("task_id", Name),
    sa.Column("run_id", Name),
    sa.Column("fingerprint", sa.String(64), nullable=False, index=True, doc="equal: the very same, sent again"),
    sa.Column(
        "target",
        sa.String(64),
        nullable=False,
        index=True,
        doc="author, answers, and score, correction or pair: later replaces earlier",
    ),
    sa.Column(
        "state",
        sa.String(16),
        nullable=False,
        index=True,
        doc="as `astune.online.store.feedback.states.STATES` says",
    ),
    sa.Column("reason", sa.Text),
    sa.Column("hint", sa.Text, doc="of a judge: what would have been better, for `distill`"),
    sa.Index("ix_feedback_author_received", "author", "received"),
)

feedback_messages = sa.Table(
    "feedback_messages",
    metadata,
    sa.Column("feedback_id", BigId, sa.ForeignKey("feedback.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("msg_id", Name, primary_key=True, doc="may not be known yet, so no foreign key"),
    sa.Column("place", sa.String(8), nullable=False, doc="about, better, worse"),
    sa.Index("ix_feedback_messages_msg_id", "msg_id"),
)

commits = sa.Table(
    "commits",
    metadata,
    _number(),
    sa.Column("asked", sa.Float, nullable=False),
    sa.Column("by", sa.String(16), nullable=False, doc="client, timer, episodes, hand"),
    sa.Column("task_id", Name),
    sa.Column("run_id", Name),
    sa.Column("time_threshold", sa.Float, doc="seconds: only what is older"),
    sa.Column("state", sa.String(16), nullable=False, index=True, doc="asked, training, made, empty, failed"),
    sa.Column("base_version", sa.Integer),
    sa.Column("version", sa.Integer, doc="that it made"),
    sa.Column("began", sa.Float),
    sa.Column("ended", sa.Float),
    sa.Column("figures", sa.JSON),
    sa.Column("error", sa.Text),
)

versions = sa.Table(
    "versions",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("parent", sa.Integer),
    sa.Column("commit_id", BigId, sa.ForeignKey("commits.id")),
    sa.Column(
        "folder",
        sa.Text,
        doc="of its checkpoint, within the folder of checkpoints; null: the model as configured",
    ),
    sa.Column("sha256", sa.String(64)),
    sa.Column("made", sa.Float, nullable=False),
    sa.Column("config", sa.JSON, nullable=False),
    sa.Column("figures", sa.JSON, nullable=False),
    sa.Column("name", Name, doc="as people call it; given once"),
    sa.Column(
        "probes",
        sa.JSON(none_as_null=True),
        doc="rows with the trainer's log-probabilities, which a server must reproduce",
    ),
    sa.Column("origin", sa.Text, doc="the checkpoint of a training run that it was imported from"),
    sa.Column("pruned", sa.Float, doc="when its folder was deleted on purpose; null: it was not"),
    sa.Column("held", sa.Text, doc="why nothing but a command makes it champion; null: it may be"),
    sa.Index("ix_versions_name", "name", unique=True),
)

aliases = sa.Table(
    "aliases",
    metadata,
    sa.Column("name", Name, primary_key=True, doc="champion, challenger, previous, or one of your own"),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("moved", sa.Float, nullable=False),
)

releases = sa.Table(
    "releases",
    metadata,
    _number(),
    sa.Column("champion", sa.Integer, nullable=False),
    sa.Column("challenger", sa.Integer, nullable=False, index=True),
    sa.Column("salt", sa.String(32), nullable=False, doc="with a unit it decides the unit's arm"),
    sa.Column("state", sa.String(16), nullable=False, doc="staged, gate, testing, promoted, held, rolled_back"),
    sa.Column("stage", sa.Integer, nullable=False, doc="of `settings.stages`, from 0; -1 before the first"),
    sa.Column("share", sa.Float, nullable=False, doc="of the units that the challenger answers now"),
    sa.Column("began", sa.Float, nullable=False),
    sa.Column("stage_began", sa.Float, nullable=False),
    sa.Column("ended", sa.Float),
    sa.Column("reason", sa.Text, doc="why it ended, or what it waits for"),
    sa.Column("settings", sa.JSON, nullable=False, doc="`astune.online.release` when it began"),
    sa.Column("figures", sa.JSON, nullable=False, doc="of the gate and of each look"),
    sa.Column("open", sa.Integer, unique=True, doc="1 until it ends, then null: two cannot be open"),
)

assignments = sa.Table(
    "assignments",
    metadata,
    sa.Column("release_id", BigId, sa.ForeignKey("releases.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("unit", sa.String(600), primary_key=True, doc="user:CLIENT:USER, else conversation:ID"),
    sa.Column("stage", sa.Integer, primary_key=True),
    sa.Column("arm", sa.String(16), nullable=False, doc="champion, challenger"),
    sa.Column("first", sa.Float, nullable=False, doc="its first answer in this stage"),
)

servers = sa.Table(
    "servers",
    metadata,
    sa.Column("name", Name, primary_key=True, doc="its process, as leases name it"),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("began", sa.Float, nullable=False),
    sa.Column("heard", sa.Float, nullable=False, doc="its last sign of life"),
    sa.Column("state", sa.String(16), nullable=False, doc="serving, draining"),
    sa.Column("versions", sa.JSON, nullable=False, doc="those that it holds in memory"),
)

traffic = sa.Table(
    "traffic",
    metadata,
    sa.Column("minute", BigId, primary_key=True, autoincrement=False, doc="minutes since 1970"),
    sa.Column("server", Name, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    *(sa.Column(name, sa.Integer, nullable=False) for name in ("requests", "errors", "empty", "slow")),
    *(sa.Column(name, sa.Integer, nullable=False) for name in ("tool_calls", "tool_failures", "tokens")),
    sa.Column("seconds", sa.Float, nullable=False, doc="of all its requests together"),
)

comparisons = sa.Table(
    "comparisons",
    metadata,
    _number(),
    sa.Column("made", sa.Float, nullable=False),
    sa.Column("source", sa.String(16), nullable=False, doc="traffic, versions, group"),
    sa.Column("first", Name, nullable=False, index=True, doc="msg_id of an answer"),
    sa.Column("second", Name, nullable=False, index=True, doc="msg_id of another to the same request"),
    sa.Column("client", Name, nullable=False),
    sa.Column("judged", sa.String(16), doc="the choice of a judge, if one was asked"),
)

comparison_votes = sa.Table(
    "comparison_votes",
    metadata,
    sa.Column("comparison_id", BigId, sa.ForeignKey("comparisons.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("rater", Name, primary_key=True),
    sa.Column("choice", sa.String(16), nullable=False, doc="first, second, tie, both_bad, skip"),
    sa.Column("comment", sa.Text),
    sa.Column("voted", sa.Float, nullable=False),
)

episodes = sa.Table(
    "episodes",
    metadata,
    sa.Column("episode_id", Name, primary_key=True),
    sa.Column("commit_id", BigId, sa.ForeignKey("commits.id", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("conversation_id", Name, index=True),
    sa.Column("task_id", Name, index=True),
    sa.Column("run_id", Name),
    sa.Column("reward", sa.Float),
    sa.Column("state", sa.String(16), nullable=False, doc="trained, left_out"),
    sa.Column("reason", sa.Text, doc="why it was left out"),
)

episode_messages = sa.Table(
    "episode_messages",
    metadata,
    sa.Column("episode_id", Name, sa.ForeignKey("episodes.episode_id", ondelete="CASCADE"), primary_key=True),
    _msg_id(primary_key=True),
    sa.Index("ix_episode_messages_msg_id", "msg_id"),
)

samples = sa.Table(
    "samples",
    metadata,
    _number(),
    sa.Column("commit_id", BigId, sa.ForeignKey("commits.id", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("episode_id", Name),
    sa.Column("turn_id", BigId, sa.ForeignKey("turns.id", ondelete="CASCADE"), index=True),
    sa.Column("method", sa.String(16), nullable=False, doc="policy, kto, dpo, sft, distill"),
    sa.Column("advantage", sa.Float, nullable=False),
    sa.Column("weight", sa.Float, nullable=False, doc="of each token"),
    sa.Column("tokens", sa.Integer, nullable=False),
)

exposures = sa.Table(
    "exposures",
    metadata,
    sa.Column("conversation_id", Name, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("first", sa.Float, nullable=False),
)

audit = sa.Table(
    "audit",
    metadata,
    _number(),
    sa.Column("time", sa.Float, nullable=False, index=True),
    sa.Column("role", sa.String(16), nullable=False, doc="serve, train, release, command"),
    sa.Column("what", sa.String(64), nullable=False, index=True),
    sa.Column("subject", Name, doc="id of what it is about"),
    sa.Column("details", sa.JSON, nullable=False),
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("name", Name, primary_key=True),
    sa.Column("holder", Name, nullable=False),
    sa.Column("until", sa.Float, nullable=False),
)

runs = sa.Table(
    "runs",
    metadata,
    _number(),
    sa.Column("name", sa.Text, nullable=False, unique=True, doc="folder of the run"),
    sa.Column("began", sa.Float, nullable=False),
    sa.Column("config", sa.JSON, nullable=False),
)

run_episodes = sa.Table(
    "run_episodes",
    metadata,
    _number(),
    sa.Column("run", BigId, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("phase", sa.Text, nullable=False),
    sa.Column("episode_id", sa.Text, nullable=False),
    sa.Column("task_id", sa.Text, nullable=False),
    sa.Column("reward", sa.Float),
    sa.Column("row", sa.JSON, nullable=False, doc="as a line of episodes/*.jsonl"),
    sa.Index("ix_run_episodes_run_step", "run", "step"),
    sa.Index("ix_run_episodes_episode_id", "episode_id"),
)

run_samples = sa.Table(
    "run_samples",
    metadata,
    _number(),
    sa.Column("run", BigId, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("episode_id", sa.Text, nullable=False),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("tokens", sa.Integer, nullable=False),
    sa.Column("advantages", sa.JSON, nullable=False),
    sa.Column("weights", sa.JSON, nullable=False),
    sa.Index("ix_run_samples_run_step", "run", "step"),
)
