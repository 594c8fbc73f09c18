"""The base of all sections of the configuration, and what a field says of its key beside type, default and meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, create_model, field_validator
from pydantic.config import JsonDict


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values are not changed after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_not_1(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("a value other than true or false")
        return value

    def __repr__(self) -> str:
        """Show what is set, as an error does."""
        return repr(self.model_dump(exclude_unset=True))

    def find_changed(self, keys: Iterable[str] | None = None) -> list[str]:
        """List the keys that are away from their defaults, all or those of `keys`. For a section that needs no key."""
        default = type(self)()
        keys = type(self).model_fields if keys is None else keys
        return [name for name in keys if getattr(self, name) != getattr(default, name)]


@dataclass(frozen=True)
class Located:
    """Marks a value that may name a file or folder. A relative one is meant from the file that names it: `file`
    always, `folder` where such a folder exists (else it is a hub id), `plugin` in `path/file.py:Name`, `model` after
    `scripted:` or `replay:`."""

    kind: Literal["file", "folder", "plugin", "model"]


@dataclass(frozen=True)
class LaidOver:
    """Marks a value that holds keys of another section, which are laid over those there."""

    section: str


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`: sections are merged, everything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def flatten(section: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of nested sections by their dotted names.

    >>> dict(flatten({"trainer": {"learning_rate": 1e-5}, "seed": 1}))
    {'trainer.learning_rate': 1e-05, 'seed': 1}
    """
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


Plugin = Annotated[str, Located("plugin")]
OptionalPlugin = Annotated[str | None, Located("plugin")]
AnySection = TypeVar("AnySection", bound=type[Section])


class FromKey:
    """A section with a key `from`, a word of Python's."""

    @property
    def source(self) -> str | None:
        """The value of `from`."""
        found: str | None = getattr(self, "from")
        return found


def add_from(description: str, stated: JsonDict | None = None) -> Callable[[AnySection], AnySection]:
    """Give a section the key `from`, the path of a file or folder; `stated` is its fate."""

    def add(section: AnySection) -> AnySection:
        field: Any = Field(None, description=description, json_schema_extra=stated)
        key: Any = {"from": (Annotated[str | None, Located("file")], field)}
        made: Any = create_model(section.__name__, __base__=section, __module__=section.__module__, **key)
        return cast("AnySection", made)

    return add


LOOP = "the training loop, which is ASTune's own"
READER = "our reader, which hands out the tasks"
RUNNERS = "the workflow inside Trinity's runners"
STARTED = "the process that was started, which keeps the run folder"
"""The parts of ASTune that act on most keys, in the words of the conversion files."""


AnyFate = TypeVar("AnyFate", bound="Fate")


@dataclass(frozen=True, kw_only=True)
class Fate:
    """Says what becomes of a key on an engine that another program brings. On a section it holds for each key below
    that says nothing itself.

        lr: float = Field(1e-6, description="...", json_schema_extra=fate(OnVerl(to={"actor.optim.lr": "same"})))
    """

    engine: ClassVar[str]
    to: Mapping[str, str] = field(default_factory=dict)
    """The conversion, by its name, for each key of the other program."""
    ours: str = ""
    """The part of ASTune that acts on the key."""
    ignored: str = ""
    """The reason why nothing has to act on it."""
    unsupported: str = ""
    """The reason why nothing can, and what to do: any value but the default is an error."""

    def within(self: AnyFate, section: AnyFate | None) -> AnyFate:
        """Fill in what the section around the key says for all its keys."""
        return self


ON_TRINITY = ("rl", "sft", "dpo")
"""The values of astune.algorithm.method that Trinity has."""


@dataclass(frozen=True, kw_only=True)
class OnTrinity(Fate):
    engine: ClassVar[str] = "trinity"
    tinker: str = ""
    """The reason why the key has no effect with the tinker engine."""
    cluster: str = ""
    """The reason why the key has no effect on a Ray cluster that the run joins."""
    own_server: bool = False
    """True if the key reaches a tinker server that the run starts itself, whatever the two above say."""
    if_set: bool = False
    """Convert only a value that the user wrote: the default is Trinity's."""
    methods: tuple[str, ...] = ()
    """The values of astune.algorithm.method that use the key; none: those of the section, at the top all."""

    def within(self, section: OnTrinity | None) -> OnTrinity:
        return replace(self, methods=self.methods or (ON_TRINITY if section is None else section.methods))


@dataclass(frozen=True, kw_only=True)
class OnVerl(Fate):
    engine: ClassVar[str] = "verl"
    refused: Mapping[str, str] = field(default_factory=dict)
    """The reason why single values do not work, and what to do."""


def fate(*stated: Fate) -> JsonDict:
    """Say what becomes of a key on one engine or several: the argument `json_schema_extra` of its field."""
    return cast("JsonDict", {one.engine: one for one in stated})
