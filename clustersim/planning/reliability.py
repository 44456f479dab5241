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

from clustersim.config.fields import Spec, validate
from clustersim.config.overrides import Overridden
from clustersim.config.yaml import read, read_packaged
from clustersim.costs.figures import PositiveFigure, merged
from clustersim.units import plural, scaled, seconds

DEFAULTS = Path(__file__).with_name("reliability.yaml")
DAY = 86400.0
ENOUGH = 0.005
"""Share of goodput that faster storage must add to count as useful."""
COUNTED = 8
"""GPUs of the nodes whose failures are counted; larger nodes fail proportionally more often."""

PUBLISHED = (
    ("Llama 3 405B, 16,384 H100, 54 days", "more than 90 %"),
    ("MegaScale 175B, 12,288 GPUs, weeks", "more than 90 %"),
)
"""Published shares of effective training time (arXiv 2407.21783, section 3.3.4; arXiv 2402.15627, section 6.3)."""


class Reliability(Spec):
    """Failure and recovery parameters of a cluster."""

    failures: PositiveFigure
    """Failures per 1,000 days of eight GPUs, one node of most clusters."""
    detect: PositiveFigure
    """Seconds until a failure is detected."""
    init: PositiveFigure
    """Seconds to start processes and communicators."""
    state: PositiveFigure
    """Bytes of a checkpoint per parameter."""
    write: PositiveFigure
    """Write rate of storage in GB/s per GPU."""
    read: PositiveFigure
    """Read rate of storage in GB/s per GPU."""
    blocking: PositiveFigure
    """Seconds that an asynchronous checkpoint stops the step, unless writing is faster."""
    repair: PositiveFigure
    """Days until a failed node returns."""
    racks: PositiveFigure
    """Share of failures that take down a rack, because its nodes share the failed part."""
    short: PositiveFigure
    """Acceptable share of failures that find no spare node."""
    jitter: PositiveFigure
    """Standard deviation of a replica's step time, relative to the step time."""


def load(path: str | Path | None = None) -> Reliability:
    """Return the defaults, overridden by the keys of a YAML file. Raises ConfigError for an error in it."""
    if path is None:
        return _shipped()
    file = read(path)
    return validate(Reliability, Overridden(file.path, merged(read_packaged(DEFAULTS).data, file.data), file.positions))


@cache
def _shipped() -> Reliability:
    return validate(Reliability, read_packaged(DEFAULTS))


class Checkpoint(NamedTuple):
    """Size of a checkpoint on a cluster, and its times in seconds."""

    size: float
    """Size in bytes."""
    write: float
    """Seconds until it is on storage."""
    blocking: float
    """Seconds that it stops the step."""
    read: float
    """Seconds until it is back on the GPUs."""


class Goodput(NamedTuple):
    """Undisturbed time of a run's steps over its total time, and the causes of the loss."""

    progress: float
    """Share of time that is not a checkpoint, a restart or lost work, from 0 to 1."""
    mtti: float
    """Mean seconds between interruptions."""
    interval: float
    """Seconds of work between checkpoints."""
    checkpoint: Checkpoint
    """The checkpoint at each interval."""
    restart: float
    """Seconds from a failure to the next step, including repeated work that was not yet on storage."""
    standing_by: int
    """Spare machines of eight GPUs, the unit that fails and is repaired: a node or a part of a rack."""
    spares: int
    """Spare nodes."""
    slowest: float
    """Step time of the slowest replica over the mean."""

    @property
    def share(self) -> float:
        """Goodput: `progress` divided by `slowest`."""
        return self.progress / self.slowest


def goodput(
    how: Reliability, nodes: int, gpus: int, parameters: float, replicas: int, asynchronous: bool = True
) -> Goodput:
    """Return the goodput of a job on `nodes` nodes at the best checkpoint interval.

    gpus: of all nodes. parameters: of the whole model. asynchronous: checkpoints are written during the next steps; work that is
    not on storage when a node fails is repeated, which counts as restart.
    """
    size = how.state.value * parameters
    write, read_back = size / (how.write.value * 1e9 * gpus), size / (how.read.value * 1e9 * gpus)
    checkpoint = Checkpoint(size, write, min(how.blocking.value, write) if asynchronous else write, read_back)
    mtti = DAY * 1000 / (how.failures.value * gpus / COUNTED)
    unsaved = checkpoint.write if asynchronous else 0.0
    restart = how.detect.value + how.init.value + checkpoint.read + unsaved
    best = max(interval(checkpoint.blocking, mtti), checkpoint.write if asynchronous else 0.0)
    share = progress(mtti, checkpoint.blocking, restart, best)
    slowest = 1 + how.jitter.value * expected_maximum(replicas)
    standing_by = spares(how.repair.value * DAY / mtti, how.short.value)
    racks = math.ceil(standing_by * COUNTED * nodes / gpus)
    return Goodput(share, mtti, best, checkpoint, restart, standing_by, racks, slowest)


class Domains(NamedTuple):
    """Racks of nodes: number of rack failures per year, and spare nodes to replace a whole rack."""

    nodes: int
    failures: float
    spares: int


def rack_spares(how: Reliability, figures: Goodput, nodes: int, of_rack: int) -> Domains:
    """Return the failures of racks of `of_rack` nodes, and the spares to replace a whole failed rack.

    A share of all interruptions concerns parts that a rack shares. Nodes that fail alone are replaced by nodes of spare racks.
    """
    racks = math.ceil(nodes / of_rack)
    yearly = how.racks.value * 365 * DAY / figures.mtti
    away = spares(yearly / 365 * how.repair.value, how.short.value) if racks > 1 else 1
    racks_spare = away + math.ceil(figures.spares / of_rack)
    return Domains(of_rack, yearly, racks_spare * of_rack)


def faster(how: Reliability, times: float) -> Reliability:
    """Return the parameters with storage faster by the factor `times`."""
    rates = {key: getattr(how, key) for key in ("write", "read")}
    changed = {key: rate.model_copy(update={"value": rate.value * times}) for key, rate in rates.items()}
    return how.model_copy(update=changed)


def enough_storage(how: Reliability, at: Callable[[float], Goodput]) -> float:
    """Return the GB/s per GPU beyond which storage adds less than `ENOUGH` goodput. at: factor on storage's rate -> goodput."""
    best = at(1e6).share
    times = next((2.0**power for power in range(-8, 20) if at(2.0**power).share >= best - ENOUGH), 2.0**20)
    return how.write.value * times


def interval(blocking: float, mtti: float) -> float:
    """Return the seconds of work between checkpoints that minimize the time of a run: M (1 + W(-e^(-C/M - 1))).

    M is `mtti` and C `blocking`, in s. The share y of M solves y = 1 - e^(-y - C/M), by Newton's method from above.
    """
    lost = blocking / mtti
    share = min(1.0, math.sqrt(2 * lost))
    for _ in range(10):
        share += 1 + share / math.expm1(-share - lost)
    return mtti * share


def progress(mtti: float, blocking: float, restart: float, work: float) -> float:
    """Return the share of time (0 to 1) that is progress with `work` seconds between checkpoints: T / E. Arguments in seconds."""
    if (work + blocking + restart) / mtti > 600:
        return 0.0
    return work / (mtti * math.exp(restart / mtti) * math.expm1((work + blocking) / mtti))


def spares(mean: float, short: float) -> int:
    """Return the smallest number of spare machines with which failures find none free with at most the probability `short`.

    The number in repair has a Poisson distribution (Palm), whose `mean` is the time of a repair / time between failures.
    """
    term = below = math.exp(-mean)
    if not term:  # normal approximation, if the sum begins below the smallest float
        return math.ceil(mean + 2.3263 * math.sqrt(mean) + 1)
    count = 1
    while 1 - below > short:
        term *= mean / count
        below += term
        count += 1
    return count


@cache
def expected_maximum(count: int) -> float:
    """Return the expected maximum of `count` standard normal variables; 0 for one or none."""
    if count <= 1:
        return 0.0
    x = np.linspace(-9, 9, 1801)
    below = 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return float(9 - np.trapezoid(below**count, x))


def lines(
    figures: Goodput, domains: Domains, step: float, size: tuple[int, int, str], storage: float, how: Reliability
) -> list[str]:
    """Return the goodput as lines of text. size: (nodes, GPUs, their name). storage: GB/s of all GPUs together that suffice."""
    nodes, gpus, name = size
    point, every = figures.checkpoint, max(1, round(figures.interval / step))
    racks = plural(domains.spares // domains.nodes, "spare rack", "spare racks")
    return [
        f"{figures.share:.1%} of the time of {gpus:,} {name} on {plural(nodes, 'node', 'nodes')} is progress: "
        f"a step of {seconds(step)} takes {seconds(step / figures.share)} with all that disturbs it",
        "",
        f"a failure every {seconds(figures.mtti)} takes {seconds(figures.restart)} and the work since the last checkpoint",
        f"a checkpoint of {scaled(point.size, 'B')} every {seconds(figures.interval)} ({plural(every, 'step', 'steps')}) "
        f"stops the step for {seconds(point.blocking)}",
        f"the slowest replica takes {figures.slowest - 1:.2%} longer than their mean",
        f"spares: {plural(figures.spares, 'node', 'nodes')} for nodes that fail alone; {racks} of {domains.nodes} where one "
        f"that fails is replaced whole, which happens {domains.failures:.1f} times a year",
        f"storage: {how.write.value * gpus:,.0f} GB/s are written; with more than {storage:,.0f} GB/s less than 0.5 % is won",
        "published: " + "; ".join(f"{figures}: {share}" for figures, share in PUBLISHED),
    ]


def fields(figures: Goodput, domains: Domains, step: float, gpus: int, storage: float) -> dict[str, Any]:
    """Return the goodput of a run on `gpus` GPUs with steps of `step` s as JSON data. storage: GB/s of all GPUs that suffice.

    Keys: `goodput` (share), `gpus`, `step_s`, `step_with_all_s`, fields of `figures`, of its checkpoint as `checkpoint_…`, of
    `domains` as `rack_…`, `checkpoint_steps` (steps between checkpoints), `storage_write_bytes_per_s`.
    """
    values = {name: value for name, value in figures._asdict().items() if name not in ("checkpoint", "standing_by")}
    values |= {f"checkpoint_{name}": value for name, value in figures.checkpoint._asdict().items()}
    values |= {f"rack_{name}": value for name, value in domains._asdict().items()}
    values |= {"checkpoint_steps": max(1, round(figures.interval / step)), "storage_write_bytes_per_s": storage * 1e9}
    return {"goodput": figures.share, "gpus": gpus, "step_s": step, "step_with_all_s": step / figures.share, **values}
