"""Caches of computed answers with a bound in bytes."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

ROOM = 128 << 20
"""Bytes of cached arrays per cluster."""
_LEAST = 16 << 10  # smallest size counted for an answer, so that at most 8,192 are kept
Answer = TypeVar("Answer")


class Cache:
    """Cache of answers by question, up to `most` bytes; the least recently used answers are dropped first.

    weigh: function from an answer to its bytes, or one number for all. alone: whether an answer larger than the bound replaces
    all others; otherwise it is not kept.
    """

    __slots__ = ("_alone", "_answers", "_most", "_weigh", "weight")

    def __init__(self, most: float, weigh: float | Callable[[Any], float], *, alone: bool = True) -> None:
        self._answers: dict[Hashable, tuple[Any, float]] = {}  # the least recently used first
        self._most, self._weigh, self._alone = most, weigh, alone
        self.weight = 0.0
        """Bytes of all answers that are kept."""

    def once(self, question: Hashable, answer: Callable[[], Answer]) -> Answer:
        """Return the answer to a question, computed by `answer` the first time. Exceptions are passed on and not cached."""
        if (known := self._answers.pop(question, None)) is not None:
            self._answers[question] = known
            return cast(Answer, known[0])
        return self.keep(question, answer())

    def get(self, question: Hashable) -> Any:
        """Return the cached answer to a question, or None."""
        if (known := self._answers.pop(question, None)) is None:
            return None
        self._answers[question] = known
        return known[0]

    def keep(self, question: Hashable, answer: Answer) -> Answer:
        """Cache the answer to a question, replacing an older one, and return it."""
        self.weight -= self._answers.pop(question, (None, 0.0))[1]
        weight = self._weigh(answer) if callable(self._weigh) else self._weigh
        if weight <= self._most or self._alone:
            self._answers[question] = answer, weight
            self.weight += weight
            while self.weight > self._most and len(self._answers) > 1:
                self.weight -= self._answers.pop(next(iter(self._answers)))[1]
        return answer

    def items(self) -> list[tuple[Hashable, Any]]:
        """Return all (question, answer) pairs, the least recently used first."""
        return [(question, answer) for question, (answer, _) in self._answers.items()]

    def __len__(self) -> int:
        return len(self._answers)


def of_arrays() -> Cache:
    """Return a cache for answers with arrays, which become read-only, as a sweep asks one cluster about thousands of splits."""
    return Cache(ROOM, frozen, alone=False)


def frozen(answer: object) -> int:
    """Make the arrays of an answer, or of its nested tuples and dicts, read-only. Return the answer's bytes."""
    size, left = 0, [answer]
    for part in left:  # to which the parts are added
        if part.__class__ is np.ndarray:
            part.flags.writeable = False
            size += 0 if 0 in part.strides else part.nbytes
        elif part.__class__ not in _SCALARS:
            left += part.values() if isinstance(part, dict) else part if isinstance(part, tuple) else ()
    return max(size, _LEAST)


_SCALARS = frozenset((int, float, bool, str, type(None)))
"""Types of most parts of answers, which have no parts themselves."""


def fingerprint(numbers: NDArray[np.int64]) -> bytes:
    """Return 16 bytes that identify a list of numbers in a question; the list for 30,720 GPUs takes 240 kB itself.

    Consecutive numbers, as in most placements, are encoded directly, which takes a twentieth of the time of a hash.
    """
    numbers = np.ascontiguousarray(numbers, np.int64)
    if numbers.size and (np.diff(numbers.reshape(-1)) == 1).all():
        return struct.pack("<qq", numbers.flat[0], numbers.size)
    return hashlib.blake2b(numbers.tobytes(), digest_size=16).digest()
