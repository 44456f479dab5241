"""A run with failures, played event by event in SimPy: work, checkpoints, failures, restarts, and nodes that wait for repair.

The closed forms of `reliability.py` assume spare nodes without end; here a failure that finds none waits for the next repair.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import numpy as np
import simpy


class Renewal(NamedTuple):
    """A run that is over."""

    seconds: float
    """From its begin to its end."""
    failures: int
    """How many there were."""
    waited: float
    """Seconds in which no spare node was free."""


def play(
    work: float, mtti: float, blocking: float, restart: float, interval: float, repair: float, spares: int, seed: int
) -> Renewal:
    """Play a run of `work` seconds of progress with exponential times between failures, also in checkpoints and restarts.

    blocking: seconds of a checkpoint. restart: seconds after a failure. interval: work between checkpoints. repair: seconds until
    a failed node is a spare again. spares: nodes more than are needed.
    """
    env, random = simpy.Environment(), np.random.default_rng(seed)
    free = simpy.Container(env, init=spares) if spares else simpy.Container(env)
    told = {"failures": 0, "waited": 0.0}

    def mended() -> Generator[simpy.Event, object, None]:
        yield env.timeout(repair)
        yield free.put(1)

    def run() -> Generator[simpy.Event, object, None]:
        left = work
        while left > 0:
            until = float(random.exponential(mtti))
            whole = _seconds(left, interval, blocking)
            if until >= whole:
                yield env.timeout(whole)
                return
            yield env.timeout(until)
            left -= interval * int(until // (interval + blocking))
            yield from back()

    def back() -> Generator[simpy.Event, object, None]:
        """Restart, again from its begin where another node fails meanwhile."""
        while True:
            told["failures"] += 1
            env.process(mended())
            begun = env.now
            yield free.get(1)
            told["waited"] += env.now - begun
            until = float(random.exponential(mtti))
            yield env.timeout(min(until, restart))
            if until >= restart:
                return

    env.run(env.process(run()))
    return Renewal(float(env.now), int(told["failures"]), told["waited"])


def _seconds(left: float, interval: float, blocking: float) -> float:
    """Return how long the rest takes when nothing fails: the last part ends with a checkpoint too, which is the result."""
    parts = -(-left // interval)
    return float(left + parts * blocking)
