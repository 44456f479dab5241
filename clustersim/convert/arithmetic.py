"""Sums of whole numbers, and sums and repetitions of lists of them, as launch files write them: `(4 * 8)`, `([0]*3+[1]*58)`."""

from __future__ import annotations

import ast
import operator

LONGEST = 10_000
"""Largest number of items of a list."""
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod}
_OPERATORS |= {ast.Div: operator.floordiv, ast.FloorDiv: operator.floordiv}
UNREADABLE = (SyntaxError, ValueError, TypeError, ZeroDivisionError, RecursionError, MemoryError)
"""Errors that `evaluated` raises for text that is not an arithmetic expression."""


def evaluated(text: str) -> int | list[object]:
    """Return the value of an arithmetic expression: a whole number below 10^18 or a list of values. Raises one of UNREADABLE."""
    return _value(ast.parse(text, mode="eval").body)


def _value(node: ast.expr) -> int | list[object]:
    """Return the number, or list of numbers, of an expression. Raises one of UNREADABLE."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner)  # type: ignore[operator]
        case ast.List(elts=items):
            return [_value(item) for item in items]
        case ast.BinOp(left=left, op=op, right=right):
            return combined(op, _value(left), _value(right))
    raise ValueError("no sum of whole numbers")


def combined(op: ast.operator, left: object, right: object) -> int | list[object]:
    """Return the result of +, -, *, / or % on whole numbers or lists; / rounds down. Raises one of UNREADABLE."""
    if type(op) not in _OPERATORS or not isinstance(left, int | list) or not isinstance(right, int | list):
        raise ValueError("no operator of sums")
    sizes = [len(side) if isinstance(side, list) else side for side in (left, right)]
    if isinstance(left, list) != isinstance(right, list) and sizes[0] * sizes[1] > LONGEST:
        raise ValueError("a list that is too long")
    result: int | list[object] = _OPERATORS[type(op)](left, right)
    if isinstance(result, int) and abs(result) >= 10**18:
        raise ValueError("a number of more than 18 digits")
    return result
