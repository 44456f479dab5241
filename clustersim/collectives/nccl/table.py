"""The table of nccl-tests for a cluster: what a collective of each size takes on an idle fabric, and measurements beside it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from clustersim.collectives.loads import TooManyWaysError, idle_rates
from clustersim.collectives.model import Exchange, Ints, Phase, phases
from clustersim.collectives.nccl.choose import OPS, Choice, choose, seconds
from clustersim.collectives.nccl.named import named
from clustersim.collectives.nccl.shape import Shape, shape
from clustersim.collectives.paths import even_rate
from clustersim.errors import InputError, suggest
from clustersim.topology.memo import fingerprint
from clustersim.topology.model import Topology


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
            "algbw_gb_per_s": self.algbw / 1e9,
            "busbw_gb_per_s": self.busbw / 1e9,
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
        own = named(topology, ranks, op, algorithm, shares)
        taken = seconds(own, size, topology.launch)
        return Line(size, own, taken, size / taken, size / taken * bus_factor(op, len(ranks)), measured)
    one = shape(topology, ranks, shares)
    choice = choose(op, size, one, topology.node)
    rate = min(choice.rate_bytes_per_s, _links(topology, ranks, op, choice.file, one, shares))
    time = (topology.node.nccl.launch or 0.0) + choice.latency_s + size / rate
    return Line(size, choice, time, size / time, size / time * bus_factor(op, one.ranks), measured)


def _links(topology: Topology, ranks: Ints, op: str, file: str, one: Shape, shares: tuple[float, ...]) -> float:
    """Return the bytes/s that the links of an idle fabric give a collective."""

    def found() -> float:
        try:
            return float(idle_rates(topology, np.asarray(ranks)[None], parts(op, file, one, shares))[0])
        except TooManyWaysError:
            if shares:
                raise
            return even_rate(topology, np.asarray(ranks))

    return topology.memo.once(("links", fingerprint(ranks), op, file, shares), found)


def parts(op: str, file: str, one: Shape, shares: tuple[float, ...]) -> Sequence[Phase | Exchange]:
    """Return the bytes over pairs of ranks; in a `send` each rank sends to the next, the last to the first, all at once."""
    if op == "send":
        around = np.arange(one.ranks)
        return (Phase(1, around, np.roll(around, -1), np.ones(one.ranks)),)
    return phases(file, op, one.group._replace(shares=shares))


def title(topology: Topology, ranks: Ints, op: str) -> str:
    """Return the comment above the table: what runs where."""
    one = shape(topology, ranks)
    nodes = f"{one.nodes} node{'s' if one.nodes > 1 else ''}"
    head = f"# {op} over {one.ranks} GPUs on {nodes} of {topology.name}, NCCL {topology.node.nccl.version}"
    return "\n".join([head, *(f"# warning: {said}" for said in _warnings(topology, one))])


def _warnings(topology: Topology, one: Shape) -> tuple[str, ...]:
    """Return what is to be said of the network, when a communicator uses it."""
    return topology.warnings if one.nodes > 1 else ()


def document(topology: Topology, ranks: Ints, op: str, lines: Sequence[Line]) -> dict[str, object]:
    """Return the table for JSON; each key with a dimension has its unit."""
    one = shape(topology, ranks)
    what = {"op": op, "topology": topology.name, "gpus": one.ranks, "nodes": one.nodes}
    return {
        **what,
        "nccl": topology.node.nccl.version,
        "warnings": [*_warnings(topology, one)],
        "lines": [line.columns() for line in lines],
    }


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
