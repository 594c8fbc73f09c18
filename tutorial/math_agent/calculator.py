"""The one tool of the demo agent: arithmetic read from a syntax tree, never run as code.

>>> calculator("12 * 7")
'84'
>>> calculator("12 * apples")
"Error: '12 * apples' is not arithmetic with numbers, + - * / and brackets."
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
LARGEST = 10**15
"""Below it, whole numbers are exact in floating point."""
ALLOWED = re.compile(r"[0-9.+\-*/() ]{1,200}")


def calculator(expression: str) -> str:
    """Evaluate arithmetic.

    Args:
        expression: for example 12 * 7
    """
    try:
        if not ALLOWED.fullmatch(expression):
            raise ValueError("a character that arithmetic does not have")
        value = _value(ast.parse(expression.strip(), mode="eval").body)
        if abs(value) >= LARGEST:
            raise OverflowError
        return str(int(value)) if value == int(value) else f"{value:.2f}"
    except ZeroDivisionError:
        return "Error: division by zero."
    except OverflowError:
        return "Error: the result is too large."
    except (SyntaxError, ValueError):
        return f"Error: {expression[:40]!r} is not arithmetic with numbers, + - * / and brackets."


def _value(node: ast.expr) -> float:
    """Value of numbers joined by the four operations; ValueError for anything else."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    raise ValueError("not arithmetic")
