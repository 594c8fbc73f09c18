r"""Remove formatting that does not change an answer: LaTeX's and Markdown's marks, spaces, a full stop at the end.

>>> normalise(r"$\dfrac{1}{2}$.")
'\\frac{1}{2}'
"""

from __future__ import annotations

import re

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
    | {"\u202f": " ", "…": "...", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "⁄": "/", "±": r"\pm ", "。": "."}  # noqa: RUF001
    | {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # full-width forms of ASCII
)

_WHOLE_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{(.*)\}", re.DOTALL)
PLAIN_NUMBER = re.compile(r"-?[0-9][0-9,]*(?:\.[0-9]+)?", re.ASCII)
_TEXT_COMMAND = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mbox|operatorname|underline)\s*\{([^{}]*)\}"
)
_SPACE_COMMAND = re.compile(r"(?<!\\)\\[,!;: ]|\\q?quad(?![A-Za-z])|\\displaystyle(?![A-Za-z])|~")
_SHORT_FRACTION = re.compile(r"\\frac\s*([0-9A-Za-z])\s*([0-9A-Za-z])")
_LETTER_OR_POWER = re.compile(r"[A-Za-z*^=]")
_BOLD = re.compile(r"(?<![\w)\]}*])\*\*([^*]+)\*\*(?![\w*])")
_POWER = re.compile(r"(?<=[\w)\]}])(?:\*\*| \*\* )(?=[-+\w(\\{])")
_EXPONENT = re.compile(r"\^\s*([-+]\s*(?:[\d.]+|[A-Za-z])|\d*\.\d+)(?![\d.])")
_CALL = re.compile(r"(?<![\\A-Za-z])(sqrt|exp|abs)\s*\(")
_CALLS = {"sqrt": (r"\sqrt{", "}"), "exp": ("e^{", "}"), "abs": ("|", "|")}
_PLAIN_FUNCTION = re.compile(
    r"(?<![\\A-Za-z])(arc(?:sin|cos|tan)|(?:sin|cos|tan)h?|cot|sec|csc|log|ln|max|min|gcd|lcm)(?=\s*\()"
)
_PLAIN_LETTER = re.compile(r"(?<![\\A-Za-z])(pi|theta)(?![A-Za-z])", re.IGNORECASE)
_UNDERSCORES = re.compile(r"(?<![\w.])[1-9]\d{0,2}(?:_\d{3})+(?!\w)")
_GOES_ON = re.compile(r"(\d*\.\d+)\s*(?:\.\.\.|\\[lc]?dots(?![A-Za-z]))\s*")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}|[\u4e00-\u9fff]")


def normalise(text: str) -> str:
    """`text` without marks that change how an answer looks but not what it is: delimiters of LaTeX and Markdown,
    text commands, thin spaces, a full stop at the end. Idempotent. A text longer than an answer is left as it is."""
    if PLAIN_NUMBER.fullmatch(text):
        return text
    before = ""
    while text != before and len(text) <= MAX_LENGTH:
        before = text
        box = _WHOLE_BOX.fullmatch(text)
        text = _strip_marks((box[1] if box else text).translate(SYMBOLS))
    return text


def _strip_marks(text: str) -> str:
    text = re.sub(r"(?<!\\)\\!\s*", "", _currency(text)).replace("{,}", ",").replace(r"\%", "%")
    text = _UNDERSCORES.sub(lambda number: number[0].replace("_", ""), re.sub(r"\\[()\[\]]", " ", text))
    text = _TEXT_COMMAND.sub(r" \1 ", _SPACE_COMMAND.sub(" ", text))
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text)
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text)
    text = re.sub(r"√\s*(?:\(([^()]*)\)|(\d+|[A-Za-z]))", r"\\sqrt{\1\2}", text)
    text = text.replace(r"\varnothing", r"\emptyset").replace(r"\log_e", r"\ln")
    text = re.sub(r"(?<![\\A-Za-z])inf(?:inity)?(?![A-Za-z])", r"\\infty", text, flags=re.IGNORECASE)
    text = re.sub(r"\s+", " ", _in_latex(text)).replace(" ^", "^")
    text = _GOES_ON.sub(r"\\approx \1 ", text, count=1) if _GOES_ON.match(text.lstrip()) else text
    return text.strip(" `'\"*").rstrip(" .,;:?\\")


def _in_latex(text: str) -> str:
    """Formulas as programs spell them: 9*pi, 2*y**2, sqrt(2), exp(x)."""
    if not _LETTER_OR_POWER.search(text):
        return text
    text = _POWER.sub("^", _BOLD.sub(r"\1", text)).replace("**", "").replace("==", "=")
    text = _PLAIN_LETTER.sub(lambda letter: f"\\{letter[0].lower()} ", _EXPONENT.sub(r"^{\1}", text))
    text = re.sub(r"(?<![\\A-Za-z])sqrt ?(\d+)", r"\\sqrt{\1}", text)
    text = re.sub(r"([-+] ?[\d.]*\d)j$", r"\1i", text)
    while call := _CALL.search(text):
        end = _closing(text, call.end())
        if end < 0:
            break
        before, after = _CALLS[call[1]]
        text = text[: call.start()] + before + text[call.end() : end] + after + text[end + 1 :]
    return _PLAIN_FUNCTION.sub(r"\\\1", text)


def _closing(text: str, start: int) -> int:
    """The index at which the parenthesis closes that opened before `start`; -1 if it does not."""
    depth = 1
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    return -1


def _currency(text: str) -> str:
    r"""A dollar sign in front of a number becomes `USD`, as far as it is none that LaTeX sets formulas between."""
    if text.count("$") == 1:
        text = re.sub(r"\\?\$\s*(?=[-+]?[\d.])", "USD ", text)
    return text.replace(r"\$", "").replace("$", "")


def is_words(text: str) -> bool:
    """True if a normalised text holds words that are no mathematics."""
    return any(word.lower() not in FUNCTIONS for word in _WORD.findall(text))
