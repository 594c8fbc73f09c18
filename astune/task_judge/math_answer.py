r"""Where the final answer stands in a text, and the comparisons that need no algebra.

    >>> extract_answer("so 6*12 = 72, \\boxed{72}", "auto")
    FinalAnswer(text='72', found_in='boxed')
    >>> compare(normalise("$72.00"), normalise("72 clips"))
    True

There is no "last number in the text": a text that does not mark its answer has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from astune.task_judge.math_quantity import read_quantity, without_label

AnswerFormat: TypeAlias = Literal["auto", "boxed", "answer_tag", "hashes", "the_answer_is", "plain"]

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
    | {"\u202f": " ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "⁄": "/"}  # noqa: RUF001
)

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_WHOLE_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{(.*)\}", re.DOTALL)
_MARKER = re.compile(r"\\(?:boxed|fbox)|</?answer>|####", re.IGNORECASE)
_THE_ANSWER_IS = re.compile(r"\bthe\s+(?:final\s+|correct\s+)?answer\s+is\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|[.!?](?=\s|$)|,?\s(?:because|since)\b")
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_SPACE_COMMAND = re.compile(r"\\[,!;: ]|\\q?quad(?![A-Za-z])|~")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_BASE = re.compile(r"([0-9A-Za-z]+)_\{?(\d+)\}?")


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


def compare(reference: str, answer: str) -> bool | None:
    """Whether two normalised answers are equal; None if that takes algebra (`math_worker`).

    Numbers are compared exactly, up to the noise of floating point (a relative 1e-12).
    """
    expected, given = read_quantity(reference), read_quantity(answer)
    if expected and given:
        return expected.equals(given)
    if _squeeze(reference) == _squeeze(answer):
        return True
    if max(len(reference), len(answer)) > MAX_LENGTH or not answer:
        return False
    reference, answer = without_label(reference), without_label(answer)
    if (not expected and _is_words(reference)) or (not given and (_is_words(answer) or _lists_numbers(answer))):
        return False
    if (left := _BASE.fullmatch(reference)) and (right := _BASE.fullmatch(answer)) and left[2] != right[2]:
        return False  # 12 in base 7 and 12 in base 8; math-verify drops the base
    return None


def for_algebra(text: str) -> str:
    """A normalised answer as the LaTeX that `math_worker` gets: a number loses its unit."""
    quantity = read_quantity(text)
    return quantity.latex if quantity else without_label(text)


def _boxed(text: str) -> str:
    """Content of the box that closes last; braces nest, escaped ones do not count."""
    open_braces: list[tuple[bool, int]] = []
    content = ""
    for token in _BOX.finditer(text):
        if token[0].endswith("{") and token[0] != r"\{":
            open_braces.append((len(token[0]) > 1, token.end()))
        elif token[0] == "}" and open_braces:
            is_box, start = open_braces.pop()
            if is_box:
                content = text[start : token.start()].strip()
    return content


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
    rest = text[ends[-1] :].lstrip(" :*\t\n")
    end = _SENTENCE_END.search(rest)
    return (rest[: end.start()] if end else rest).strip(" *")


_FINDERS: dict[AnswerFormat, Callable[[str], str]] = {
    "boxed": _boxed,
    "answer_tag": _answer_tag,
    "hashes": _hashes,
    "the_answer_is": _the_answer_is,
    "plain": str.strip,
}
_AUTO: tuple[AnswerFormat, ...] = ("boxed", "answer_tag", "hashes", "the_answer_is")


def _is_bare(text: str) -> bool:
    """Nothing but an answer: a number with or without a unit, one word, or a formula."""
    if _MARKER.search(text):  # it marks an answer and then gives none
        return False
    normal = normalise(text)
    if not normal or len(normal) > 100 or "\n" in normal:
        return False
    return " " not in normal or read_quantity(normal) is not None or not _is_words(normal)


def _strip_marks(text: str) -> str:
    text = text.replace(r"\$", "").replace("$", "").replace("{,}", ",").replace(r"\%", "%").replace("**", "")
    text = re.sub(r"\\[()\[\]]", " ", text)
    text = _TEXT_COMMAND.sub(r" \1 ", _SPACE_COMMAND.sub(" ", text))
    text = re.sub(r"\\[dt]frac(?![A-Za-z])", r"\\frac", text)
    text = re.sub(r"\s+", " ", text).replace(" ^", "^")
    return text.strip(" `'\"*").rstrip(" .,;:").strip()


def _squeeze(text: str) -> str:
    """For comparison as text: no case, no spaces but those between digits; an option such as (A) without brackets."""
    squeezed = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text).casefold()
    return squeezed[1:-1] if re.fullmatch(r"\([a-z]\)", squeezed) else squeezed


def _is_words(text: str) -> bool:
    return any(word.lower() not in FUNCTIONS for word in _WORD.findall(text))


def _lists_numbers(text: str) -> bool:
    """Numbers side by side with nothing between them: math-verify multiplies or adds them, or takes the first."""
    return re.search(r"\d\s+\.?\d", text) is not None
