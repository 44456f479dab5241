"""Table of `clustersim collective`: time and bandwidth of each size on an idle fabric, next to measurements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints, distinct
from clustersim.cache import fingerprint
from clustersim.collectives.idle import even_rate, idle_rates, loads
from clustersim.collectives.levels import fanouts, fitted
from clustersim.collectives.loads import TooManyRoutesError
from clustersim.collectives.model import AllPairs, Phase, phases
from clustersim.collectives.nccl.choose import OPS, TUNED, Choice, choose, file_of, tune, why
from clustersim.collectives.nccl.model import SIMPLE_ONLY
from clustersim.collectives.nccl.shape import CommunicatorShape, shape
from clustersim.collectives.plan import bus_factor
from clustersim.errors import InputError, suggest
from clustersim.topology.model import NodeFacts, Topology
from clustersim.units import scaled, seconds

NO_PROTOCOL = "-"


class TableLine(NamedTuple):
    """One size of the table, with its forecast."""

    size: int
    """Size of the collective in bytes, as nccl-tests counts it."""
    choice: Choice
    """NCCL's choice, or the algorithm that the user named."""
    time: float
    """Forecast time in seconds, launch included."""
    algbw: float
    """Algorithm bandwidth in bytes/s: size / time."""
    busbw: float
    """Bus bandwidth in bytes/s: algorithm bandwidth times `plan.bus_factor`."""
    measured: float | None
    """Measured time in seconds; None without a measurement."""

    @property
    def error(self) -> float | None:
        """Forecast time / measured time - 1, or None without a measurement."""
        return None if self.measured is None else self.time / self.measured - 1

    def columns(self) -> dict[str, object]:
        """Return the line for JSON: sizes in bytes, times in us, bandwidths in GB/s, as nccl-tests prints them."""
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


def line(
    topology: Topology,
    ranks: Ints,
    op: str,
    size: int,
    measured: float | None = None,
    shares: tuple[float, ...] = (),
    algorithm: str | None = None,
) -> TableLine:
    """Return the line of `op` on `size` bytes over GPUs `ranks` (n,): launch + latency + size / min(NCCL's rate, links' rate).

    `measured` is in seconds. shares: share of all rows of a dispatch, combine or all_to_all for each rank's experts, empty if
    equal. `algorithm` is a file of collectives/algorithms instead of NCCL's choice. Raises InputError for an unknown operation
    and where `choose` or `named` does.
    """
    if op not in OPS:
        raise InputError(f"{op!r} is not a collective; {suggest(op, OPS)}")
    if algorithm:
        choice, launch = named(topology, ranks, op, algorithm, shares), topology.launch
        rate = choice.rate_bytes_per_s
    else:
        comm, launch = shape(topology, ranks, shares), topology.node.nccl.launch or 0.0
        facts = topology.facts(comm.types)
        choice = choose(op, size, comm, facts)
        links_rate = _links(topology, ranks, op, file_of(choice.algorithm, comm, facts), comm, shares)
        rate = min(choice.rate_bytes_per_s, links_rate)
    time = launch + choice.latency_s + size / rate
    return TableLine(size, choice, time, size / time, size / time * bus_factor(op, len(ranks)), measured)


def _links(
    topology: Topology, ranks: Ints, op: str, file: str, comm: CommunicatorShape, shares: tuple[float, ...]
) -> float:
    """Return the bytes/s of the collective's size that the links of an idle fabric allow for the algorithm `file`.

    If there are too many routes, return the rate of evenly loaded links, or raise TooManyRoutesError if `shares` are not empty.
    """

    def compute_rate() -> float:
        """Return the rate of `_links`, which the topology caches."""
        try:
            return float(idle_rates(topology, np.asarray(ranks)[None], parts(op, file, comm, shares))[0])
        except TooManyRoutesError:
            if shares:
                raise
            return even_rate(topology, np.asarray(ranks))

    return topology.cache.once(("links", fingerprint(ranks), op, file, shares), compute_rate)


def parts(op: str, file: str, comm: CommunicatorShape, shares: tuple[float, ...]) -> Sequence[Phase | AllPairs]:
    """Return the phases of `op` by the algorithm `file`. shares: share of all rows for each rank's experts, empty if equal.

    In a `send` every rank sends to the next rank at the same time, the last to the first.
    """
    if op == "send":
        around = np.arange(comm.ranks)
        return (Phase(1, around, np.roll(around, -1), np.ones(comm.ranks)),)
    return phases(file, op, comm.group._replace(shares=shares))


def title(topology: Topology, ranks: Ints, op: str) -> str:
    """Return the comment above the table: a line with the operation, GPUs and network, and a line for each warning."""
    comm = shape(topology, ranks)
    nodes = f"{comm.nodes} node{'s' if comm.nodes > 1 else ''}"
    head = f"# {op} over {comm.ranks} GPUs on {nodes} of {topology.name}, NCCL {topology.node.nccl.version}"
    return "\n".join([head, *(f"# warning: {warning}" for warning in _warnings(topology, comm))])


def _warnings(topology: Topology, comm: CommunicatorShape) -> tuple[str, ...]:
    """Return the notes on the topology, and the warnings of its network model if the communicator is on several nodes."""
    return topology.notes + (topology.warnings if comm.nodes > 1 else ())


def document(topology: Topology, ranks: Ints, op: str, lines: Sequence[TableLine]) -> dict[str, object]:
    """Return the table as JSON data: `op`, `topology`, `gpus`, `nodes`, `nccl` (release), `warnings`, `lines` (`columns`)."""
    comm = shape(topology, ranks)
    header = {"op": op, "topology": topology.name, "gpus": comm.ranks, "nodes": comm.nodes}
    return {
        **header,
        "nccl": topology.node.nccl.version,
        "warnings": [*_warnings(topology, comm)],
        "lines": [line.columns() for line in lines],
    }


def text(lines: Sequence[TableLine]) -> str:
    """Return the table as text in bytes, us and GB/s, with the median error if there are measurements."""
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


def _summary(lines: Sequence[TableLine]) -> str:
    """Return text with the median |error| of the times in percent, over all measured sizes and over each range of sizes."""
    errors = [(line.size, abs(line.error)) for line in lines if line.error is not None]
    parts = {
        "up to 1 MiB": [error for size, error in errors if size <= 1 << 20],
        "between": [error for size, error in errors if 1 << 20 < size < 1 << 26],
        "from 64 MiB": [error for size, error in errors if size >= 1 << 26],
    }
    ranges = ", ".join(f"{100 * median(part):.1f} % {name}" for name, part in parts.items() if part)
    middle = 100 * median(error for _, error in errors)
    return f"median absolute error {middle:.1f} % over {len(errors)} sizes: {ranges}"


def _row(line: TableLine, wide: int) -> str:
    """Return a line of the table as text. `wide`: width of the column of algorithms in characters."""
    choice = line.choice
    columns = f"{line.size:>12} {'float':>5} {choice.algorithm:>{wide}} {choice.protocol:>6} {line.time * 1e6:>10.2f}"
    columns = f"{columns} {line.algbw / 1e9:>8.2f} {line.busbw / 1e9:>8.2f}"
    if line.measured is None or line.error is None:
        return columns
    return f"{columns} {line.measured * 1e6:>10.2f} {100 * line.error:>+7.1f}"


def named(topology: Topology, ranks: Ints, op: str, algorithm: str, shares: tuple[float, ...]) -> Choice:
    """Return latency and rate of the file `algorithm` over GPUs `ranks` (n,) on an idle fabric, as in a step that uses it.

    shares: share of all rows for each rank's experts, empty if equal.
    Raises InputError for fewer than two GPUs, an unsupported operation, and a cluster without the necessary switches.
    """
    if len(ranks) < 2:
        raise InputError("a collective needs two GPUs or more; one has no peer")
    question = ("named", fingerprint(ranks), op, algorithm, shares)
    gpus = np.asarray(ranks)[None]

    def choice() -> Choice:
        """Return the choice of `named`, which the topology caches."""
        phase_loads = [loads(topology, gpus, part) for part in _phases(topology, gpus, op, algorithm, shares)]
        delay = math.fsum(float(load.latency[0]) for load in phase_loads)
        rate = 1 / math.fsum(1 / float(load.bound[0]) for load in phase_loads)
        return Choice(algorithm, NO_PROTOCOL, 0, delay, rate, delay + 1 / rate)

    return topology.cache.once(question, choice)


def _phases(
    topology: Topology, gpus: Ints, op: str, algorithm: str, shares: tuple[float, ...]
) -> tuple[Phase | AllPairs, ...]:
    """Return the phases of an algorithm that the user names, over a group of GPUs `gpus` (1, n)."""
    upwards = fanouts(distinct(topology.numbering.node_of(gpus[0])), topology)
    return phases(algorithm, op, fitted(topology, algorithm, (op,), gpus, upwards, shares))


class BusiestLink(NamedTuple):
    """The link that a collective uses longest."""

    link: int
    """Index of the link."""
    others: int
    """Number of other links that are equally busy."""
    weight: float
    """Bytes over the link per byte of the collective's size."""
    capacity: float
    """Capacity of the link in bytes/s."""
    rate: float
    """Bytes/s of the collective's size that all links together allow."""


def busiest(topology: Topology, ranks: Ints, phases: Sequence[Phase | AllPairs]) -> BusiestLink:
    """Return the link that one group of GPUs `ranks` (n,) uses longest over all phases; the first of several.

    Raises InputError if a pair needs NICs that the cluster does not have, and TooManyRoutesError if an AllPairs has too many
    distinct routes.
    """
    total, seconds = np.zeros(len(topology.capacity)), 0.0
    for phase in phases:
        phase_loads = loads(topology, ranks[None], phase)
        load = np.bincount(phase_loads.link, phase_loads.weight, len(total))
        used = load > 0
        seconds += float((load[used] / topology.capacity[used]).max())
        total += load
    busy_seconds = np.divide(total, topology.capacity, out=np.zeros_like(total), where=total > 0)
    equal = np.flatnonzero(busy_seconds >= busy_seconds.max() * (1 - 1e-9))
    link = int(equal[0])
    return BusiestLink(link, len(equal) - 1, float(total[link]), float(topology.capacity[link]), 1 / seconds)


def considered(topology: Topology, ranks: Ints, op: str, last: TableLine, shares: tuple[float, ...] = ()) -> str:
    """Return text: NCCL's candidates for the line `last`, and what limits its rate. shares: of rows per rank, () if equal."""
    comm, choice = shape(topology, ranks, shares), last.choice
    if choice.protocol == NO_PROTOCOL:
        named_phases = _phases(topology, np.asarray(ranks)[None], op, choice.algorithm, shares)
        description = f"{choice.algorithm} as named, in {math.fsum(phase.rounds for phase in named_phases):g} rounds"
        rate = scaled(choice.rate_bytes_per_s, "B/s")
        spent = f"launch {seconds(topology.launch)}, hops {seconds(choice.latency_s)}, bytes at {rate}"
        return f"{op} of {last.size} B: {description}, with no protocol of NCCL\n{spent}"
    facts = topology.facts(comm.types)
    file = file_of(choice.algorithm, comm, facts)
    rows = [f"{op} of {last.size} B: {why(op, last.size, comm, facts)}", *_candidates(op, last.size, comm, facts)]
    rows.append(f"kernels take {seconds(choice.latency_s)} before and between the bytes, {file} has the loads on links")
    try:
        rows.append(_link(topology, busiest(topology, ranks, parts(op, file, comm, shares)), choice.rate_bytes_per_s))
    except TooManyRoutesError:
        rows.append("its pairs have too many routes to name the busiest link")
    return "\n".join(rows)


def _candidates(op: str, size: int, comm: CommunicatorShape, facts: NodeFacts) -> Iterator[str]:
    """Yield a line for each algorithm and protocol, the fastest first: seconds, or why not available. Messages have none."""
    for row in sorted(tune(op, size, comm, facts), key=lambda row: row.time_s) if op in TUNED else ():
        if row.missing != SIMPLE_ONLY:
            name = f"  {row.algorithm}/{row.protocol}"
            figures = f"{seconds(row.time_s)}, {row.channels} channels, {scaled(row.rate_bytes_per_s, 'B/s')}"
            yield f"{name:<24} {row.missing or figures}"


def _link(topology: Topology, link: BusiestLink, rate: float) -> str:
    """Return a sentence about the busiest link: the share of its capacity in use, and whether it limits the rate.

    rate: bytes/s of the collective's size that NCCL, GPUs and NICs allow.
    """
    used = min(rate, link.rate) * link.weight / link.capacity
    name, limit = topology.link_name(link.link), scaled(link.capacity, "B/s")
    others = f"; {link.others:,} more are as busy" if link.others else ""
    if link.rate <= rate * (1 + 1e-9):
        return f"{name} decides: {100 * used:.0f} % of its {limit} while the bytes move{others}"
    return f"NCCL's own rate decides; {name} is the busiest link: {100 * used:.0f} % of its {limit} while the bytes move{others}"
