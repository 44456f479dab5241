"""Changes of a run next to it: one table of its schedule, split, batch, recomputation, overlap, hardware and faults.

`run --why`, `explain`, `report`, `explore` and `plan` simulate each of `what_ifs`; advice for a job that does not fit combines
those of `smaller`. A change is values by dotted key, for `run --set`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from clustersim.config.overrides import as_text, of_topology
from clustersim.config.topology import Fault, Host, Node, TopologySpec
from clustersim.config.workload import Training
from clustersim.config.yaml import Document
from clustersim.frameworks.table import offers
from clustersim.hardware.formats import FORMATS
from clustersim.parallel.check import microbatch_overlap
from clustersim.parallel.host import host
from clustersim.parallel.job import Job, divisors
from clustersim.parallel.options import KEYS
from clustersim.schedules.check import misfit
from clustersim.sweeps.legal import EP_OVERLAP, GRAD_REDUCE, OVERLAPS, P2P, PARAM_GATHER, TP_OVERLAP
from clustersim.sweeps.space import NODES, SCHEDULE, VPP, takes
from clustersim.topology.build import described
from clustersim.topology.specs import CUT, NodeSpecs
from clustersim.units import parse, scaled

Values = Mapping[str, object]
"""Values by dotted key."""
SCHEDULES = ("zero_bubble", "interleaved", "1f1b")
"""Schedules that are tried instead of the run's own."""
RECOMPUTE, ZERO, MICRO_BATCH = (KEYS[name] for name in ("recompute", "zero", "micro_batch"))
SEQUENCE_PARALLEL, CROSS_ENTROPY = "parallelism.sequence_parallel", "training.cross_entropy"
CHOICES: Mapping[str, tuple[object, ...]] = {
    RECOMPUTE: ("none", "selective", "full"),
    ZERO: (0, 1, 2, 3),
    SEQUENCE_PARALLEL: (False, True),
    CROSS_ENTROPY: ("fused",),
}
"""{key: its values, those that need more memory first}"""
FINEST = 128
"""Largest number of recomputed layers that are tried."""
NIC, NVLINK = "NIC × 2", "NVLink × 2"
LEAVES = {"fabric.oversubscription": 4}
"""Change of the leaves to fewer uplinks than ports to nodes."""
_TREES = ("fat_tree", "leaf_spine", "rail_optimized", "rail_only")
"""Kinds of fabric that have such leaves."""
_PCIE = 6
"""Latest generation of PCIe in a host."""


class WhatIf(NamedTuple):
    """A change of a run, and the step with it once it is simulated."""

    name: str
    """Short name."""
    changes: Values
    """Values by dotted key; empty if it is impossible."""
    reason: str = ""
    """Reason why it is impossible."""
    step_time: float | None = None
    """Seconds of the step; None if it is not simulated or impossible."""
    usd: float | None = None
    """USD that the changed cluster costs more than the run's, or less if negative; None for equal or unknown prices."""

    @property
    def free(self) -> bool:
        """Whether it needs no purchase: it concerns the split and the computation of a step, not the cluster."""
        return bool(self.changes) and not any(map(of_topology, self.changes))


def what_ifs(document: Document, job: Job) -> list[WhatIf]:
    """Return changes of a placed job and of its cluster that its framework can run; an impossible one has a `reason`."""
    spec, specs = described(document)
    types, offered = _types(spec, specs), offers(job.training.framework)
    choices = (changes for key in CHOICES for changes in _choices(job, key))
    free = [
        *_schedules(job),
        *(WhatIf(_name(changes), changes) for changes in (*_splits(job), *choices)),
        *_overlaps(job),
    ]

    def runs(change: WhatIf) -> bool:
        """Return whether the job's framework offers all values of a change."""
        chunks = int(str(change.changes.get(VPP, job.parallelism.vpp)))
        return all(offered[key].has(value, chunks) for key, value in change.changes.items() if key in offered)

    return [
        *filter(runs, free),
        *_healed(document.data.get("faults") or [], spec.faults),
        _host(job, types),
        *_nics(document, spec, types, specs.nodes),
        _nvlink(types),
    ]


def smaller(job: Job, gpus_per_node: int, nodes: int) -> list[list[Values]]:
    """Return lists of a job's changes that need less memory, one per kind, mildest first. nodes: number, 0 if it is fixed."""
    training, split = job.training, job.parallelism
    recompute = _choices(job, RECOMPUTE, tighter=True)
    if recompute:  # some layers before all of them
        layers = -(-job.model.layers // (split.pp * split.vpp))
        step = -(-layers // FINEST)
        block: Values = {RECOMPUTE: "full", "training.recompute_method": "block"}
        blocks = [{**block, "training.recompute_layers": n} for n in range(step, layers, step)]
        recompute[-1:] = [*blocks, recompute[-1]]
    limits = {"tp": gpus_per_node, "pp": job.model.layers, "cp": 64, "ep": job.model.experts or 1}
    mixed = training.gradients == "fp32" and training.precision in ("bf16", *FORMATS)
    return [
        recompute,
        *(_choices(job, key, tighter=True) for key in CHOICES if key != RECOMPUTE),
        [{MICRO_BATCH: n} for n in reversed(divisors(training.micro_batch)[:-1])],
        *(
            [_degree(job, name, n) for n in (2, 4, 8, 16, 32) if _value(job, KEYS[name]) * n <= limit]
            for name, limit in limits.items()
        ),
        [{"training.gradients": "bf16"}] if mixed else [],
        [{"training.precision": "fp8"}] if training.precision == "bf16" else [],
        [{NODES: nodes * n} for n in (2, 4, 8)] if nodes else [],
    ]


def _value(job: Job, key: str) -> Any:
    """Return a job's value of a dotted key."""
    section, _, name = key.partition(".")
    return getattr(getattr(job, section), name)


def _name(changes: Values) -> str:
    """Return values as words, such as `tp 4, pp 32`, without those that are only cleared."""
    words = {
        key.rpartition(".")[2].replace("_", " "): value for key, value in changes.items() if value not in (None, [])
    }
    return ", ".join(f"{name} {as_text(value)}" for name, value in words.items())


def _choices(job: Job, key: str, tighter: bool = False) -> list[Values]:
    """Return the other values of a key of `CHOICES`, each with what it requires; with `tighter` those that need less memory."""
    current, values, training = _value(job, key), CHOICES[key], job.training
    if (key == SEQUENCE_PARALLEL and job.parallelism.tp == 1) or current == "metered":
        return []
    first = values.index(current) + 1 if tighter and current in values else 0
    more: dict[object, Values] = {(ZERO, 2): {GRAD_REDUCE: True}, (RECOMPUTE, "none"): _cleared(training)}
    return [{key: value, **more.get((key, value), {})} for value in values[first:] if value != current]


def _cleared(training: Training) -> Values:
    """Return the changes {key: None or []} that clear the recomputation settings, as `recompute: none` requires."""
    names = ("recompute_modules", "recompute_saves", "recompute_layers", "recompute_every")
    current = {f"training.{name}": getattr(training, name) for name in names}
    return {key: None if isinstance(value, int) else [] for key, value in current.items() if value}


def _degree(job: Job, name: str, times: float) -> Values:
    """Return `times` the degree of a job, with correspondingly fewer or more replicas if their number is fixed."""
    dp = (job.document.data.get("parallelism") or {}).get("dp", "auto")
    fixed = isinstance(dp, int) and name not in ("ep", "micro_batch") and not dp / times % 1
    replicas = {KEYS["dp"]: int(dp / times)} if fixed else {}
    return {KEYS[name]: int(_value(job, KEYS[name]) * times), **replicas}


def _splits(job: Job) -> Iterator[Values]:
    """Yield twice and half of the micro-batch and of each degree, and tensor for pipeline ranks."""
    even = {name: _value(job, KEYS[name]) % 2 == 0 for name in ("micro_batch", "tp", "pp", "cp", "ep")}
    for name in even if job.model.experts else [*even][:-1]:
        yield from (_degree(job, name, times) for times in (2, 0.5) if times > 1 or even[name])
    for tp, pp in ((2, 0.5), (0.5, 2)):
        if even["pp" if tp > 1 else "tp"]:
            yield {KEYS["tp"]: _degree(job, "tp", tp)[KEYS["tp"]], KEYS["pp"]: _degree(job, "pp", pp)[KEYS["pp"]]}


def _schedules(job: Job) -> Iterator[WhatIf]:
    """Yield other schedules that keep the number of chunks, or support more."""
    split = job.parallelism
    for name in SCHEDULES if split.pp > 1 else ():
        fits = (n for n in (split.vpp, 1, 2) if takes(name, n) and not misfit(name, split.pp, job.microbatches, n))
        chunks = next(fits, None)
        if chunks and name != split.schedule.partition("/")[0]:
            more = {VPP: chunks} if chunks != split.vpp else {}
            yield WhatIf(f"schedule {name}", {SCHEDULE: name, **more})


def _overlaps(job: Job) -> Iterator[WhatIf]:
    """Yield each kind of communication that could overlap computation and does not, or the reverse, and all together."""
    split = job.parallelism
    replicas = max(job.copies(False), job.copies(True)) > 1
    use: dict[str, tuple[bool, object]] = {
        GRAD_REDUCE: (replicas and split.zero < 3, True),
        PARAM_GATHER: (replicas and split.zero in (1, 2), True),
        P2P: (split.pp > 1, True),
        TP_OVERLAP: (split.tp > 1, "ring" if split.sequence_parallel else "bulk"),
        EP_OVERLAP: (not list(microbatch_overlap(job)), "microbatch"),
    }
    current = {key: getattr(split.overlap, key.rpartition(".")[2]) for key in OVERLAPS if use[key][0]}
    off = {key: use[key][1] for key, value in current.items() if value in (False, "none")}
    on = {key: "none" if isinstance(value, str) else False for key, value in current.items() if key not in off}
    for changes, word in ((off, "on"), (on, "off")):
        yield from (
            WhatIf(f"overlap of {key.rpartition('.')[2]} {word}", {key: value}) for key, value in changes.items()
        )
    if len(off) > 1:
        yield WhatIf("all overlap on", off)


def _healed(written: Sequence[Any], faults: Sequence[Fault]) -> Iterator[WhatIf]:
    """Yield the file without each of its faults; other faults stay as written."""
    for i, fault in enumerate(faults):
        rest = [other for index, other in enumerate(written) if index != i]
        yield WhatIf(f"healed: {said(fault)}", {"faults": rest})


def said(fault: Fault) -> str:
    """Return a short description of a fault."""
    name = fault.link or (f"node {fault.node}" if fault.node is not None else f"GPU {fault.gpu}")
    if fault.rate is not None:
        return f"{name} at {scaled(fault.rate, 'B/s')}"
    cables = f", {fault.cables} cables" if fault.cables else ""
    return f"{name} dead{cables}" if fault.dead else f"{name} {fault.slowdown:g} times as slow"


def _types(spec: TopologySpec, specs: NodeSpecs) -> dict[str, Node]:
    """Return {dotted key, such as `cluster.node`: node} of the file: one node type, or one per pool."""
    if not spec.cluster.pools:
        return {"cluster.node": specs.node}
    ends = list(accumulate(part.nodes for part in specs.parts))
    begins = accumulate((pool.nodes for pool in spec.cluster.pools[:-1]), initial=0)
    return {f"cluster.pools.{i}.node": specs.parts[bisect_right(ends, begin)].node for i, begin in enumerate(begins)}


def _host(job: Job, types: Mapping[str, Node]) -> WhatIf:
    """Return the what-if of hosts that launch kernels twice as fast."""
    name = "host twice as fast"
    if host(job, next(iter(types.values())).host.slowdown) is None:
        return WhatIf(name, {}, "no training.framework is named, so the host is never late")
    return WhatIf(name, {f"{key}.host.slowdown": node.host.slowdown / 2 for key, node in types.items()})


def _nics(document: Document, spec: TopologySpec, types: Mapping[str, Node], nodes: int) -> Iterator[WhatIf]:
    """Yield NICs and cables of twice the rate, with slots for them, and of half; and fewer uplinks. nodes: of the cluster."""
    rates = [node.nics.rate for node in types.values() if node.nics]
    if not rates or nodes == 1:
        yield WhatIf(NIC, {}, "one node sends nothing through a NIC")
        return
    yield _wider(types, rates, _nic_rate(document, types, rates, 2))
    yield WhatIf("NIC ÷ 2", _nic_rate(document, types, rates, 0.5))
    fabric = spec.fabric or {}
    if fabric.get("kind") in _TREES and all(key.partition(".")[2] not in fabric for key in LEAVES):
        yield WhatIf("leaves 4 : 1", LEAVES)


def _nic_rate(document: Document, types: Mapping[str, Node], rates: Sequence[float], times: float) -> dict[str, object]:
    """Return {dotted key: value} for `times` the rate of NICs, and of fabric links with their own. rates: bytes/s by type."""
    if len(set(rates)) == 1:
        return {"cluster.nic": _rate(times * rates[0])}
    changes: dict[str, object] = {
        f"{key}.nics.rate": _rate(times * rate) for key, rate in zip(types, rates, strict=True)
    }
    link = (document.data.get("fabric") or {}).get("link")
    if isinstance(link, Mapping) and "rate" in link:
        changes["fabric.link.rate"] = _rate(times * parse(link["rate"], "bandwidth"))
    return changes


def _wider(types: Mapping[str, Node], rates: Sequence[float], changes: dict[str, object]) -> WhatIf:
    """Return the what-if of `changes` for faster NICs, with slots that carry twice the `rates` (bytes/s of each node type)."""
    for (key, node), rate in zip(types.items(), rates, strict=True):
        slot = _slot(key, node, rate)
        if slot is None:
            return WhatIf(NIC, {}, f"no slot up to PCIe generation {_PCIE} carries {_rate(2 * rate)}")
        changes |= slot
    return WhatIf(NIC, changes)


def _slot(key: str, node: Node, rate: float) -> dict[str, object] | None:
    """Return {key: value} of a node's PCIe slots that carry NICs of twice `rate` bytes/s; {} if none is needed, else None."""
    nics = node.nics
    if nics is None or nics.attach == "integrated":
        return {}
    generation, lanes = node.host.pcie.removeprefix("gen").split("x")
    for slot in (Host(pcie=f"gen{g}x{lanes}") for g in range(int(generation), _PCIE + 1)):
        if slot.raw >= 2 * rate and slot.usable >= CUT * 2 * rate * nics.efficiency:
            wider = {f"{key}.host.pcie": slot.pcie} if slot.pcie != node.host.pcie else {}
            reached = node.host.effective
            return {**wider, **({f"{key}.host.effective": _rate(2 * reached)} if reached else {})}
    return None


def _nvlink(types: Mapping[str, Node]) -> WhatIf:
    """Return the what-if of links between the GPUs of a node that are twice as fast."""
    if all(node.gpus.count == 1 for node in types.values()):
        return WhatIf(NVLINK, {}, "a node has one GPU")
    links = {key: node.scale_up.link for key, node in types.items() if node.scale_up.kind != "none"}
    changes = {f"{key}.scale_up.link": _rate(2 * link) for key, link in links.items() if link is not None}
    return WhatIf(NVLINK, changes, "" if changes else "nothing but PCIe joins the GPUs of a node")


def _rate(value: float) -> str:
    """Return bytes/s as text for a file, with all digits."""
    short = f"{value * 8 / 1e9:.12g}Gb/s"
    return short if parse(short, "bandwidth") == value else f"{value!r}B/s"
