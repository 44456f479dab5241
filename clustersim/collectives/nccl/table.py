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
from clustersim.collectives.levels import fanouts
from clustersim.collectives.loads import TooManyRoutesError
from clustersim.collectives.model import AllPairs, Phase, phases
from clustersim.collectives.nccl.choose import OPS, choose, collective_seconds, file_of, why
from clustersim.collectives.nccl.model import SIMPLE_ONLY
from clustersim.collectives.nccl.shape import CommunicatorShape, shape
from clustersim.collectives.nccl.tuner import OPS as TUNED
from clustersim.collectives.nccl.tuner import Choice, tune
from clustersim.collectives.plan import bus_factor
from clustersim.collectives.switched import fitted
from clustersim.errors import InputError, suggest
from clustersim.topology.model import Topology
from clustersim.units import scaled, seconds

NO_PROTOCOL = "-"


class TableLine(NamedTuple):
    """One size of the table: NCCL's choice, forecast seconds, bytes/s, and `measured` seconds or None."""

    size: int
    choice: Choice
    time: float
    algbw: float
    busbw: float
    measured: float | None

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
    """Return the time of `op` on `size` bytes over GPUs `ranks` (n,): launch + latency + size / min(NCCL's rate, links' rate).

    `shares` of the rows of a dispatch, combine or all_to_all are as in Group. `algorithm` is a file of collectives/algorithms
    instead of NCCL's choice.
    """
    if op not in OPS:
        raise InputError(f"{op!r} is not a collective; {suggest(op, OPS)}")
    if algorithm:
        own = named(topology, ranks, op, algorithm, shares)
        taken = collective_seconds(own, size, topology.launch)
        return TableLine(size, own, taken, size / taken, size / taken * bus_factor(op, len(ranks)), measured)
    one = shape(topology, ranks, shares)
    choice = choose(op, size, one, topology.facts(one.types))
    rate = min(
        choice.rate_bytes_per_s,
        _links(topology, ranks, op, file_of(choice.algorithm, one, topology.facts(one.types)), one, shares),
    )
    time = (topology.node.nccl.launch or 0.0) + choice.latency_s + size / rate
    return TableLine(size, choice, time, size / time, size / time * bus_factor(op, one.ranks), measured)


def _links(
    topology: Topology, ranks: Ints, op: str, file: str, one: CommunicatorShape, shares: tuple[float, ...]
) -> float:
    """Return the bytes/s of the collective's size that the links of an idle fabric allow for the algorithm `file`."""

    def found() -> float:
        try:
            return float(idle_rates(topology, np.asarray(ranks)[None], parts(op, file, one, shares))[0])
        except TooManyRoutesError:
            if shares:
                raise
            return even_rate(topology, np.asarray(ranks))

    return topology.cache.once(("links", fingerprint(ranks), op, file, shares), found)


def parts(op: str, file: str, one: CommunicatorShape, shares: tuple[float, ...]) -> Sequence[Phase | AllPairs]:
    """Return the phases of a collective. In a `send` every rank sends to the next one at the same time, the last to the first."""
    if op == "send":
        around = np.arange(one.ranks)
        return (Phase(1, around, np.roll(around, -1), np.ones(one.ranks)),)
    return phases(file, op, one.group._replace(shares=shares))


def title(topology: Topology, ranks: Ints, op: str) -> str:
    """Return the comment line above the table, with the operation, the GPUs and their network."""
    one = shape(topology, ranks)
    nodes = f"{one.nodes} node{'s' if one.nodes > 1 else ''}"
    head = f"# {op} over {one.ranks} GPUs on {nodes} of {topology.name}, NCCL {topology.node.nccl.version}"
    return "\n".join([head, *(f"# warning: {said}" for said in _warnings(topology, one))])


def _warnings(topology: Topology, one: CommunicatorShape) -> tuple[str, ...]:
    """Return the notes on a topology, and the warnings of its network model if the communicator uses the network."""
    return topology.notes + (topology.warnings if one.nodes > 1 else ())


def document(topology: Topology, ranks: Ints, op: str, lines: Sequence[TableLine]) -> dict[str, object]:
    """Return the table as JSON data. Keys of values with a dimension name the unit."""
    one = shape(topology, ranks)
    what = {"op": op, "topology": topology.name, "gpus": one.ranks, "nodes": one.nodes}
    return {
        **what,
        "nccl": topology.node.nccl.version,
        "warnings": [*_warnings(topology, one)],
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
    """Return the median absolute error of the times over all sizes, and over each range of sizes that has measurements."""
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
    """Return a line of the table of nccl-tests. `wide`: width of the column of algorithms in characters."""
    c = line.choice
    own = f"{line.size:>12} {'float':>5} {c.algorithm:>{wide}} {c.protocol:>6} {line.time * 1e6:>10.2f}"
    own = f"{own} {line.algbw / 1e9:>8.2f} {line.busbw / 1e9:>8.2f}"
    if line.measured is None or line.error is None:
        return own
    return f"{own} {line.measured * 1e6:>10.2f} {100 * line.error:>+7.1f}"


def named(topology: Topology, ranks: Ints, op: str, algorithm: str, shares: tuple[float, ...]) -> Choice:
    """Return the time of the file `algorithm` over GPUs `ranks` (n,) on an idle fabric, as in a step that uses it.

    Raises InputError for fewer than two GPUs, an unsupported operation, and a cluster without the necessary switches.
    """
    if len(ranks) < 2:
        raise InputError("a collective needs two GPUs or more; one has no peer")
    question = ("named", fingerprint(ranks), op, algorithm, shares)
    return topology.cache.once(question, lambda: _named(topology, np.asarray(ranks)[None], op, algorithm, shares))


def _named(topology: Topology, gpus: Ints, op: str, algorithm: str, shares: tuple[float, ...]) -> Choice:
    """Return the choice of an algorithm outside NCCL, from the loads of its phases on the links."""
    found = [loads(topology, gpus, part) for part in _phases(topology, gpus, op, algorithm, shares)]
    delay = math.fsum(float(one.latency[0]) for one in found)
    rate = 1 / math.fsum(1 / float(one.bound[0]) for one in found)
    return Choice(algorithm, NO_PROTOCOL, 0, delay, rate, delay + 1 / rate)


def _phases(
    topology: Topology, gpus: Ints, op: str, algorithm: str, shares: tuple[float, ...]
) -> tuple[Phase | AllPairs, ...]:
    """Return the phases of an algorithm that the user names, over a group of GPUs `gpus` (1, n)."""
    upwards = fanouts(distinct(topology.numbering.node_of(gpus[0])), topology)
    return phases(algorithm, op, fitted(topology, algorithm, (op,), gpus, upwards, shares))


class BusiestLink(NamedTuple):
    """The link that limits a collective.

    `rate` is the bytes/s of the collective's size that all links together allow.
    """

    link: int
    others: int
    weight: float
    capacity: float
    rate: float


def busiest(topology: Topology, ranks: Ints, phases: Sequence[Phase | AllPairs]) -> BusiestLink:
    """Return the link that one group of GPUs `ranks` (n,) uses longest over all phases; the first of several.

    Raises InputError if a pair needs NICs that the cluster does not have.
    """
    total, seconds = np.zeros(len(topology.capacity)), 0.0
    for phase in phases:
        found = loads(topology, ranks[None], phase)
        own = np.bincount(found.link, found.weight, len(total))
        used = own > 0
        seconds += float((own[used] / topology.capacity[used]).max())
        total += own
    busy = np.divide(total, topology.capacity, out=np.zeros_like(total), where=total > 0)
    equal = np.flatnonzero(busy >= busy.max() * (1 - 1e-9))
    link = int(equal[0])
    return BusiestLink(link, len(equal) - 1, float(total[link]), float(topology.capacity[link]), 1 / seconds)


def considered(topology: Topology, ranks: Ints, op: str, last: TableLine, shares: tuple[float, ...] = ()) -> str:
    """Return text with NCCL's choices for the last line of `op` over GPUs `ranks` (n,), and the limit of its bandwidth."""
    one, choice = shape(topology, ranks, shares), last.choice
    if choice.protocol == NO_PROTOCOL:
        own = _phases(topology, np.asarray(ranks)[None], op, choice.algorithm, shares)
        said = f"{choice.algorithm} as named, in {math.fsum(part.rounds for part in own):g} rounds"
        rate = scaled(choice.rate_bytes_per_s, "B/s")
        spent = f"launch {seconds(topology.launch)}, hops {seconds(choice.latency_s)}, bytes at {rate}"
        return f"{op} of {last.size} B: {said}, with no protocol of NCCL\n{spent}"
    file = file_of(choice.algorithm, one, topology.facts(one.types))
    because = why(op, last.size, one, topology.facts(one.types))
    rows = [f"{op} of {last.size} B: {because}", *_candidates(topology, op, last.size, one)]
    rows.append(f"kernels take {seconds(choice.latency_s)} before and between the bytes, {file} has the loads on links")
    rows.append(_link(topology, ranks, op, last, one, shares))
    return "\n".join(rows)


def _candidates(topology: Topology, op: str, size: int, one: CommunicatorShape) -> Iterator[str]:
    """Yield a line for each algorithm and protocol, the fastest first, with the reason why if it is not available."""
    if op not in TUNED:
        return
    for e in sorted(tune(op, size, one, topology.facts(one.types)), key=lambda e: e.time_s):
        if e.missing != SIMPLE_ONLY:
            name = f"  {e.algorithm}/{e.protocol}"
            said = e.missing or f"{seconds(e.time_s)}, {e.channels} channels, {scaled(e.rate_bytes_per_s, 'B/s')}"
            yield f"{name:<24} {said}"


def _link(
    topology: Topology, ranks: Ints, op: str, last: TableLine, one: CommunicatorShape, shares: tuple[float, ...]
) -> str:
    """Return a sentence about the busiest link: the share of its capacity in use, and whether it limits the rate."""
    try:
        found = busiest(
            topology, ranks, parts(op, file_of(last.choice.algorithm, one, topology.facts(one.types)), one, shares)
        )
    except TooManyRoutesError:
        return "its pairs have too many routes to name the busiest link"
    own = last.choice.rate_bytes_per_s
    used = min(own, found.rate) * found.weight / found.capacity
    name, room = topology.link_name(found.link), scaled(found.capacity, "B/s")
    others = f"; {found.others:,} more are as busy" if found.others else ""
    if found.rate <= own * (1 + 1e-9):
        return f"{name} decides: {100 * used:.0f} % of its {room} while the bytes move{others}"
    return f"NCCL's own rate decides; {name} is the busiest link: {100 * used:.0f} % of its {room} while the bytes move{others}"
