"""How much of planted personal data is found, and that other numbers stay."""

from __future__ import annotations

import json

from astune.data.personal import Masker, find_personal, mask_message
from tests.data.planted_personal import CLEAN, recalls


def test_planted_personal_data_is_found_but_for_bare_names() -> None:
    found = recalls(seed=0)
    assert all(found[kind] >= 0.97 for kind in found if not kind.startswith("bare")), found
    assert found["bare name"] == 0.0  # the report says that nobody may rely on these


def test_numbers_of_other_kinds_stay() -> None:
    assert {text: [*find_personal(text)] for text in CLEAN if any(find_personal(text))} == {}


def test_what_is_equal_has_one_number_wherever_it_stands() -> None:
    masker = Masker({"Bo Li"})
    told = {"a": "Mail ana@x.org", "b": ["or ANA@x.org, or bo@x.org", 7, None], "c": "for Bo Li's card"}
    masked = {"a": "Mail <email-1>", "b": ["or <email-1>, or <email-2>", 7, None], "c": "for <name-1>'s card"}
    assert masker.apply(told) == masked
    assert masker.counts == {"email": 3, "name": 1}
    overlapping = "secret=a1b2c3@4111 1111 1111 1111."
    assert Masker().text(overlapping) == "secret=<key-1>."
    assert Masker({"李明"}).text("我是李明,你好") == "我是<name-1>,你好"
    escaped = json.dumps({"to": "北京市海淀区中关村大街27号", "n": 1})
    assert Masker().text(escaped) == '{"to": "<address-1>", "n": 1}'
    assert mask_message({"role": "user", "content": "key: token=abc12345"})["content"] == "key: token=<key-1>"


def test_a_long_text_without_spaces_costs_no_more_than_its_length() -> None:
    """A pattern that looks at each part of such a text again would not come to its end."""
    for text in (
        "a" * 100_000 + " ana@x.org",
        "_" * 100_000 + " 1234 ana@x.org",
        "passport " + "A1" * 50_000 + " ana@x.org",
    ):
        assert text[-9:] in [text[start:end] for _, start, end in find_personal(text)]
