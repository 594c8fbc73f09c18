r"""The process that compares formulas with math-verify; `pool` runs this file, nothing imports it but tests.

One request per line of standard input, one reply per line of standard output, in the same order, JSON both:

    ["\\sqrt{8}", "2\\sqrt{2}"]   ->   {"equal": true}
    ["72", "}{"]                  ->   {"equal": null}       the answer is no mathematics
    ["}{", "72"]                  ->   {"error": "..."}      the reference is none
    ["3.14", "\\pi", "1/200"]     ->   {"equal": true}       the reference is rounded: so far off may the answer be

A process of its own because math-verify's timeout is a signal that only works in a main thread, because sympy can
compute for ever, and because only a process can be ended from outside. It ends itself when its input closes, and the
kernel ends it when a request computes for a fifth of the time that the parent gives it, which is a second less than on
the command line, or takes longer than that: whatever happens to its parent, it does not stay.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import resource
import signal
import sys
from decimal import Decimal
from functools import lru_cache
from typing import Any

from antlr4.atn.PredictionMode import PredictionMode  # type: ignore[import-untyped]
from antlr4.error.ErrorStrategy import BailErrorStrategy  # type: ignore[import-untyped]
from latex2sympy2_extended import NormalizationConfig, latex2sympy2
from math_verify import LatexExtractionConfig, grader, parse, verify
from sympy import (  # type: ignore[import-untyped]
    And,
    Basic,
    Eq,
    Expr,
    FiniteSet,
    Float,
    Integer,
    MatrixBase,
    Rational,
    Symbol,
    Tuple,
    UnevaluatedExpr,
    expand,
    preorder_traversal,
)
from sympy.core.function import AppliedUndef  # type: ignore[import-untyped]
from sympy.core.relational import Relational  # type: ignore[import-untyped]

NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
"""math-verify's default but for units, which `math_answer` takes off more carefully: 5t and 5ab are no 5."""

MEMORY_LIMIT = 4 << 30
"""Bytes of address space, where the system can limit it."""

POINTS = (3, 2, 5, 7, 11, 13)
"""Values of variables at which two formulas are looked at: whole, as n and k often are."""

MOST_DIGITS, FEW_DIGITS = 250, 40
"""A difference of numbers that has no digit among so many is 0. Of formulas fewer are looked at: there is algebra."""

NOISE = Rational(1, 10**12)
"""The noise that floating point may add to a number, in units of it: 0.30000000000000004 is 3/10."""

TEN_DIGITS = Rational(5, 10**11)
"""The most by which a decimal may be off, in units of a number that no decimal is, such as the square root of 2."""

ROUNDED_FROM = 7
"""A reference with so many digits is a rounding of the formula that rounds to it; one digit less will do for a
fraction. 3.14 may be meant as it is."""

_LETTER_POWER = re.compile(
    r"(?<![A-Za-z\\_^])([a-dj-zA-Z])\^(?=(?:\{[^{}]*\}|[0-9]+(?![0-9])|[A-Za-z](?![A-Za-z]))(?!\s*\^))"
)


class TwoStageReader(latex2sympy2._Latex2Sympy):  # type: ignore[misc]
    """latex2sympy's reader, four times as fast with equal results.

    It parses by SLL prediction first and by full LL where that fails, as ANTLR's manual advises: SLL finds the parse
    of LL or none, and is quick because it remembers its decisions. It finds none where a letter has an exponent, so
    x^2 becomes {x}^2. Whole numbers are not sent through sympy's parser.
    """

    prediction = PredictionMode.SLL

    def create_parser(self, latex_str: str) -> Any:
        parser = super().create_parser(latex_str)
        parser._interp.predictionMode = self.prediction
        if self.prediction == PredictionMode.SLL:
            parser._errHandler = BailErrorStrategy()
        return parser

    def parse(self, latex_str: str) -> Any:
        try:
            return super().parse(_LETTER_POWER.sub(r"{\1}^", latex_str))
        except Exception:
            self.prediction = PredictionMode.LL
            return super().parse(latex_str)

    def parse_number(self, text: str) -> Any:
        digits = text.replace(",", "")
        return Integer(int(digits)) if re.fullmatch("[0-9]{1,300}", digits) else super().parse_number(text)


latex2sympy2._Latex2Sympy = TwoStageReader


def equal(reference: str, answer: str, half: str | None = None) -> bool | None:
    """True if two pieces of LaTeX mean the same; None for an answer that is no mathematics. `half` says that the
    reference is a rounded number, and how far off it may be.

    Raises ValueError for a reference that cannot be read, and what math-verify raises.
    """
    found = _parse(reference, strict=True)
    if not found:
        raise ValueError(f"the reference answer {reference!r} cannot be read as mathematics")
    read = _parse(answer, strict=False)
    if not read:
        return None
    expected, given = _with_names(found[0]), _with_names(read[0])
    if half is not None and _is_near(expected, given, Rational(half)):
        return True
    if isinstance(given, Tuple):
        expected = _as_point(expected)
    known = _by_sides(expected, given)
    return _means(expected, given) if known is None else known


def _means(expected: Any, given: Any) -> bool:
    known = _by_value(expected, given)
    if known is not None:
        return known
    as_sets = _is_solved(given)
    return bool(verify([expected], [given], allow_set_relation_comp=as_sets, timeout_seconds=None, raise_on_error=True))


def _with_names(formula: Any) -> Any:
    """With a symbol for what no formula defines: f(2) = 5 says something of f(2), as x = 5 does of x."""
    functions = formula.atoms(AppliedUndef) if isinstance(formula, Basic) else ()
    return formula.xreplace({each: Symbol(str(each), real=True) for each in functions}) if functions else formula


def _as_point(formula: Any) -> Any:
    """x = 2, y = 3 as (2, 3), in the order of the letters: math-verify takes it for a set."""
    parts = formula.args if isinstance(formula, FiniteSet) else ()
    if len(parts) < 2 or not all(_defines(part) for part in parts):
        return formula
    return Tuple(*(part.rhs for part in sorted(parts, key=lambda part: str(part.lhs))))


def _is_near(expected: Any, given: Any, half: Any) -> bool:
    if not isinstance(given, Expr) or given.free_symbols:
        return False
    try:
        distance = _size(_exact(expected) - _exact(given), {})
        return distance is not None and bool(distance <= half)
    except (TypeError, ValueError, ArithmeticError, AttributeError):  # no number
        return False


def _by_sides(expected: Any, given: Any) -> bool | None:
    """Compares statements without anything unknown, of which sympy and math-verify only tell whether they are true.
    2+2=4 is the same as 4=2+2 and no other statement; its value is 4. An answer 6+6=12 is 12 if both of its sides
    are."""
    of_reference, of_answer = _relations(expected), _relations(given)
    if any(each.free_symbols for each in of_reference):
        of_reference = ()
    if any(each.free_symbols for each in of_answer):
        of_answer = ()
    if of_reference and of_answer:
        return len(of_reference) == len(of_answer) and all(
            any(_same_relation(one, other) for other in of_answer) for one in of_reference
        )
    if of_reference:
        value = given.rhs if _defines(given) else given
        side = next((side for each in of_reference for side in each.args if side.is_Number), of_reference[0].rhs)
        return all(isinstance(each, Eq) for each in of_reference) and isinstance(value, Expr) and _means(side, value)
    if of_answer:
        equations = all(isinstance(each, Eq) for each in of_answer) and isinstance(expected, Expr)
        return equations and all(_means(expected, side) for each in of_answer for side in each.args)
    return None


def _relations(formula: Any) -> tuple[Any, ...]:
    """The relations in an equation or inequality, or in a chain a = b = c; none of anything else."""
    parts = formula._unsorted_args if isinstance(formula, And) else (formula,)
    return tuple(parts) if all(isinstance(part, Relational) for part in parts) else ()


def _same_relation(one: Any, other: Any) -> bool:
    return any(
        one.func is turned.func and _same(one.lhs, turned.lhs) and _same(one.rhs, turned.rhs)
        for turned in (other, other.reversed)
    )


def _same(side: Any, other: Any) -> bool:
    """Equal, and made of the same numbers: 1+3 is another side than 2+2."""
    plain = side.is_Number and other.is_Number
    return (plain or _leaves(side) == _leaves(other)) and _means(side, other)


def _leaves(formula: Any) -> list[str]:
    return sorted(str(each) for each in preorder_traversal(formula) if not each.args)


def _is_solved(formula: Any) -> bool:
    """True if the relation says between what numbers a variable lies: it may then stand for an interval, while for a
    relation that repeats the question (2x > 6) math-verify rightly takes none."""
    relations = getattr(formula, "_unsorted_args", (formula,))
    return all(
        isinstance(relation, Relational)
        and len(relation.free_symbols) == 1
        and (relation.lhs.is_Symbol or relation.rhs.is_Symbol)
        for relation in relations
    )


def _by_value(expected: Any, given: Any) -> bool | None:
    """Compares without `sympy.simplify`, most of math-verify's time, where that is enough: formulas that differ where
    all variables have some value are not equal, and those whose difference cancels are. y = f(x) is what f is."""
    if _defines(expected) and _defines(given) and expected.lhs == given.lhs:
        return _by_value(expected.rhs, given.rhs)
    if not all(isinstance(each, Expr) and not isinstance(each, Symbol) for each in (expected, given)):
        return None
    if expected.has(UnevaluatedExpr) or given.has(UnevaluatedExpr):  # a percentage: math-verify lets 50% be 50
        return None
    return _same_value(expected, given)


def _same_value(expected: Any, given: Any) -> bool | None:
    """Compares in units of the reference, so that no size is too small to tell apart. A decimal is the fraction that it
    is written as, so 0.333333 is not 1/3; it is a rounding only where the reference is a decimal of many digits."""
    try:
        exact, other = _exact(expected).doit(), _exact(given).doit()
        difference = exact - other
        names = sorted(exact.free_symbols | other.free_symbols, key=str)
        if len(names) > len(POINTS):
            return None
        values = dict(zip(names, map(Integer, POINTS), strict=False))
        distance, size = _size(difference, values), _size(exact, values)
        if distance is None or size is None:
            return None
        has_decimals = expected.has(Float) or given.has(Float)
        if names:
            if distance > (NOISE * size if has_decimals else 0):
                return False
            return True if expand(difference) == 0 or (has_decimals and _same_terms(exact, other)) else None
        if distance == 0 or (has_decimals and distance <= (NOISE if difference.is_Rational else TEN_DIGITS) * size):
            return True
        decimal = expected.doit()
        return isinstance(decimal, Float) and not given.has(Float) and bool(distance <= _half(decimal, other))
    except (TypeError, ValueError, ArithmeticError, AttributeError):  # no number: math-verify may still know
        return None


def _exact(formula: Any) -> Any:
    """With the decimals, of 15 digits or as many as are written, as fractions: 0.1 + 0.2 is 3/10."""
    return formula.xreplace({each: Rational(str(each)) for each in formula.atoms(Float)})


def _size(formula: Any, values: dict[Any, Any]) -> Any:
    """The absolute value of a formula whose variables have these values, 0 if it has no digit that is not 0; None if it
    is no finite number. sympy computes with as many digits as it takes to see what a difference leaves."""
    digits = FEW_DIGITS if values else MOST_DIGITS
    parts = formula.evalf(15, subs=values, maxn=digits).as_real_imag()
    if not all(part.is_Float or part.is_Rational for part in parts):
        return None
    real, imaginary = (Integer(0) if part.is_Float and part._prec == 1 else abs(part) for part in parts)
    return max(real, imaginary)


def _same_terms(exact: Any, other: Any) -> bool:
    """Compares the factors of all terms, up to the noise of floating point."""
    terms, others = (expand(each).evalf(30).as_coefficients_dict() for each in (exact, other))
    return all(abs(terms[term] - others[term]) <= NOISE * abs(terms[term]) for term in terms.keys() | others.keys())


def _half(reference: Any, value: Any) -> Any:
    """The largest difference at which `reference`, a decimal, is a rounding of `value`."""
    written = Decimal(str(reference)).normalize().as_tuple()
    is_long = len(written.digits) >= ROUNDED_FROM - bool(value.is_Rational)
    return Rational(10) ** int(written.exponent) / 2 if is_long and int(written.exponent) < 0 else Integer(0)


def _same_number(expected: Any, given: Any, *_: Any) -> bool:
    """math-verify's comparison of numbers, also of those in sets, intervals and matrices, in units of the reference.
    Its own rounds all to 6 places, and takes differences below 1e-15 for none."""
    if isinstance(expected, MatrixBase) and isinstance(given, MatrixBase):
        return expected.shape == given.shape and all(map(_same_number, expected.doit().flat(), given.doit().flat()))
    plain = [grader.get_pct_val(each, each) for each in (expected, given)]
    if all(each.is_Integer for each in plain):
        return bool(plain[0] == plain[1])
    return _same_value(expected, given) is True


grader.sympy_numeric_eq = _same_number


def _defines(formula: Any) -> bool:
    return isinstance(formula, Eq) and formula.lhs.is_Symbol and formula.lhs not in formula.rhs.free_symbols


@lru_cache(maxsize=10_000)
def _parse(text: str, *, strict: bool) -> list[Any]:
    found: list[Any] = parse(
        f"${text}$",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=-1, normalization_config=NORMALIZATION)],
        fallback_mode="no_fallback",
        parsing_timeout=None,
        raise_on_error=strict,
    )
    return found


def _reply(reference: str, answer: str, half: str | None = None) -> dict[str, Any]:
    try:
        return {"equal": equal(reference, answer, half)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main(seconds: float) -> None:
    logging.disable(logging.CRITICAL)
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints is no reply
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    equal("x", "x+1")  # loads what math-verify loads late, so that no request pays for it
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        signal.setitimer(signal.ITIMER_PROF, (seconds - 1) / 5)
        reply = _reply(*json.loads(line))
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
