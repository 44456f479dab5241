"""The table of nccl-tests for a cluster: what a collective of each size takes on an idle fabric, and measurements beside it."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from clustersim.collectives.model import Ints, Phase, phases
from clustersim.collectives.nccl.choose import OPS, Choice, choose
from clustersim.collectives.nccl.constants import constants
from clustersim.collectives.nccl.model import SIMPLE_ONLY
from clustersim.collectives.nccl.shape import Shape, ordered, shape
from clustersim.collectives.nccl.tuner import tune
from clustersim.collectives.paths import idle_rates
from clustersim.config.topology import NCCL_ALGORITHMS
from clustersim.errors import InputError, suggest
from clustersim.topology.model import NcclFacts, Topology
from clustersim.units import parse, scaled, seconds

MOST_PAIRS = 512
"""Ranks up to which an all_to_all is laid over the links pair by pair; beyond, NICs and NVLink alone bound it."""
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?)(?:i?B)?")
_SCALE = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SPELT = {"alltoall": "all_to_all", "sendrecv": "send"}


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
            "channels": self.choice.channels,
            "time_us": self.time * 1e6,
            "algbw": self.algbw / 1e9,
            "busbw": self.busbw / 1e9,
        }
        if self.measured is not None:
            row |= {"measured_us": self.measured * 1e6, "error": self.error}
        return row


def forced(
    topology: Topology,
    algo: str | None = None,
    proto: str | None = None,
    version: str | None = None,
    launch: str | None = None,
) -> Topology:
    """Return the cluster with another NCCL: algorithm, protocol, release or launch (a time with a unit); None leaves it."""
    if algo is not None and algo not in NCCL_ALGORITHMS:
        raise InputError(f"{algo!r} is no algorithm of NCCL; {suggest(algo, NCCL_ALGORITHMS)}")
    if proto is not None and proto not in ("LL", "LL128", "Simple"):
        raise InputError(f"{proto!r} is no protocol of NCCL; write LL, LL128 or Simple")
    old = topology.node.nccl
    wait = parse(launch, "time") if launch else old.launch
    nccl = NcclFacts(version or old.version, algo or old.algo, proto or old.proto, old.collnet, wait)
    constants(nccl.version)
    return replace(topology, node=topology.node._replace(nccl=nccl))


def members(topology: Topology, gpus: int | None, ranks: str | None) -> Ints:
    """Return the GPUs of a communicator: the first `gpus`, or a list such as `0-7,16-23` or `0-1023:8`, or all."""
    if ranks and gpus:
        raise InputError("--gpus and --ranks both name the GPUs; give one of them")
    if not ranks:
        count = topology.gpus if gpus is None else gpus
        if count > topology.gpus:
            raise InputError(f"the cluster has {topology.gpus} GPUs, not {count}; use that many or fewer")
        return np.arange(count)
    return ordered(np.concatenate([_span(part.strip(), topology) for part in ranks.split(",")]))


def _span(part: str, topology: Topology) -> Ints:
    match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([1-9][0-9]{0,8}))?)?", part)
    if match is None:
        raise InputError(f"{part!r} is no list of GPUs; write numbers and spans like 0-7 or 0-1023:8")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first or last >= topology.gpus:
        raise InputError(f"GPUs {part} are not among 0 to {topology.gpus - 1}; write the smaller number first")
    return np.arange(first, last + 1, int(match[3] or 1))


def sizes(begin: str, end: str, factor: float) -> list[int]:
    """Return the sizes in bytes from `begin` to `end`, each `factor` times the last; `64K` is binary, as in nccl-tests."""
    size, last = _bytes(begin), _bytes(end)
    if size > last:
        raise InputError(f"the smallest size {begin} is larger than the largest {end}; swap them")
    found = []
    exact = float(size)
    while exact <= last * (1 + 1e-9):
        found.append(round(exact))
        exact *= factor
    return found


def _bytes(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    value = round(float(match[1]) * _SCALE[match[2]]) if match else 0
    if not 1 <= value <= 1 << 50:
        raise InputError(f"{text!r} is no size of a collective; write bytes, or 64K, 1M, 16G (binary)")
    return value


def bus_factor(op: str, n: int) -> float:
    """Return busbw over algbw (nccl-tests, doc/PERFORMANCE.md)."""
    ring = (n - 1) / n
    return {"all_reduce": 2 * ring, "all_gather": ring, "reduce_scatter": ring, "all_to_all": ring}.get(op, 1.0)


def line(topology: Topology, ranks: Ints, op: str, size: int, measured: float | None = None) -> Line:
    """Return what `op` on `size` bytes takes over GPUs `ranks` (n,): launch + latency + size / min(NCCL's rate, the links')."""
    if op not in OPS:
        raise InputError(f"{op!r} is no collective; {suggest(op, OPS)}")
    one = shape(topology, ranks)
    choice = choose(op, size, one, topology.node)
    rate = min(choice.rate_bytes_per_s, _links(topology, tuple(ranks.tolist()), op, choice.file, one))
    time = (topology.node.nccl.launch or 0.0) + choice.latency_s + size / rate
    return Line(size, choice, time, size / time, size / time * bus_factor(op, one.ranks), measured)


@lru_cache(maxsize=64)
def _links(topology: Topology, ranks: tuple[int, ...], op: str, file: str, one: Shape) -> float:
    """Return the bytes/s that the links of an idle fabric give a collective."""
    n = len(ranks)
    if op == "send":
        around = np.arange(n)
        parts: Sequence[Phase] = (Phase(1, around, np.roll(around, -1), np.ones(n)),)
    elif file == "direct" and n > MOST_PAIRS:
        return float("inf")
    else:
        parts = phases(file, op, one.group)
    return float(idle_rates(topology, np.array([ranks]), parts)[0])


def measured(path: Path, op: str, gpus: int, source: str | None = None) -> dict[int, float]:
    """Return {size in bytes: seconds} of a CSV with the columns size_bytes and time_us.

    Of a file that has the columns op, gpus and source, the rows that match. Raises InputError when nothing is left, or
    when rows of several sources are.
    """
    rows = [row for row in _rows(path) if _matches(row, op, gpus, source) and row["size_bytes"] and row["time_us"]]
    if not rows:
        raise InputError(f"{path} has no row for {op} on {gpus} GPUs; it needs the columns size_bytes and time_us")
    sources = sorted({" ".join((row.get("source") or "", row.get("gpu") or "")).strip() for row in rows})
    if len(sources) > 1:
        raise InputError(
            f"{path} has rows of {len(sources)} sources for {op} on {gpus} GPUs; name one with --source: {sources[0]!r}"
        )
    try:
        return {int(row["size_bytes"]): float(row["time_us"]) * 1e-6 for row in rows}
    except ValueError as error:
        raise InputError(f"{path}: {error}; size_bytes must be whole, time_us a number") from None


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read ({error}); give a CSV file") from None
    if rows and not {"size_bytes", "time_us"} <= rows[0].keys():
        raise InputError(
            f"{path} lacks the columns size_bytes and time_us; its columns are {', '.join(map(str, rows[0]))}"
        )
    return rows


def _matches(row: Mapping[str, str], op: str, gpus: int, source: str | None) -> bool:
    own = row.get("op") or op
    text = " ".join((row.get("source") or "", row.get("gpu") or ""))
    return _SPELT.get(own, own) == op and int(row.get("gpus") or gpus) == gpus and (source is None or source in text)


def text(lines: Sequence[Line]) -> str:
    """Return the table as text: sizes in bytes, us, GB/s; with the median error when there are measurements."""
    compared = any(line.measured is not None for line in lines)
    head = f"{'size':>12} {'type':>5} {'algo':>14} {'proto':>6} {'time':>10} {'algbw':>8} {'busbw':>8}"
    units = f"{'(B)':>12} {'':>5} {'':>14} {'':>6} {'(us)':>10} {'(GB/s)':>8} {'(GB/s)':>8}"
    if compared:
        head, units = f"{head} {'measured':>10} {'error':>7}", f"{units} {'(us)':>10} {'(%)':>7}"
    rows = [head, units, *(_row(line) for line in lines)]
    if compared:
        errors = sorted(abs(line.error) for line in lines if line.error is not None)
        rows.append(f"median absolute error {100 * errors[len(errors) // 2]:.1f} % over {len(errors)} sizes")
    return "\n".join(rows)


def _row(line: Line) -> str:
    c = line.choice
    own = f"{line.size:>12} {'float':>5} {c.algorithm:>14} {c.protocol:>6} {line.time * 1e6:>10.2f}"
    own = f"{own} {line.algbw / 1e9:>8.2f} {line.busbw / 1e9:>8.2f}"
    if line.measured is None or line.error is None:
        return own
    return f"{own} {line.measured * 1e6:>10.2f} {100 * line.error:>+7.1f}"


def considered(topology: Topology, ranks: Ints, op: str, last: Line) -> str:
    """Return why the last line is as it is: what NCCL expected of each algorithm and protocol, and what it could not use."""
    one = shape(topology, ranks)
    where = f"{one.ranks} GPUs on {one.nodes} node{'s' if one.nodes > 1 else ''}"
    rows = [f"{op} of {last.size} B, {where}, NCCL {topology.node.nccl.version}: {last.choice.why}"]
    if op not in ("send", "all_to_all"):
        for e in sorted(tune(op, last.size, one, topology.node), key=lambda e: e.time_s):
            if e.missing == SIMPLE_ONLY:
                continue
            name = f"  {e.algorithm}/{e.protocol}"
            said = e.missing or f"{seconds(e.time_s)}, {e.channels} channels, {scaled(e.rate_bytes_per_s, 'B/s')}"
            rows.append(f"{name:<24} {said}")
    rows.append(
        f"kernels take {seconds(last.choice.latency_s)} before and between the bytes, {last.choice.file} has the loads on links"
    )
    return "\n".join(rows)
