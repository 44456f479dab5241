"""Loops that numba compiles. Those over few nodes Python goes through itself: numba takes half a second to load.

What a loop finds does not depend on which of the two goes through it: the function is the same, on arrays or on lists, and
adds and compares the same 64-bit numbers in the same order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

if TYPE_CHECKING:
    from clustersim.arrays import Floats, Ints

Function = TypeVar("Function", bound=Callable[..., object])
ENOUGH = 400_000
"""Nodes that Python goes through in the time in which numba is loaded: from then on it has paid off."""

_INNER: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_REMEDY = "in each process, as no cache can be written; NUMBA_CACHE_DIR=FOLDER keeps it"


class CompileText(NamedTuple):
    """What is said while a function is compiled."""

    kept: str
    unkept: str
    """Where no cache can be written."""


EVENT_LOOP = CompileText("compile the event loop, once: about 15 s", f"compile the event loop, about 15 s {_REMEDY}")
SMALL_LOOP = CompileText("compile a small loop over nodes, once", f"compile a small loop over nodes, {_REMEDY}")
FASTER = "--engine auto finds the same much sooner"
"""How what is said of a long simulation by SimPy ends."""
_TELL: ContextVar[Callable[[str], object]] = ContextVar("_TELL", default=lambda _: None)
_texts: dict[Callable[..., object], str] = {}
"""What is said of each function that is compiled for itself."""


@contextmanager
def compiling_told(tell: Callable[[str], object]) -> Iterator[None]:
    """Tell `tell` whenever numba compiles what is in no cache, until this ends."""
    token = _TELL.set(tell)
    try:
        yield
    finally:
        _TELL.reset(token)


def tell(text: str) -> None:
    """Tell whoever listens what takes long from now on."""
    _TELL.get()(text)


def say_unkept() -> Callable[[str], object]:
    """Return what says on standard error, at once and once, what takes long but need not.

    That is what every process compiles anew as no cache can be written, and what SimPy simulates instead of the compiled loop.
    """
    said: set[str] = set()

    def say(text: str) -> None:
        if text.endswith((_REMEDY, FASTER)) and text not in said:
            said.add(text)
            with suppress(OSError):  # whoever read it is gone
                print(text, file=sys.stderr, flush=True)

    return say


def always_told(tell: Callable[[str], object]) -> None:
    """Tell `tell` for the rest of this process."""
    _TELL.set(tell)


@cache
def _listening() -> None:
    """Listen to numba, which says when it compiles, and nothing where it finds a function in its cache."""
    from numba.core import event

    class CompileListener(event.Listener):
        def __init__(self) -> None:
            self.texts: list[str] = []
            """Of the functions under way: those that one calls are compiled within it."""

        def on_start(self, begun: Any) -> None:
            """Say what is compiled, and whether it is kept, again with each function that it calls; nothing of others'."""
            self.texts.append(_texts.get(begun.data["dispatcher"].py_func) or (self.texts[-1] if self.texts else ""))
            if self.texts[-1]:
                _TELL.get()(self.texts[-1])

        def on_end(self, _: Any) -> None:
            """Be done with it."""
            self.texts.pop()

    event.register("numba:compile", CompileListener())  # type: ignore[no-untyped-call]


def compiled(function: Function, text: CompileText = EVENT_LOOP) -> Function:
    """Return a function compiled by numba; kept for later processes where its folder or the user's cache can be written.

    text: what is said meanwhile.
    """
    import numba

    _listening()
    _texts[function] = text.kept
    try:
        return cast("Function", numba.njit(cache=True, error_model="numpy")(function))
    except RuntimeError:  # nowhere to keep it
        _texts[function] = text.unkept
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
        return compiled(self.function, SMALL_LOOP)

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
