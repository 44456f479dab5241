"""An algorithm of clustersim/collectives that NCCL does not have: launch, rounds of the slowest hop, bytes on the links."""

from __future__ import annotations

import math

import numpy as np

from clustersim.collectives.levels import fanouts
from clustersim.collectives.loads import idle
from clustersim.collectives.model import phases
from clustersim.collectives.nccl.choose import Choice
from clustersim.collectives.switched import fitted
from clustersim.errors import InputError
from clustersim.topology.memo import fingerprint
from clustersim.topology.model import Ints, Topology
from clustersim.topology.rows import distinct

NO_PROTOCOL = "-"


def named(topology: Topology, ranks: Ints, op: str, algorithm: str, shares: tuple[float, ...]) -> Choice:
    """Return what `algorithm` does over GPUs `ranks` (n,), as a step whose workload names it does on an idle fabric.

    Raises InputError for fewer than two GPUs, an operation the algorithm cannot do, and a cluster that lacks its switches.
    """
    if len(ranks) < 2:
        raise InputError("a collective needs two GPUs or more; one has nobody to send to")
    question = ("named", fingerprint(ranks), op, algorithm, shares)
    return topology.memo.once(question, lambda: _named(topology, np.asarray(ranks)[None], op, algorithm, shares))


def _named(topology: Topology, gpus: Ints, op: str, algorithm: str, shares: tuple[float, ...]) -> Choice:
    upwards = fanouts(distinct(gpus[0] // topology.gpus_per_node), topology)
    group = fitted(topology, algorithm, (op,), gpus, upwards, shares)
    parts = phases(algorithm, op, group)
    found = [idle(topology, gpus, part) for part in parts]
    delay = math.fsum(float(one.latency[0]) for one in found)
    rate = 1 / math.fsum(1 / float(one.bound[0]) for one in found)
    why = f"{algorithm} as named, in {math.fsum(part.rounds for part in parts):g} rounds, with no protocol of NCCL"
    return Choice(algorithm, NO_PROTOCOL, 0, delay, rate, algorithm, why)
