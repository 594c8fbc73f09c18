"""Readers and judges that ship with ASTune, by any of the names that they have gone by.

They are known by a short name. Their class may be named as well, by itself or in whatever module of
ASTune somebody believes it to be: older pages print `astune.task_reader.task_reader_base->TaskReaderJsonl`, say.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from astune.support.resources import PACKAGE
from astune.support.user_code import part_of_astune


def builtin_name(spec: str, builtin: Mapping[str, str]) -> str:
    """The key of `builtin`, whose values are `module:Class`, that `spec` stands for; `spec` where it stands for none.

    >>> readers = {"jsonl": "astune.task_reader.jsonl:TaskReaderJsonl"}
    >>> builtin_name("astune/task_reader/task_reader_base.py->TaskReaderJsonl", readers)
    'jsonl'
    >>> builtin_name("my_readers.py:TaskReaderJsonl", readers)
    'my_readers.py:TaskReaderJsonl'
    """
    where, _, name = spec.rpartition("->" if "->" in spec else ":")
    if spec in builtin or (where and not _in_astune(where)):
        return spec
    return next((key for key, place in builtin.items() if place.rpartition(":")[2] == name), spec)


def _in_astune(where: str) -> bool:
    """True for a module of ASTune, there or not, by its name or by the path of its file."""
    path = Path(where)
    if path.suffix != ".py":
        return where.split(".")[0] == PACKAGE.name
    if path.is_file():
        return part_of_astune(path.resolve())
    return path.parent.parent.name == PACKAGE.name and (PACKAGE / path.parent.name).is_dir()
