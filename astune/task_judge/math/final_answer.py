r"""Find the final answer of a text.

    >>> extract_answer("so 6*12 = 72, \\boxed{72}", "auto")
    FinalAnswer(text='72', found_in='boxed')

A text that does not mark its answer has none; only the format `last_number` takes the last number for one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from astune.task_judge.math.normalise import PLAIN_NUMBER, is_words, normalise
from astune.task_judge.math.quantity import is_numeral, read_quantity

_REFUSALS = "❌❎✕✖✗✘☒☐⛔🚫🛑👎🙅❓❔⁉🤔🤷↚↛↮⇍⇎⇏↯"
REFUSAL = f"[{_REFUSALS}]"
_PICTURES = (
    "\u231a\u231b\u23e9-\u23fa\u2600-\u2606\u2611\u261a-\u261f\u2639-\u263b\u26a0\u26a1\u2700-\u2714\u2719-\u2752"
    "\u2761-\u2767\u2b50\u2b55\U0001f300-\U0001f51e\U0001f520-\U0001f64f\U0001f680-\U0001f6ff\U0001f7e0-\U0001f7f0"
    "\U0001f900-\U0001f9ff\U0001fa70-\U0001faff"
)
"""Blocks of pictures and dingbats, without what stands for a number (❶, 🔟), an operation (a heavy minus) or a
figure (△), or is a card, a die or a chessman."""
_ARROWS = "\u2190-\u21ff\u25b6\u25ba\u2794\u2798-\u27af\u27b1-\u27be\u27f0-\u27ff\u2900-\u297f\u2b05-\u2b07\u2b95"
_JOINERS = "\ufe0e\ufe0f\u200d\u20e3"
SIGN = rf"(?:(?!{REFUSAL})[{_PICTURES}{_ARROWS}{_JOINERS}])"
ARROW = (
    rf"(?:(?:(?!{REFUSAL})[{_ARROWS}👉🟰])\ufe0f?|[-=]{{1,3}}>"
    r"|(?:\$|\\\()?\\(?:(?:long)?rightarrow|to|implies)(?![a-z])(?:\$|\\\))?)"
)
BULLET = rf"(?:{SIGN}|[0-9]\ufe0f?\u20e3|[•‣·∴\u25a0-\u25b5\u25b7-\u25b9\u25bb-\u25ff])"
"""A sign that begins a line; 1️⃣ is one, too."""

_BEFORE = re.compile(rf"(?:\s|{SIGN}|{ARROW})*", re.IGNORECASE)
_SIGN = re.compile(SIGN)
_ANY = re.compile(rf"{SIGN}|{ARROW}", re.IGNORECASE)


def remove_decoration(answer: str) -> str:
    """Remove arrows before an answer and signs around it, unless there is nothing else."""
    if not _ANY.search(answer):
        return answer
    before = _BEFORE.match(answer)
    start, end = before.end() if before else 0, len(answer)
    while end > start and (answer[end - 1].isspace() or _SIGN.match(answer, end - 1)):
        end -= 1
    return answer[start:end] or answer


AnswerFormat: TypeAlias = Literal["auto", "boxed", "answer_tag", "hashes", "the_answer_is", "plain", "last_number"]

LOOKED_AT = 100_000
"""Characters at the end of a text in which its final answer is looked for."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(
    r"(\\(?:boxed|fbox))(?: {1,9}|(?=[\d\\]))(\\frac ?\d ?\d|\\[A-Za-z]{1,20}|-?[\w,]{1,60}(?:[.:/][\w,]{1,20}){0,3}%?)"
    r"(?=[ .,]{0,9}(?:$|\$|\\[)\]]|[a-z]{2}))",
    re.MULTILINE,
)
"""TeX boxes the next sign where no brace follows, MATH means the rest of the formula: only where both are the same."""
_OR = (
    r"(?:(?:or|oder|ou|versus|vs\.?|alternatively)(?:\s+(?:maybe|possibly|perhaps|else|even|it|could|can|may|might|be))*"
    r"(?![a-z])|或者?)"
)
_OR_A_NUMBER = re.compile(rf"[\s$]*(?:\\\))?\s*,?\s*{_OR}\s+\$?(-?\d[\d,]*(?:\.\d+)?(?:/\d+)?)", re.IGNORECASE)
_WORD_BEHIND = re.compile(r"[\s$]*(?:\\[)\]])?[ \t]*([A-Za-z]+)")
_BETWEEN_OFFERS = re.compile(
    rf"(?:[\s$,;/|]|\\[()\[\]]|\\q?quad|\\text\s*\{{\s*(?:and|{_OR})\s*\}}|and(?![a-z])|{_OR})*", re.IGNORECASE
)
_OR_AT_THE_END = re.compile(rf"(?<![a-z]){_OR}[\s,]*$", re.IGNORECASE)
_TAKEN_BACK = re.compile(
    rf"[ \t$.)\]}}*\\]*{REFUSAL}|(?:[\s$.,;:!?。，？)\]}}*\\—–-]|{SIGN})*"  # noqa: RUF001
    r"(?:(?:(?:this|that|it|which)(?:'s| is| was) (?:wrong|incorrect|not (?:right|correct)|a mistake)"
    r"|i (?:made a mistake|(?:was|am) wrong))\b|不对|不，|不,|错了|"  # noqa: RUF001
    r"(?:no(?!\. ?\d)|wait|sorry|oops|actually|correction|hmm+|hold on|scratch that|i mean|rather)\b[\s,.:;!—–-]*"  # noqa: RUF001
    r"(?:(?:no|wait|sorry|actually|correction|it|its|it's|is|that|that's|this|should|would|must|have|been|be|make|i|mean|"
    r"meant|the|correct|right|final|answer|rather|not [\w.$]+|wrong|incorrect|but|of course)\b[\s,.:;!—–-]*)*"  # noqa: RUF001
    r"(?:\\\(|\\\[|\\boxed *\{|[-$\s*(])*\d)",
    re.IGNORECASE,
)
"""Behind an answer, that it is wrong or another one: 5? No: 6. Only such words may stand in front of the other."""
_ANSWER_TAG = re.compile(r"</?answer>", re.IGNORECASE)
_MARKER = re.compile(r"\\(?:boxed|fbox)|</?answer>|####", re.IGNORECASE)
_LINE = rf"^(?:[ \t>#*_=-]|{BULLET})*"
_THE_ANSWER_IS = re.compile(
    r"\b(?:the|my|our)\s+(?:(?:final|correct|right|best)\s+){0,2}answer\s+(?:is|would\s+be|should\s+be|will\s+be)\b"
    r"|\bthe\s+(?:correct|right|best)\s+(?:option|choice)\s+is\b"
    rf"|{_LINE}(?:the\s+)?(?:final\s+|correct\s+)?"
    rf"(?:answer(?:[ \t*_]|{SIGN})*(?:{ARROW}|[:：=]|is\b)|ans[ \t*_]*(?:{ARROW}|[:=.]))"  # noqa: RUF001
    rf"|{_LINE}(?:the\s+)?(?:final\s+|correct\s+)?answer(?:[ \t*_]|{SIGN})*$"
    rf"|^(?:[ \t>*_=]|{BULLET})*(?=(?P<letter>(?-i:A))[ \t*_]*[:：])"  # noqa: RUF001
    rf"|答案[ \t*]*(?:[是为选:：]|{ARROW})|故选[ \t*]*[:：]?",  # noqa: RUF001
    re.IGNORECASE | re.MULTILINE,
)
"""Behind it stands the answer. A line that begins with "A:" is a whole one, because it may be an option."""
_REFUSED = re.compile(rf"{REFUSAL}[\s*_\ufe0f]*$")
_BEFORE_ANSWER = re.compile(rf"(?:[ :：*_\t\n]|{SIGN}|{ARROW})*", re.IGNORECASE)  # noqa: RUF001
_OPTION_B = re.compile(r"^[^\w\n]*B[ \t*_]*[):：.]", re.MULTILINE)  # noqa: RUF001
_THINKING = re.compile(
    r"(?P<begin><(?:\w+:)?(?:think(?:ing)?|thoughts?|reasoning|reflection|scratchpad)>|\[think\]|◁think▷"
    r"|<\|begin_of_thought\|>|<\|channel\|>(?:analysis|commentary))"
    r"|</(?:\w+:)?(?:think(?:ing)?|thoughts?|reasoning|reflection|scratchpad)>|\[/think\]|◁/think▷"
    r"|<\|end_of_thought\|>|<\|channel\|>final(?:<\|message\|>)?",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"\n|[.!?](?=\s|$)|。|,?\s(?:because|since)\b|[,，]?因为")  # noqa: RUF001
_NUMBER = re.compile(r"[-−]?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?%?")  # noqa: RUF001


@dataclass(frozen=True)
class FinalAnswer:
    text: str
    found_in: AnswerFormat


def extract_answer(text: str, answer_format: AnswerFormat) -> FinalAnswer | None:
    """The last answer that `text` marks in `answer_format`; None if it marks none.

    `auto` tries boxed, answer_tag, hashes and the_answer_is in this order, then takes a text that is nothing but a
    short answer. What stands in thinking is none, nor is one that is taken back ("5? No: 6"), and of a very long text
    only the end is looked at. Takes time linear in the length of `text`.
    """
    text = _take_end(text)
    for name in _AUTO if answer_format == "auto" else (answer_format,):
        found, end = _FINDERS[name](text)
        if found:
            return None if _TAKEN_BACK.match(text, end) else FinalAnswer(remove_decoration(found), name)
    whole = remove_decoration(text.strip()) if answer_format == "auto" else ""
    return FinalAnswer(whole, "plain") if _is_bare(whole) else None


def reference_answer(answer: str) -> str:
    """The final answer in the reference of a task: behind `####` (GSM8K), in `\\boxed{}` (MATH), or all of it."""
    said = _take_end(answer)
    return _hashes(said)[0] or _find_box(said)[0] or said.strip()


def outside_thinking(text: str) -> str:
    """`text` without what a model only thought: between <think> and </think> or their like, before an end whose
    beginning stood in the prompt, and behind a beginning that has no end."""
    if "<" not in text and "[" not in text and "◁" not in text:
        return text
    said: list[str] = []
    start, thinks = 0, False
    for mark in _THINKING.finditer(text):
        if mark["begin"] and not thinks:
            said.append(text[start : mark.start()])
        elif not mark["begin"] and not thinks:
            said.clear()
        thinks, start = bool(mark["begin"]), mark.end()
    return "".join(said) + ("" if thinks else text[start:])


def _take_end(text: str) -> str:
    """Take the end of a text, without what was only thought, with one kind of line end and of boxes."""
    said = "\n".join(outside_thinking(text).splitlines())[-LOOKED_AT:]
    return _BARE_BOX.sub(r"\1{\2}", said)


_Found: TypeAlias = tuple[str, int]
"""An answer, empty if there is none, and where the text behind it begins."""


def _find_box(text: str) -> _Found:
    """Find the content of the box that closes last, with those before it as far as they are one list or several offers,
    and with "million" or "or 6" behind it. Braces nest, escaped ones do not count."""
    open_braces: list[tuple[int, int]] = []  # where the box begins, -1 for a brace that opens none, and its content
    boxes: list[tuple[int, int, int, int]] = []
    for token in _BOX.finditer(text):
        if token[0].endswith("{") and token[0] != r"\{":
            open_braces.append((token.start() if len(token[0]) > 1 else -1, token.end()))
        elif token[0] == "}" and open_braces:
            begin, start = open_braces.pop()
            if begin >= 0:
                boxes.append((begin, start, token.start(), token.end()))
    found, end = _offers(text, boxes)
    if found and (other := _OR_A_NUMBER.match(text, end)):
        return f"{found}, {other[1]}", other.end()
    if found and (word := _WORD_BEHIND.match(text, end)) and is_numeral(word[1].lower()):
        return f"{found} {word[1]}", word.end()
    return found, end


def _offers(text: str, marked: Sequence[tuple[int, int, int, int]]) -> _Found:
    """The content of the last mark, and of those before it with nothing but a comma, "and" or "or" between, as a list.
    A mark is where it begins, its content begins and ends, and it ends."""
    contents: list[str] = []
    before = 0
    for begin, start, stop, end in marked:
        if begin < before or not _BETWEEN_OFFERS.fullmatch(text, before, begin):
            contents.clear()
        contents.append(text[start:stop].strip())
        before = end
    return (", ".join(dict.fromkeys(contents)) if contents and contents[-1] else ""), before


def _answer_tag(text: str) -> _Found:
    """The text before the last </answer>, back to the <answer> before it."""
    marked: list[tuple[int, int, int, int]] = []
    begin: re.Match[str] | None = None
    for tag in _ANSWER_TAG.finditer(text):
        if not tag[0].startswith("</"):
            begin = tag
        elif begin is not None:
            marked.append((begin.start(), begin.end(), tag.start(), tag.end()))
    return _offers(text, marked)


def _hashes(text: str) -> _Found:
    """The line behind the last ####, unless it is a heading: with more text below it and no number of its own."""
    line, _, below = text.rpartition("####")[2].strip().partition("\n") if "####" in text else ("", "", "")
    is_answer = not below.strip() or (_is_bare(line) and re.search(r"\d", line))
    return (line.strip() if is_answer else ""), len(text) - len(below)


def _the_answer_is(text: str) -> _Found:
    """The rest of the sentence, which is no question."""
    found = [match for match in _THE_ANSWER_IS.finditer(text) if not _REFUSED.search(text[: match.start()][-10:])]
    if any(match["letter"] for match in found) and _OPTION_B.search(text):  # A: 15, B: 18 are options
        found = [match for match in found if not match["letter"]]
    if not found or (len(found) > 1 and _OR_AT_THE_END.search(text[found[-2].end() : found[-1].start()][-30:])):
        return "", 0
    before = _BEFORE_ANSWER.match(text, found[-1].end())
    rest = text[before.end() if before else len(text) :]
    end = _SENTENCE_END.search(rest)
    said = rest[: end.start()] if end else rest
    return ("" if end and end[0] == "?" else remove_decoration(said).strip(" *")), len(text) - len(rest) + len(said)


def _find_plain(text: str) -> _Found:
    return text.strip(), len(text)


def _last_number(text: str) -> _Found:
    numbers = _NUMBER.findall(text)
    return (numbers[-1].rstrip(",") if numbers else ""), len(text)


_FINDERS: dict[AnswerFormat, Callable[[str], _Found]] = {
    "boxed": _find_box,
    "answer_tag": _answer_tag,
    "hashes": _hashes,
    "the_answer_is": _the_answer_is,
    "plain": _find_plain,
    "last_number": _last_number,
}
_AUTO: tuple[AnswerFormat, ...] = ("boxed", "answer_tag", "hashes", "the_answer_is")


def _is_bare(text: str) -> bool:
    """Nothing but an answer: a number with or without a unit, one word, or a formula."""
    if _MARKER.search(text):  # it marks an answer and then gives none
        return False
    normal = normalise(text)
    if PLAIN_NUMBER.fullmatch(normal):
        return True
    if not normal or len(normal) > 100 or "\n" in normal:
        return False
    return " " not in normal or read_quantity(normal) is not None or not is_words(normal)
