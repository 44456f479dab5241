"""What was worked out once about a cluster and is asked for again; it lives as long as its cluster and no longer."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

_MOST = 4096
_ROOM = 256 << 20
Answer = TypeVar("Answer")


class Memo:
    """Answers by question. At most `most` are kept, the newest: a sweep asks one cluster about thousands of splits.

    The arrays in them, of which an answer may have many, take no more than `room` bytes together.
    """

    __slots__ = ("_answers", "_most", "_room", "_used")

    def __init__(self, most: int = _MOST, room: int = _ROOM) -> None:
        self._answers: dict[Hashable, tuple[object, int]] = {}
        self._most, self._room, self._used = most, room, 0

    def once(self, question: Hashable, answer: Callable[[], Answer]) -> Answer:
        """Return the answer to a question, worked out by `answer` the first time; what it raises is not kept.

        The arrays of an answer, or of the tuples and mappings that it consists of, become read-only.
        """
        known = self._answers.get(question)
        if known is not None:
            return cast(Answer, known[0])
        found = answer()
        taken = _frozen(found)
        if taken <= self._room:
            self._used += taken
            self._answers[question] = found, taken
            while len(self._answers) > self._most or self._used > self._room:
                self._used -= self._answers.pop(next(iter(self._answers)))[1]
        return found

    def __len__(self) -> int:
        return len(self._answers)


def _frozen(answer: object) -> int:
    """Make the arrays of an answer read-only and return their bytes."""
    if isinstance(answer, np.ndarray):
        answer.flags.writeable = False
        return 0 if 0 in answer.strides else answer.nbytes
    if isinstance(answer, Mapping):
        return sum(map(_frozen, answer.values()))
    return sum(map(_frozen, answer)) if isinstance(answer, tuple) else 0


def fingerprint(numbers: NDArray[np.int64]) -> bytes:
    """Return 16 bytes that stand for a list of numbers in a question: a communicator of 30,720 GPUs takes 240 kB itself.

    Consecutive numbers, as most placements are, stand for themselves: that takes a twentieth of a hash.
    """
    numbers = np.ascontiguousarray(numbers, np.int64)
    if numbers.size and (np.diff(numbers.reshape(-1)) == 1).all():
        return struct.pack("<qq", numbers.flat[0], numbers.size)
    return hashlib.blake2b(numbers.tobytes(), digest_size=16).digest()
