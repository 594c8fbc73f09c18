r"""Where the final answer stands in a text, and what of it is only looks.

    >>> extract_answer("so 6*12 = 72, \\boxed{72}", "auto")
    FinalAnswer(text='72', found_in='boxed')
    >>> normalise(r"$\\dfrac{1}{2}$.")
    '\\frac{1}{2}'

A text that does not mark its answer has none; only the format `last_number` takes the last number for one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from astune.task_judge.math_quantity import read_quantity

AnswerFormat: TypeAlias = Literal["auto", "boxed", "answer_tag", "hashes", "the_answer_is", "plain", "last_number"]

MAX_LENGTH = 500
"""An answer of more characters is compared as text only, never as mathematics."""

_FUNCTIONS = (
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log sqrt exp det gcd lcm mod max min pmatrix bmatrix "
    "vmatrix matrix cases array"
)
FUNCTIONS = frozenset(_FUNCTIONS.split())
"""Words that are mathematics. Any other word of three letters or more makes an answer a text."""

SYMBOLS = str.maketrans(
    {"−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le "}  # noqa: RUF001
    | {"≥": r"\ge ", "≠": r"\ne ", "²": "^2", "³": "^3", "½": " 1/2", "¼": " 1/4", "¾": " 3/4", "\u00a0": " "}
    | {"\u202f": " ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "⁄": "/", "±": r"\pm ", "。": "."}  # noqa: RUF001
    | {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # full-width forms of ASCII
)

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_BETWEEN_BOXES = re.compile(r"(?:[\s$,;]|\\[()\[\]]|\\q?quad|\\text\s*\{\s*and\s*\}|and(?![a-z]))*")
_WHOLE_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{(.*)\}", re.DOTALL)
_MARKER = re.compile(r"\\(?:boxed|fbox)|</?answer>|####", re.IGNORECASE)
_THE_ANSWER_IS = re.compile(
    r"\b(?:the|my|our)\s+(?:final\s+|correct\s+)?answer\s+(?:is|would\s+be|should\s+be|will\s+be)\b"
    r"|^[ \t>#*_]*(?:final\s+|correct\s+)?answer[ \t*_]*[:：]"  # noqa: RUF001
    r"|^[ \t]*#+[ \t*_]*(?:final\s+)?answer[ \t*_]*$"
    r"|答案[ \t*]*(?:[是为:：])",  # noqa: RUF001
    re.IGNORECASE | re.MULTILINE,
)
_SENTENCE_END = re.compile(r"\n|[.!?](?=\s|$)|。|,?\s(?:because|since)\b|[,，]?因为")  # noqa: RUF001
_NUMBER = re.compile(r"[-−]?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?%?")  # noqa: RUF001
_TEXT_COMMAND = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mbox|operatorname|underline)\s*\{([^{}]*)\}"
)
_SPACE_COMMAND = re.compile(r"(?<!\\)\\[,!;: ]|\\q?quad(?![A-Za-z])|\\displaystyle(?![A-Za-z])|~")
_SHORT_FRACTION = re.compile(r"\\frac\s*([0-9A-Za-z])\s*([0-9A-Za-z])")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}|[\u4e00-\u9fff]")


@dataclass(frozen=True)
class FinalAnswer:
    text: str
    found_in: AnswerFormat


def extract_answer(text: str, answer_format: AnswerFormat) -> FinalAnswer | None:
    """The last answer that `text` marks in `answer_format`; None if it marks none.

    `auto` tries boxed, answer_tag, hashes and the_answer_is in this order, then takes a text that is nothing but a
    short answer. Takes time linear in the length of `text`.
    """
    if answer_format != "auto":
        found = _FINDERS[answer_format](text)
        return FinalAnswer(found, answer_format) if found else None
    for name in _AUTO:
        if found := _FINDERS[name](text):
            return FinalAnswer(found, name)
    whole = text.strip()
    return FinalAnswer(whole, "plain") if _is_bare(whole) else None


def reference_answer(answer: str) -> str:
    """What the answer of a task says at its end: behind `####` (GSM8K), in `\\boxed{}` (MATH), or all of it."""
    return _hashes(answer) or _boxed(answer) or answer.strip()


def normalise(text: str) -> str:
    """`text` without marks that change how an answer looks but not what it is: delimiters of LaTeX and Markdown,
    text commands, thin spaces, a full stop at the end. Idempotent. A text longer than an answer is left as it is."""
    before = ""
    while text != before and len(text) <= MAX_LENGTH:
        before = text
        box = _WHOLE_BOX.fullmatch(text)
        text = _strip_marks((box[1] if box else text).translate(SYMBOLS))
    return text


def _boxed(text: str) -> str:
    """Content of the box that closes last, and of those before it with nothing but a comma or "and" between, as a list.
    Braces nest, escaped ones do not count."""
    open_braces: list[tuple[int, int]] = []
    boxes: list[str] = []
    begin = end = 0
    for token in _BOX.finditer(text):
        if token[0].endswith("{") and token[0] != r"\{":
            open_braces.append((token.start() if len(token[0]) > 1 else -1, token.end()))
        elif token[0] == "}" and open_braces:
            begin, start = open_braces.pop()
            if begin >= 0:
                joined = begin >= end and _BETWEEN_BOXES.fullmatch(text, end, begin)
                boxes = [*(boxes if joined else []), text[start : token.start()].strip()]
                end = token.end()
    return ", ".join(boxes) if boxes and boxes[-1] else ""


def _answer_tag(text: str) -> str:
    lowered = text.lower()
    end = lowered.rfind("</answer>")
    start = lowered.rfind("<answer>", 0, end) if end >= 0 else -1
    return text[start + len("<answer>") : end].strip() if start >= 0 else ""


def _hashes(text: str) -> str:
    """The line behind the last ####, unless it is a heading: with more text below it and no number of its own."""
    line, _, below = text.rpartition("####")[2].strip().partition("\n") if "####" in text else ("", "", "")
    is_answer = not below.strip() or (_is_bare(line) and re.search(r"\d", line))
    return line.strip() if is_answer else ""


def _the_answer_is(text: str) -> str:
    """The rest of the sentence."""
    ends = [match.end() for match in _THE_ANSWER_IS.finditer(text)]
    if not ends:
        return ""
    rest = text[ends[-1] :].lstrip(" :：*_\t\n")  # noqa: RUF001
    end = _SENTENCE_END.search(rest)
    return (rest[: end.start()] if end else rest).strip(" *")


def _last_number(text: str) -> str:
    numbers = _NUMBER.findall(text)
    return numbers[-1].rstrip(",") if numbers else ""


_FINDERS: dict[AnswerFormat, Callable[[str], str]] = {
    "boxed": _boxed,
    "answer_tag": _answer_tag,
    "hashes": _hashes,
    "the_answer_is": _the_answer_is,
    "plain": str.strip,
    "last_number": _last_number,
}
_AUTO: tuple[AnswerFormat, ...] = ("boxed", "answer_tag", "hashes", "the_answer_is")


def _is_bare(text: str) -> bool:
    """Nothing but an answer: a number with or without a unit, one word, or a formula."""
    if _MARKER.search(text):  # it marks an answer and then gives none
        return False
    normal = normalise(text)
    if not normal or len(normal) > 100 or "\n" in normal:
        return False
    return " " not in normal or read_quantity(normal) is not None or not is_words(normal)


def _strip_marks(text: str) -> str:
    text = re.sub(r"(?<!\\)\\!\s*", "", _currency(text)).replace("{,}", ",").replace(r"\%", "%").replace("**", "")
    text = re.sub(r"\\[()\[\]]", " ", text)
    text = _TEXT_COMMAND.sub(r" \1 ", _SPACE_COMMAND.sub(" ", text))
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text)
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text)
    text = re.sub(r"√\s*(?:\(([^()]*)\)|(\d+|[A-Za-z]))", r"\\sqrt{\1\2}", text)
    text = text.replace(r"\varnothing", r"\emptyset").replace(r"\log_e", r"\ln")
    text = re.sub(r"(?<![\\A-Za-z])infinity(?![A-Za-z])", r"\\infty", text, flags=re.IGNORECASE)
    text = re.sub(r"\s+", " ", text).replace(" ^", "^")
    return text.strip(" `'\"*").rstrip(" .,;:?\\")


def _currency(text: str) -> str:
    r"""A dollar sign in front of a number becomes `USD`, as far as it is none that LaTeX sets formulas between."""
    if text.count("$") == 1:
        text = re.sub(r"\\?\$\s*(?=[-+]?[\d.])", "USD ", text)
    return text.replace(r"\$", "").replace("$", "")


def is_words(text: str) -> bool:
    """Whether a normalised text holds words that are no mathematics."""
    return any(word.lower() not in FUNCTIONS for word in _WORD.findall(text))
