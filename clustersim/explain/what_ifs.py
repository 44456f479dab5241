"""What-ifs: changes of the two files of a run, each as keys for `run --set`, or the reason why it is impossible."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from clustersim.config.topology import Fault, Host, Node, TopologySpec
from clustersim.config.yaml import Document
from clustersim.frameworks import offers
from clustersim.parallel.check import beside_microbatch
from clustersim.parallel.host import host
from clustersim.parallel.job import Job
from clustersim.schedules.check import misfit
from clustersim.sweeps.space import SCHEDULE, VPP, takes
from clustersim.topology.build import described
from clustersim.topology.specs import NodeSpecs
from clustersim.units import parse, scaled

SCHEDULES = ("zero_bubble", "interleaved", "1f1b")
"""Schedules that are tried instead of the run's own."""
NIC, NVLINK, ALL_OVERLAP, OVERLAP = "NIC × 2", "NVLink × 2", "all overlap on", "overlap of "
_PCIE = 6
"""Latest generation of PCIe in a host."""
_CUT = 0.98
"""Share of a NIC's rate that a slot must carry, else the next generation is used; as in `topology.specs`."""


class WhatIf(NamedTuple):
    """A change of a run, and the step with it once it is simulated."""

    name: str
    """Short name."""
    changes: Mapping[str, object]
    """Values by dotted key; empty if it is impossible, or if no file can express it."""
    reason: str = ""
    """Reason why it is impossible, or its description if no file can express it."""
    step_time: float | None = None
    """Seconds of the step; None if it is not simulated or impossible."""


def what_ifs(document: Document, job: Job) -> list[WhatIf]:
    """Return all what-ifs of a placed job on the cluster of a document."""
    spec, specs = described(document)
    types = _types(spec, specs)
    return [
        *_schedules(job),
        *_splits(job, int(min(node.gpus.count for node in types.values()))),
        *_healed(document.data.get("faults") or [], spec.faults),
        _host(job, types),
        _nic(document, types, specs.nodes),
        _nvlink(types),
        *_overlaps(job),
        _recompute(job),
        _micro_batch(job),
    ]


def free(changes: Mapping[str, object]) -> bool:
    """Return whether changes need no purchase: they concern the split and the computation of a step, not the cluster."""
    return bool(changes) and all(key.partition(".")[0] in ("parallelism", "training") for key in changes)


def _schedules(job: Job) -> Iterator[WhatIf]:
    """Yield other schedules of the framework that keep the number of chunks, or support more."""
    split, offered = job.parallelism, offers(job.training.framework).get(SCHEDULE)
    for name in SCHEDULES if split.pp > 1 else ():
        fits = (n for n in (split.vpp, 1, 2) if takes(name, n) and not misfit(name, split.pp, job.microbatches, n))
        chunks, known = next(fits, None), offered is None or name in offered.values
        if chunks and known and name != split.schedule.partition("/")[0]:
            more = {VPP: chunks} if chunks != split.vpp else {}
            yield WhatIf(f"schedule {name}", {SCHEDULE: name, **more})


def _splits(job: Job, gpus: int) -> Iterator[WhatIf]:
    """Yield the splits next to a job's: more tensor and fewer pipeline ranks, and the reverse."""
    split = job.parallelism
    blocks, plain = job.model.encoder_layers + job.model.layers, split.layout is None and split.first_layers is None
    for tp, pp in ((split.tp * 2, split.pp // 2), (split.tp // 2, split.pp * 2)):
        whole = tp * pp == split.tp * split.pp and tp and gpus % tp == 0 and job.model.heads % tp == 0
        if whole and plain and pp > 1 and blocks % (pp * split.vpp) == 0 and not split.expert_tp:
            more = {} if tp > 1 else {"parallelism.sequence_parallel": False}
            yield WhatIf(f"tp {tp}, pp {pp}", {"parallelism.tp": tp, "parallelism.pp": pp, **more})


def _healed(written: Sequence[Any], faults: Sequence[Fault]) -> Iterator[WhatIf]:
    """Yield the file without each of its faults; other faults stay as written."""
    for i, fault in enumerate(faults):
        rest = [one for place, one in enumerate(written) if place != i]
        yield WhatIf(f"healed: {said(fault)}", {"faults": rest})


def said(fault: Fault) -> str:
    """Return a short description of a fault."""
    name = fault.link or (f"node {fault.node}" if fault.node is not None else f"GPU {fault.gpu}")
    if fault.rate is not None:
        return f"{name} at {scaled(fault.rate, 'B/s')}"
    cables = f", {fault.cables} cables" if fault.cables else ""
    return f"{name} dead{cables}" if fault.dead else f"{name} {fault.slowdown:g} times as slow"


def _types(spec: TopologySpec, specs: NodeSpecs) -> dict[str, Node]:
    """Return the node types of the file by their keys: one, or one per pool."""
    if not spec.cluster.pools:
        return {"cluster.node": specs.node}
    ends = list(accumulate(part.nodes for part in specs.parts))
    begins = accumulate((pool.nodes for pool in spec.cluster.pools[:-1]), initial=0)
    return {f"cluster.pools.{i}.node": specs.parts[bisect_right(ends, begin)].node for i, begin in enumerate(begins)}


def _host(job: Job, types: Mapping[str, Node]) -> WhatIf:
    name = "host twice as fast"
    if host(job, next(iter(types.values())).host.slowdown) is None:
        return WhatIf(name, {}, "no training.framework is named, so the host is never late")
    return WhatIf(name, {f"{key}.host.slowdown": node.host.slowdown / 2 for key, node in types.items()})


def _nic(document: Document, types: Mapping[str, Node], nodes: int) -> WhatIf:
    """Return the what-if of NICs and cables with twice the rate, in the slots that such NICs need."""
    name = NIC
    rates = [node.nics.rate for node in types.values() if node.nics]
    if not rates or nodes == 1:
        return WhatIf(name, {}, "one node sends nothing through a NIC")
    if len(set(rates)) == 1:
        changes: dict[str, object] = {"cluster.nic": _rate(2 * rates[0])}
    else:
        changes = {f"{key}.nics.rate": _rate(2 * rate) for key, rate in zip(types, rates, strict=True)}
        link = (document.data.get("fabric") or {}).get("link")
        if isinstance(link, Mapping) and "rate" in link:
            changes["fabric.link.rate"] = _rate(2 * parse(link["rate"], "bandwidth"))
    for (key, node), rate in zip(types.items(), rates, strict=True):
        slot = _slot(key, node, rate)
        if slot is None:
            return WhatIf(name, {}, f"no slot up to PCIe generation {_PCIE} carries {_rate(2 * rate)}")
        changes |= slot
    return WhatIf(name, changes)


def _slot(key: str, node: Node, rate: float) -> dict[str, object] | None:
    """Return the changes of a node for NICs with twice a rate; None if no slot carries that. key: of the node."""
    nics = node.nics
    if nics is None or nics.attach == "integrated":
        return {}
    generation, lanes = node.host.pcie.removeprefix("gen").split("x")
    for slot in (Host(pcie=f"gen{g}x{lanes}") for g in range(int(generation), _PCIE + 1)):
        if slot.raw >= 2 * rate and slot.usable >= _CUT * 2 * rate * nics.efficiency:
            wider = {f"{key}.host.pcie": slot.pcie} if slot.pcie != node.host.pcie else {}
            reached = node.host.effective
            return {**wider, **({f"{key}.host.effective": _rate(2 * reached)} if reached else {})}
    return None


def _nvlink(types: Mapping[str, Node]) -> WhatIf:
    name = NVLINK
    if all(node.gpus.count == 1 for node in types.values()):
        return WhatIf(name, {}, "a node has one GPU")
    links = {key: node.scale_up.link for key, node in types.items() if node.scale_up.kind != "none"}
    changes = {f"{key}.scale_up.link": _rate(2 * link) for key, link in links.items() if link is not None}
    return WhatIf(name, changes, "" if changes else "nothing but PCIe joins the GPUs of a node")


def _rate(value: float) -> str:
    """Return bytes/s as text for a file, with all digits."""
    short = f"{value * 8 / 1e9:.12g}Gb/s"
    return short if parse(short, "bandwidth") == value else f"{value!r}B/s"


def _overlaps(job: Job) -> Iterator[WhatIf]:
    """Yield each kind of communication that could overlap computation but does not."""
    split = job.parallelism
    wanted = {
        "grad_reduce": (max(job.copies(False), job.copies(True)) > 1 and split.zero < 3, True),
        "param_gather": (split.zero in (1, 2) and max(job.copies(False), job.copies(True)) > 1, True),
        "p2p": (split.pp > 1, True),
        "tp": (split.tp > 1, "ring" if split.sequence_parallel else "bulk"),
        "ep": (not list(beside_microbatch(job)), "microbatch"),
    }
    found = {f"parallelism.overlap.{key}": value for key, (of_use, value) in wanted.items() if of_use}
    off = {
        key: value for key, value in found.items() if getattr(split.overlap, key.rpartition(".")[2]) in (False, "none")
    }
    if not off:
        why = "all overlap is on" if found else "there is no communication that could overlap computation"
        yield WhatIf("overlap on", {}, why)
    yield from (WhatIf(f"{OVERLAP}{key.rpartition('.')[2]} on", {key: value}) for key, value in off.items())
    if len(off) > 1:
        yield WhatIf(ALL_OVERLAP, off)


def _recompute(job: Job) -> WhatIf:
    name, training = "recompute off", job.training
    if training.recompute == "none":
        return WhatIf(name, {}, "nothing is recomputed")
    changes: dict[str, object] = {"training.recompute": "none"}
    changes |= {"training.recompute_modules": []} if training.recompute_modules else {}
    changes |= {"training.recompute_saves": []} if training.recompute_saves else {}
    changes |= {
        f"training.{key}": None for key in ("recompute_layers", "recompute_every") if getattr(training, key) is not None
    }
    return WhatIf(name, changes)


def _micro_batch(job: Job) -> WhatIf:
    name = "micro-batch × 2"
    if job.microbatches == 1:
        return WhatIf(name, {}, "a replica takes all of its sequences at once already")
    return WhatIf(name, {"training.micro_batch": 2 * job.training.micro_batch})
