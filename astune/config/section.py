"""The base of all sections of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values are not changed after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_not_1(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("a value other than true or false")
        return value


@dataclass(frozen=True)
class Located:
    """Marks a value that may name a file or folder. A relative one is meant from the file that names it: `file`
    always, `folder` where such a folder exists (else it is a hub id), `plugin` in `path/file.py:Name`, `model` after
    `scripted:` or `replay:`."""

    kind: Literal["file", "folder", "plugin", "model"]


Plugin = Annotated[str, Located("plugin")]
OptionalPlugin = Annotated[str | None, Located("plugin")]
