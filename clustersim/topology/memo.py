"""What was worked out once about a cluster and is asked for again; it lives as long as its cluster and no longer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

_MOST = 4096  # answers of some hundred bytes
Answer = TypeVar("Answer")


class Memo:
    """Answers by question. At most `most` are kept, the newest: a sweep asks one cluster about thousands of splits."""

    __slots__ = ("_answers", "_most")

    def __init__(self, most: int = _MOST) -> None:
        self._answers: dict[Hashable, object] = {}
        self._most = most

    def once(self, question: Hashable, answer: Callable[[], Answer]) -> Answer:
        """Return the answer to a question, worked out by `answer` the first time; what it raises is not kept."""
        if question not in self._answers:
            found = answer()
            if len(self._answers) >= self._most:
                del self._answers[next(iter(self._answers))]
            self._answers[question] = found
        return cast(Answer, self._answers[question])

    def __len__(self) -> int:
        return len(self._answers)


def fingerprint(numbers: NDArray[np.int64]) -> bytes:
    """Return 16 bytes that stand for a list of numbers in a question: a communicator of 30,720 GPUs takes 240 kB itself."""
    return hashlib.blake2b(np.ascontiguousarray(numbers, np.int64).tobytes(), digest_size=16).digest()
