"""Loops that numba compiles. Those over few nodes Python goes through itself: numba takes half a second to load.

What a loop finds does not depend on which of the two goes through it: the function is the same, on arrays or on lists, and
adds and compares the same 64-bit numbers in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from clustersim.arrays import Floats, Ints

Function = TypeVar("Function", bound=Callable[..., object])
ENOUGH = 400_000
"""Nodes that Python goes through in the time in which numba is loaded: from then on it has paid off."""

_INNER: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
COMPILING = "compile the event loop, once: about 15 s"
UNKEPT = (
    "compile the event loop, about 15 s in each process, as no cache can be written; NUMBA_CACHE_DIR=FOLDER keeps it"
)
_TELL: ContextVar[Callable[[str], object]] = ContextVar("_TELL", default=lambda _: None)
_unkept: set[Callable[..., object]] = set()
"""Functions for which no cache can be written; where that is so of one, it is of all."""


@contextmanager
def compiling_told(tell: Callable[[str], object]) -> Iterator[None]:
    """Tell `tell` whenever numba compiles what is in no cache, until this ends."""
    token = _TELL.set(tell)
    try:
        yield
    finally:
        _TELL.reset(token)


@cache
def _listening() -> None:
    """Listen to numba, which says when it compiles, and nothing where it finds a function in its cache."""
    from numba.core import event

    class CompileListener(event.Listener):
        def on_start(self, _: Any) -> None:
            """Say what is compiled, and whether it is kept."""
            _TELL.get()(UNKEPT if _unkept else COMPILING)

        def on_end(self, _: Any) -> None:
            """Say nothing."""

    event.register("numba:compile", CompileListener())  # type: ignore[no-untyped-call]


def compiled(function: Function) -> Function:
    """Return a function compiled by numba; kept for later processes where its folder or the user's cache can be written."""
    import numba

    _listening()
    try:
        return cast("Function", numba.njit(cache=True, error_model="numpy")(function))
    except RuntimeError:  # nowhere to keep it
        _unkept.add(function)
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
