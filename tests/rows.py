"""One test for a table: all rows are tried, and what failed is listed at the end."""

import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import pytest

Test = Callable[..., Any]


def each_row(names: str | Sequence[str], rows: Iterable[Any], ids: Any = None) -> Callable[[Test], Test]:
    """What `pytest.mark.parametrize` is, but one case: for rules that are tables.

        @each_row(("text", "number"), [("1", 1), ("2", 2)])
        def test_a_number_is_read(text, number): ...

    Rows do not see each other: each has a `tmp_path` of its own, its `monkeypatch` is undone and what `capsys` and
    `caplog` caught is thrown away after it. Other fixtures are shared, so they must not change.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [_read(row, len(keys)) for row in rows]
    cases = [dict(zip(keys, row.values, strict=True)) for row in table]

    def name_of(number: int) -> str:
        row = table[number]
        if ids is not None and not callable(ids):
            return str(ids[number])
        return row.id or ", ".join(f"{(ids or repr)(value)!s:.100}" for value in row.values)

    def decorate(test: Test) -> Test:
        parameters = inspect.signature(test).parameters
        assert table and set(keys) <= set(parameters), f"{test.__name__} takes no {keys}"

        if inspect.iscoroutinefunction(test):

            @wraps(test)
            async def try_all(**fixtures: Any) -> None:
                failed: list[str] = []
                for number, values in enumerate(cases):
                    with _of_its_own(fixtures, number) as own, _noted(failed, partial(name_of, number)):
                        await test(**own, **values)
                _tell(failed, len(table))

        else:

            @wraps(test)
            def try_all(**fixtures: Any) -> None:
                failed: list[str] = []
                for number, values in enumerate(cases):
                    with _of_its_own(fixtures, number) as own, _noted(failed, partial(name_of, number)):
                        test(**own, **values)
                _tell(failed, len(table))

        try_all.__dict__.pop("hypothesis", None)  # the test is Hypothesis's, what tries all is not
        left = [parameter for name, parameter in parameters.items() if name not in keys]
        try_all.__signature__ = inspect.Signature(left)  # type: ignore[attr-defined]
        return try_all

    return decorate


def _read(row: Any, size: int) -> Any:
    """A row as `pytest.param`."""
    if not isinstance(row, type(pytest.param())):
        row = pytest.param(row) if size == 1 else pytest.param(*row)
    assert not row.marks, f"{row.id or row.values} has marks; a row can have none"
    assert len(row.values) == size, f"{row.values} are not {size} values"
    return row


@contextmanager
def _of_its_own(fixtures: Mapping[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """The fixtures that a row may change, as if no other row had been there."""
    own = dict(fixtures)
    if "tmp_path" in own:
        own["tmp_path"] = own["tmp_path"] / f"row-{number}"
        own["tmp_path"].mkdir()
    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" in own:
            own["monkeypatch"] = patch
        yield own
    if "capsys" in own:
        own["capsys"].readouterr()
    if "caplog" in own:
        own["caplog"].clear()


@contextmanager
def _noted(failed: list[str], name: Callable[[], str]) -> Iterator[None]:
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        failed.append(f"--- {name()}\n{''.join(traceback.format_exception(error))}")


def _tell(failed: Sequence[str], rows: int) -> None:
    if failed:
        pytest.fail("\n".join([*failed, f"{len(failed)} of {rows} rows failed"]), pytrace=False)
