"""How slow this machine is now, for bounds on time: one that is busy, or an old one, is no fault of what is tested."""

import time

REFERENCE = 0.023
"""CPU seconds of the loop below on the idle machine that the bounds are written for."""


def slowness() -> float:
    """Return how many times the CPU seconds of the reference machine a loop of plain Python needs here and now, at least 1."""
    begun = time.process_time()
    found: dict[int, int] = {}
    for number in range(200_000):
        found[number & 1023] = found.get(number & 1023, 0) + number * number % 7
    return max(1.0, (time.process_time() - begun) / REFERENCE)
