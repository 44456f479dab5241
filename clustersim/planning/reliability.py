"""Failures, checkpoints and restarts in closed form: the best interval, the share of time that is progress, spare nodes.

Let M be the mean seconds between failures (Poisson, also during checkpoints and restarts), C the seconds that a checkpoint
stops the step, R those of a restart, t the work between checkpoints. A run of T seconds of work takes (Daly 2006, equation 13)

    E = M e^(R/M) (e^((t + C)/M) - 1) T / t

which is least at t = M (1 + W(-e^(-C/M - 1))), W being Lambert's function. Young's sqrt(2 C M) is its first order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.fields import Spec, validate
from clustersim.config.overrides import Overridden
from clustersim.config.yaml import own, read
from clustersim.costs.figures import PositiveFigure, merged
from clustersim.units import plural, scaled, seconds

DEFAULTS = Path(__file__).with_name("reliability.yaml")
DAY = 86400.0
ENOUGH = 0.005
"""Share of goodput that faster storage must bring to be worth it."""
COUNTED = 8
"""GPUs of the nodes whose failures are counted; nodes of more fail as much more often."""

PUBLISHED = (
    ("Llama 3 405B, 16,384 H100, 54 days", "more than 90 %"),
    ("MegaScale 175B, 12,288 GPUs, weeks", "more than 90 %"),
)
"""Published shares of time that were effective (arXiv 2407.21783, section 3.3.4; arXiv 2402.15627, section 6.3)."""


class Reliability(Spec):
    """How a cluster fails and comes back."""

    failures: PositiveFigure
    """In 1,000 days of eight GPUs, which are a node of most clusters."""
    detect: PositiveFigure
    """Seconds until one is seen."""
    init: PositiveFigure
    """Seconds to start processes and communicators."""
    state: PositiveFigure
    """Bytes of a checkpoint a parameter."""
    write: PositiveFigure
    """GB/s of storage a GPU."""
    read: PositiveFigure
    """GB/s of storage a GPU."""
    blocking: PositiveFigure
    """Seconds that an asynchronous checkpoint stops the step, if writing it takes longer."""
    repair: PositiveFigure
    """Days until a failed node is back."""
    racks: PositiveFigure
    """Share of failures that take a rack, as they are of what its nodes have in common."""
    short: PositiveFigure
    """Share of failures that may find no spare node."""
    jitter: PositiveFigure
    """Standard deviation of a replica's step, as a share of it."""


def load(path: str | Path | None = None) -> Reliability:
    """Return the defaults, with the keys of a YAML file in their place. Raises ConfigError for what is wrong in it."""
    if path is None:
        return _shipped()
    written = read(path)
    return validate(Reliability, Overridden(written.path, merged(_text(), written.data), written.positions))


def _text() -> dict[str, Any]:
    return own(DEFAULTS).data


@cache
def _shipped() -> Reliability:
    return validate(Reliability, own(DEFAULTS))


class Checkpoint(NamedTuple):
    """A checkpoint on a cluster, in seconds."""

    size: float
    """Bytes."""
    write: float
    """Until storage has it."""
    blocking: float
    """That it stops the step."""
    read: float
    """Until it is back on the GPUs."""


class Goodput(NamedTuple):
    """How much of a run's time its steps would take if nothing disturbed them, and why."""

    progress: float
    """Share of the time that is neither a checkpoint, a restart nor work that is lost, from 0 to 1."""
    mtti: float
    """Mean seconds between interruptions."""
    interval: float
    """Seconds of work between checkpoints."""
    checkpoint: Checkpoint
    """What is written then."""
    restart: float
    """Seconds from a failure to the next step, and of work that was not yet on storage."""
    standing_by: int
    """Machines of eight GPUs more than the job needs: what fails and is repaired at once, a node or a part of a rack."""
    spares: int
    """The same in nodes."""
    slowest: float
    """How many times a replica's step the slowest of them takes."""

    @property
    def share(self) -> float:
        """The goodput: `progress`, at the pace of the slowest replica."""
        return self.progress / self.slowest


def goodput(
    how: Reliability, nodes: int, gpus: int, parameters: float, replicas: int, asynchronous: bool = True
) -> Goodput:
    """Return the goodput of a job on `nodes` at the best interval.

    gpus: of all nodes. parameters: of the whole model. asynchronous: checkpoints are written while the next steps run; what
    was not on storage yet when a node fails is done again, which counts as restart.
    """
    checkpoint = _checkpoint(how, parameters, gpus, asynchronous)
    mtti = DAY * 1000 / (how.failures.value * gpus / COUNTED)
    unsaved = checkpoint.write if asynchronous else 0.0
    restart = how.detect.value + how.init.value + checkpoint.read + unsaved
    best = max(interval(checkpoint.blocking, mtti), checkpoint.write if asynchronous else 0.0)
    share = progress(mtti, checkpoint.blocking, restart, best)
    slowest = 1 + how.jitter.value * expected_maximum(replicas)
    standing_by = spares(how, mtti)
    racks = math.ceil(standing_by * COUNTED * nodes / gpus)
    return Goodput(share, mtti, best, checkpoint, restart, standing_by, racks, slowest)


class Domains(NamedTuple):
    """Racks of nodes: how many of them fail in a year, and the spare nodes with which one that fails is replaced whole."""

    nodes: int
    failures: float
    spares: int


def rack_spares(how: Reliability, found: Goodput, nodes: int, of_rack: int) -> Domains:
    """Return the failures of racks of `of_rack` nodes, and the spares with which a failed rack is replaced whole.

    Of all interruptions a share is of what a rack has in common. Nodes that fail alone are replaced by nodes of spare racks.
    """
    racks = math.ceil(nodes / of_rack)
    yearly = how.racks.value * 365 * DAY / found.mtti
    away = _least_spares(yearly / 365 * how.repair.value, how.short.value) if racks > 1 else 1
    whole = away + math.ceil(found.spares / of_rack)
    return Domains(of_rack, yearly, whole * of_rack)


def faster(how: Reliability, times: float) -> Reliability:
    """Return the same cluster with its storage `times` as fast."""
    rates = {key: getattr(how, key) for key in ("write", "read")}
    changed = {key: rate.model_copy(update={"value": rate.value * times}) for key, rate in rates.items()}
    return how.model_copy(update=changed)


def enough_storage(how: Reliability, at: Callable[[float], Goodput]) -> float:
    """Return the GB/s a GPU that storage must write so that faster one brings less than `ENOUGH` of goodput.

    at: returns the goodput with storage faster by the given factor.
    """
    best = at(1e6).share
    times = next((2.0**power for power in range(-8, 20) if at(2.0**power).share >= best - ENOUGH), 2.0**20)
    return how.write.value * times


def _checkpoint(how: Reliability, parameters: float, gpus: int, asynchronous: bool) -> Checkpoint:
    size = how.state.value * parameters
    write, read_back = size / (how.write.value * 1e9 * gpus), size / (how.read.value * 1e9 * gpus)
    return Checkpoint(size, write, min(how.blocking.value, write) if asynchronous else write, read_back)


def interval(blocking: float, mtti: float) -> float:
    """Return the seconds of work between checkpoints at which a run takes least time: M (1 + W(-e^(-C/M - 1)))."""
    return mtti * (1 + _lambert(-math.exp(-blocking / mtti - 1)))


def progress(mtti: float, blocking: float, restart: float, work: float) -> float:
    """Return the share of time that is progress with `work` seconds between checkpoints: T / E."""
    if (work + blocking + restart) / mtti > 600:
        return 0.0
    return work / (mtti * math.exp(restart / mtti) * math.expm1((work + blocking) / mtti))


def _lambert(x: float) -> float:
    """Return the principal branch of Lambert's W for -1/e <= x <= 0: w e^w = x, by Halley's iteration."""
    root = math.sqrt(max(0.0, 2 * (math.e * x + 1)))
    w = -1 + root - root * root / 3
    for _ in range(50):
        power = math.exp(w)
        off = w * power - x
        slope = power * (w + 1) - (w + 2) * off / (2 * w + 2) if w > -1 else 0.0
        if not slope or abs(off) < 1e-17:
            break
        w -= off / slope
    return w


def spares(how: Reliability, mtti: float) -> int:
    """Return the least number of spare machines of which a failure finds none free with the probability that is allowed.

    Machines in repair are Poisson with repair time over `mtti`, the seconds between failures, whatever the law of repairs (Palm).
    """
    return _least_spares(how.repair.value * DAY / mtti, how.short.value)


def _least_spares(mean: float, short: float) -> int:
    term = below = math.exp(-mean)
    if not term:  # the normal law, where the sum begins below the smallest float
        return math.ceil(mean + 2.3263 * math.sqrt(mean) + 1)
    count = 1
    while 1 - below > short:
        term *= mean / count
        below += term
        count += 1
    return count


@cache
def expected_maximum(count: int) -> float:
    """Return the mean of the largest of `count` standard normal numbers."""
    if count <= 1:
        return 0.0
    x, cumulative = _normal()
    return float(9 - np.trapezoid(cumulative**count, x))


@cache
def _normal() -> tuple[Floats, Floats]:
    """Return numbers and how often a standard normal one is no larger."""
    x = np.linspace(-9, 9, 36001)
    return x, 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def lines(
    found: Goodput, domains: Domains, step: float, size: tuple[int, int, str], storage: float, how: Reliability
) -> list[str]:
    """Return the same for a reader; size: nodes, GPUs and their name."""
    nodes, gpus, name = size
    point, every = found.checkpoint, max(1, round(found.interval / step))
    racks = plural(domains.spares // domains.nodes, "spare rack", "spare racks")
    return [
        f"{found.share:.1%} of the time of {gpus:,} {name} on {plural(nodes, 'node', 'nodes')} is progress: "
        f"a step of {seconds(step)} takes {seconds(step / found.share)} with all that disturbs it",
        "",
        f"a failure every {seconds(found.mtti)} takes {seconds(found.restart)} and the work since the last checkpoint",
        f"a checkpoint of {scaled(point.size, 'B')} every {seconds(found.interval)} ({plural(every, 'step', 'steps')}) "
        f"stops the step for {seconds(point.blocking)}",
        f"the slowest replica takes {found.slowest - 1:.2%} longer than their mean",
        f"spares: {plural(found.spares, 'node', 'nodes')} for nodes that fail alone; {racks} of {domains.nodes} where one "
        f"that fails is replaced whole, which happens {domains.failures:.1f} times a year",
        f"storage: {how.write.value * gpus:,.0f} GB/s are written; with more than {storage:,.0f} GB/s less than 0.5 % is won",
        "published: " + "; ".join(f"{run}: {share}" for run, share in PUBLISHED),
    ]


def fields(found: Goodput, domains: Domains, step: float, gpus: int, storage: float) -> dict[str, Any]:
    """Return the goodput of a run with steps of `step` seconds as JSON values by name."""
    whole = {name: value for name, value in found._asdict().items() if name not in ("checkpoint", "standing_by")}
    whole |= {f"checkpoint_{name}": value for name, value in found.checkpoint._asdict().items()}
    whole |= {f"rack_{name}": value for name, value in domains._asdict().items()}
    steps = {
        "step_s": step,
        "step_with_all_s": step / found.share,
        "checkpoint_steps": max(1, round(found.interval / step)),
    }
    return {"goodput": found.share, "gpus": gpus, **steps, **whole, "storage_write_bytes_per_s": storage * 1e9}
