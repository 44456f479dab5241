"""A run with failures, simulated event by event in SimPy: work, checkpoints, failures, restarts, and nodes in repair.

The closed forms of `reliability.py` assume unlimited spare nodes; here a failure without a spare waits for the next repair.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import numpy as np
import simpy


class Renewal(NamedTuple):
    """A finished run."""

    seconds: float
    """Seconds from start to end."""
    failures: int
    """Number of failures."""
    waited: float
    """Seconds in which no spare node was free."""


def play(
    work: float, mtti: float, blocking: float, restart: float, interval: float, repair: float, spares: int, seed: int
) -> Renewal:
    """Simulate a run of `work` s of progress, with exponential times (mean `mtti` s) to the next failure, whatever the run does.

    Times in seconds. blocking: a checkpoint. restart: after a failure. interval: work between checkpoints. repair: until a
    failed node is a spare again. spares: number of nodes beyond those needed. seed: seed of the random times.
    """
    env, random = simpy.Environment(), np.random.default_rng(seed)
    free = simpy.Container(env, init=spares) if spares else simpy.Container(env)
    totals = {"failures": 0, "waited": 0.0}

    def repair_node() -> Generator[simpy.Event, object, None]:
        """Return a failed node to the spares after its repair."""
        yield env.timeout(repair)
        yield free.put(1)

    def run() -> Generator[simpy.Event, object, None]:
        """Complete the run's work, with a return to the last checkpoint at each interruption."""
        left = work
        while left > 0:
            until = float(random.exponential(mtti))
            until_end = left + -(-left // interval) * blocking  # the last part also ends with a checkpoint, the result
            if until >= until_end:
                yield env.timeout(until_end)
                return
            yield env.timeout(until)
            left -= interval * int(until // (interval + blocking))
            yield from back()

    def back() -> Generator[simpy.Event, object, None]:
        """Restart, and restart again from the beginning if another node fails meanwhile."""
        while True:
            totals["failures"] += 1
            env.process(repair_node())
            begun = env.now
            yield free.get(1)
            totals["waited"] += env.now - begun
            until = float(random.exponential(mtti))
            yield env.timeout(min(until, restart))
            if until >= restart:
                return

    env.run(env.process(run()))
    return Renewal(float(env.now), int(totals["failures"]), totals["waited"])
