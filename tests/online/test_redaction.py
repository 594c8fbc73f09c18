import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.errors import PluginError
from astune.online.redaction import Redactor
from tests.rows import each_row

MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": st.none() | st.text()},
    optional={"tool_calls": st.lists(st.fixed_dictionaries({"id": st.text(max_size=3)}), max_size=2)},
)
MESSAGES = st.lists(MESSAGE, max_size=4)


def without_digits(message: dict[str, Any]) -> dict[str, Any]:
    message["content"] = re.sub(r"\d", "#", message["content"] or "")  # in place, as plug-ins may do
    return message


async def waits(message: dict[str, Any]) -> dict[str, Any]:
    return message


NO_FUNCTION = 3


@given(MESSAGES)
def test_what_is_said_stays_as_it_is_and_what_is_written_is_what_the_plug_in_allows(
    messages: list[dict[str, Any]],
) -> None:
    before = copy.deepcopy(messages)
    redactor = Redactor(without_digits)
    done = redactor.apply(messages)
    assert messages == before
    assert list(done.messages) == [without_digits(copy.deepcopy(message)) for message in messages]
    changes = sum(new != old for new, old in zip(done.messages, messages, strict=True))
    assert (done.changed, redactor.changes, redactor.failures) == (changes > 0, changes, 0)


@given(MESSAGES)
def test_without_a_plug_in_all_is_written(messages: list[dict[str, Any]]) -> None:
    done = Redactor.of(None).apply(messages)
    assert (list(done.messages), done.changed) == (messages, False)


def raises(message: dict[str, Any]) -> None:
    raise ValueError(message["content"])


def leaves(message: dict[str, Any]) -> None:
    raise SystemExit


@each_row(
    "plug_in",
    [
        raises,
        leaves,
        lambda message: None,
        lambda message: message["content"],
        lambda message: {"content": "x"},
        lambda message: {**message, "role": "secret"},
        lambda message: {**message, "content": object()},
        lambda message: {**message, "score": float("nan")},
    ],
)
def test_a_plug_in_that_fails_lets_nothing_of_a_message_through(plug_in: Any) -> None:
    messages = [{"role": "user", "content": "secret", "name": "secret"}, {"role": "tool", "content": "secret"}]
    redactor = Redactor(plug_in)
    done = redactor.apply(messages)
    assert "secret" not in repr(done.messages)
    assert [message["role"] for message in done.messages] == ["user", "tool"]
    assert done.changed and redactor.failures == 2
    assert Redactor(plug_in).text("secret") is None


def test_comments_go_through_it_too() -> None:
    redactor = Redactor(without_digits)
    assert redactor.text("call 0815") == "call ####"
    assert redactor.text(None) is None
    assert Redactor(None).text("call 0815") == "call 0815"


def test_it_is_named_as_other_plug_ins_are() -> None:
    assert Redactor.of(f"{__file__}:without_digits").text("42") == "##"
    for name in ("waits", "NO_FUNCTION"):
        with pytest.raises(PluginError, match=r"astune\.online\.redact: .* is not a plain function of a message"):
            Redactor.of(f"{__file__}:{name}")
    with pytest.raises(PluginError, match="Did you mean 'without_digits'"):
        Redactor.of(f"{__file__}:without_digit")
