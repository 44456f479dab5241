"""The table of nccl-tests for a cluster: what a collective of each size takes on an idle fabric, and measurements beside it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from statistics import median
from typing import NamedTuple

import numpy as np

from clustersim.collectives.loads import TooManyWaysError, idle_rates
from clustersim.collectives.model import Exchange, Ints, Phase, phases
from clustersim.collectives.nccl.available import SIMPLE_ONLY
from clustersim.collectives.nccl.choose import OPS, Choice, choose, seconds
from clustersim.collectives.nccl.named import NO_PROTOCOL, named
from clustersim.collectives.nccl.shape import Shape, shape
from clustersim.collectives.nccl.tuner import OPS as TUNED
from clustersim.collectives.nccl.tuner import tune
from clustersim.collectives.paths import even_rate
from clustersim.errors import InputError, suggest
from clustersim.topology.model import Topology
from clustersim.units import scaled
from clustersim.units import seconds as spelt


class Line(NamedTuple):
    """One size: what NCCL does, seconds, and bytes/s; `measured` seconds or None."""

    size: int
    choice: Choice
    time: float
    algbw: float
    busbw: float
    measured: float | None

    @property
    def error(self) -> float | None:
        """Time over the measured one, less 1."""
        return None if self.measured is None else self.time / self.measured - 1

    def columns(self) -> dict[str, object]:
        """Return the line for JSON: sizes in bytes, times in us, bandwidths in GB/s as nccl-tests gives them."""
        row = {
            "size_bytes": self.size,
            "algorithm": self.choice.algorithm,
            "protocol": self.choice.protocol,
            "channels": self.choice.channels or None,
            "time_us": self.time * 1e6,
            "algbw": self.algbw / 1e9,
            "busbw": self.busbw / 1e9,
        }
        if self.measured is not None:
            row |= {"measured_us": self.measured * 1e6, "error": self.error}
        return row


def bus_factor(op: str, n: int) -> float:
    """Return busbw over algbw (nccl-tests, doc/PERFORMANCE.md)."""
    ring = (n - 1) / n
    return {"all_reduce": 2 * ring, "broadcast": 1.0, "reduce": 1.0, "send": 1.0}.get(op, ring)


def line(
    topology: Topology,
    ranks: Ints,
    op: str,
    size: int,
    measured: float | None = None,
    shares: tuple[float, ...] = (),
    algorithm: str | None = None,
) -> Line:
    """Return what `op` on `size` bytes takes over GPUs `ranks` (n,): launch + latency + size / min(NCCL's rate, the links').

    shares: of the rows of a dispatch, combine or all_to_all, as in Group. algorithm: of clustersim/collectives, in the place of
    NCCL's choice.
    """
    if op not in OPS:
        raise InputError(f"{op!r} is no collective; {suggest(op, OPS)}")
    if algorithm:
        own = named(topology, tuple(ranks.tolist()), op, algorithm, shares)
        taken = seconds(own, size, topology.launch)
        return Line(size, own, taken, size / taken, size / taken * bus_factor(op, len(ranks)), measured)
    one = shape(topology, ranks, shares)
    choice = choose(op, size, one, topology.node)
    rate = min(choice.rate_bytes_per_s, _links(topology, tuple(ranks.tolist()), op, choice.file, one, shares))
    time = (topology.node.nccl.launch or 0.0) + choice.latency_s + size / rate
    return Line(size, choice, time, size / time, size / time * bus_factor(op, one.ranks), measured)


@lru_cache(maxsize=64)
def _links(
    topology: Topology, ranks: tuple[int, ...], op: str, file: str, one: Shape, shares: tuple[float, ...]
) -> float:
    """Return the bytes/s that the links of an idle fabric give a collective."""
    n = len(ranks)
    if op == "send":
        around = np.arange(n)
        parts: Sequence[Phase | Exchange] = (Phase(1, around, np.roll(around, -1), np.ones(n)),)
    else:
        parts = phases(file, op, one.group._replace(shares=shares))
    try:
        return float(idle_rates(topology, np.array([ranks]), parts)[0])
    except TooManyWaysError:
        if shares:
            raise
        return even_rate(topology, np.array(ranks))


def text(lines: Sequence[Line]) -> str:
    """Return the table as text: sizes in bytes, us, GB/s; with the median error when there are measurements."""
    compared = any(line.measured is not None for line in lines)
    wide = max(14, *(len(line.choice.algorithm) for line in lines))
    head = f"{'size':>12} {'type':>5} {'algo':>{wide}} {'proto':>6} {'time':>10} {'algbw':>8} {'busbw':>8}"
    units = f"{'(B)':>12} {'':>5} {'':>{wide}} {'':>6} {'(us)':>10} {'(GB/s)':>8} {'(GB/s)':>8}"
    if compared:
        head, units = f"{head} {'measured':>10} {'error':>7}", f"{units} {'(us)':>10} {'(%)':>7}"
    rows = [head, units, *(_row(line, wide) for line in lines)]
    if compared:
        rows.append(_summary(lines))
    return "\n".join(rows)


def _summary(lines: Sequence[Line]) -> str:
    """Return the median absolute error of time over all sizes, and over those of each range that has any."""
    errors = [(line.size, abs(line.error)) for line in lines if line.error is not None]
    parts = {
        "up to 1 MiB": [error for size, error in errors if size <= 1 << 20],
        "between": [error for size, error in errors if 1 << 20 < size < 1 << 26],
        "from 64 MiB": [error for size, error in errors if size >= 1 << 26],
    }
    ranges = ", ".join(f"{100 * median(part):.1f} % {name}" for name, part in parts.items() if part)
    return (
        f"median absolute error {100 * median(error for _, error in errors):.1f} % over {len(errors)} sizes: {ranges}"
    )


def _row(line: Line, wide: int) -> str:
    c = line.choice
    own = f"{line.size:>12} {'float':>5} {c.algorithm:>{wide}} {c.protocol:>6} {line.time * 1e6:>10.2f}"
    own = f"{own} {line.algbw / 1e9:>8.2f} {line.busbw / 1e9:>8.2f}"
    if line.measured is None or line.error is None:
        return own
    return f"{own} {line.measured * 1e6:>10.2f} {100 * line.error:>+7.1f}"


def considered(topology: Topology, ranks: Ints, op: str, last: Line, shares: tuple[float, ...] = ()) -> str:
    """Return why the last line is as it is: what NCCL expected of each algorithm and protocol, and what it could not use."""
    one = shape(topology, ranks, shares)
    where = f"{one.ranks} GPUs on {one.nodes} node{'s' if one.nodes > 1 else ''}"
    if last.choice.protocol == NO_PROTOCOL:
        return _as_named(topology, op, where, last)
    rows = [f"{op} of {last.size} B, {where}, NCCL {topology.node.nccl.version}: {last.choice.why}"]
    if op in TUNED:
        for e in sorted(tune(op, last.size, one, topology.node), key=lambda e: e.time_s):
            if e.missing == SIMPLE_ONLY:
                continue
            name = f"  {e.algorithm}/{e.protocol}"
            said = e.missing or f"{spelt(e.time_s)}, {e.channels} channels, {scaled(e.rate_bytes_per_s, 'B/s')}"
            rows.append(f"{name:<24} {said}")
    rows.append(
        f"kernels take {spelt(last.choice.latency_s)} before and between the bytes, {last.choice.file} has the loads on links"
    )
    return "\n".join(rows)


def _as_named(topology: Topology, op: str, where: str, last: Line) -> str:
    own = last.choice
    parts = (
        f"launch {spelt(topology.launch)}, hops {spelt(own.latency_s)}, bytes at {scaled(own.rate_bytes_per_s, 'B/s')}"
    )
    return f"{op} of {last.size} B, {where}: {own.why}\n{parts}"
