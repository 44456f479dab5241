"""Loops that numba compiles. Those over few nodes Python goes through itself: numba takes half a second to load.

What a loop finds does not depend on which of the two goes through it: the function is the same, on arrays or on lists, and
adds and compares the same 64-bit numbers in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar, cast

from clustersim.arrays import Floats, Ints

Function = TypeVar("Function", bound=Callable[..., object])
ENOUGH = 400_000
"""Nodes that Python goes through in the time in which numba is loaded: from then on it has paid off."""

_INNER: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled(function: Function) -> Function:
    """Return a function compiled by numba; kept for later processes where its folder or the user's cache can be written."""
    import numba

    try:
        return cast("Function", numba.njit(cache=True, error_model="numpy")(function))
    except RuntimeError:  # nowhere to keep it
        return cast("Function", numba.njit(error_model="numpy")(function))


def inlined(function: Function) -> Function:
    """Return a function that becomes a part of compiled ones which call it."""
    import numba

    options: dict[str, Any] = {**_INNER, "forceinline": True}
    return cast("Function", numba.njit(**options)(function))


def called(function: Function) -> Function:
    """Return a function that compiled ones call, from so many places that it is no part of each."""
    import numba

    return cast("Function", numba.njit(**_INNER)(function))


def paid_off() -> bool:
    """Return whether numba is worth loading, or loaded for that."""
    return Loop.gone > ENOUGH


class Loop:
    """A loop over nodes that is compiled when this process has gone through enough of them, in any loop."""

    gone = 0
    """Nodes that this process has gone through."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """function: takes the same on arrays and on lists."""
        self.function = function

    @cached_property
    def fast(self) -> Callable[..., Any]:
        """The compiled function."""
        return compiled(self.function)

    def __call__(self, *columns: Floats | Ints) -> Any:
        """Go through nodes; columns: the first one has a row a node. The last one is returned, as the function has filled it."""
        Loop.gone += len(columns[0])
        if paid_off():
            self.fast(*columns)
            return columns[-1]
        rows = [column.tolist() for column in columns]
        self.function(*rows)
        columns[-1][:] = rows[-1]
        return columns[-1]
