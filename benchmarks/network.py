"""Speed of the network model: routing, sharing and folding at 30,720 GPUs, warm: CPU time, best of five.

The last column is the time over that of a reference, a pass over 16 million numbers in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from clustersim.collectives.model import Group, phases
from clustersim.config.yaml import parse, read
from clustersim.engine.compile import Work
from clustersim.engine.flows import solve
from clustersim.engine.groups import tenant
from clustersim.engine.network import demand, folded, networks
from clustersim.engine.refinement import partition
from clustersim.engine.script import collectives
from clustersim.engine.traffic import Family, Traffic, scarce
from clustersim.engine.traffic import traffic as traffic_of
from clustersim.model.sharding import zipf_shares
from clustersim.parallel.load import build as build_job
from clustersim.simulation import Simulator
from clustersim.topology.build import build, load
from clustersim.topology.model import Topology

TOPOLOGIES = Path(__file__).parent.parent / "topologies"
WORKLOADS = TOPOLOGIES.parent / "workloads"
REPEATS = 5


def best(work: Callable[[], object]) -> float:
    """Return the least of five CPU times in seconds; other programs do not count."""
    times = []
    for _ in range(REPEATS):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return min(times)


def traffic(cluster: Topology, family: Family, op: str) -> tuple[Traffic, ...]:
    """Return what a collective puts on links by the algorithm that its family names."""
    group = Group(family.ranks.shape[1], family.levels, family.shares)
    return traffic_of(cluster, family, op, phases(family.algorithm, op, group))


def all_reduce(cluster: Topology, algorithm: str, levels: tuple[int, ...]) -> float:
    """Route one all-reduce over every GPU, find what can be short, and return its seconds for 1 GB."""
    ranks = np.arange(cluster.gpus)[None, :]
    parts = traffic(cluster, Family("dp", ranks, levels, algorithm), "all_reduce")
    scarce(cluster, parts)
    return sum(float(p.latency[0] + 1e9 / p.bound[0]) for p in parts)


def all_to_all(cluster: Topology, groups: int, op: str = "all_to_all", imbalance: float = 1.0) -> float:
    """Route an all-to-all in each of so many equal groups of neighbours, and return the seconds of the first for 1 GB."""
    ranks = np.arange(cluster.gpus).reshape(groups, -1)
    n = ranks.shape[1]
    [part] = traffic(cluster, Family("ep", ranks, (n,), "direct", shares=zipf_shares(n, imbalance)), op)
    scarce(cluster, [part])
    return float(part.latency[0] + 1e9 / part.bound[0])


def hops(cluster: Topology) -> None:
    """Share links among 8 rails × 3,840 nodes of independent ring hops."""
    ranks = np.arange(cluster.gpus)
    routes = cluster.route(ranks, (ranks + cluster.gpus_per_node) % cluster.gpus)
    variable = np.repeat(ranks, np.diff(routes.start))
    solve(variable, routes.links, routes.share, np.full(cluster.gpus, 48e9), cluster.capacity)


def rings(cluster: Topology, order: np.ndarray) -> None:
    """Route, fold and share 128 data-parallel rings of 240 GPUs at once, their nodes in random order."""
    family = Family("dp", order.reshape(128, 240), (240,), "ring")
    parts = traffic(cluster, family, "all_reduce")
    links, held = scarce(cluster, parts)
    partition(np.zeros(cluster.gpus, np.int64), [family], parts, held, cluster.capacity[links])
    solve(held[0].group, held[0].link, held[0].weight, parts[0].bound, cluster.capacity[links])


def placed(cluster: Topology, work: Work) -> None:
    """Find what a job puts on links, which ranks are alike and what these see of the network."""
    loads = demand(cluster, [tenant(work.job, cluster, work.gpus, collectives(work.scripts))])
    networks(loads, folded(loads))


def prepared(cluster: Topology, changes: Mapping[str, object]) -> Work:
    """Return GPT-3 175B as `changes` split it, on all of a cluster."""
    job = build_job(read(WORKLOADS / "gpt3.yaml"), changes).place(cluster.gpus, cluster.gpus_per_node)
    return Simulator(cluster).prepare(job, np.arange(job.mesh.size), ignore_memory=True)[0]


def main() -> None:
    """Print one line a case."""
    path = TOPOLOGIES / "fattree_3840.yaml"
    cluster = load(path)
    text = path.read_text(encoding="utf-8")
    hashed = text.replace("mode: adaptive", "mode: ecmp, qps: 1, seed: 1")
    ecmp = build(parse(hashed, "ecmp.yaml"))
    static = build(parse(text.replace("mode: adaptive", "mode: dmodk"), "dmodk.yaml"))
    torus = load(TOPOLOGIES / "torus_4096.yaml")
    nodes = np.random.default_rng(0).permutation(3840)
    order = (nodes.reshape(16, 240)[:, None, :] * 8 + np.arange(8)[None, :, None]).reshape(128, 240)
    pod = load(TOPOLOGIES / "superpod_h100_128.yaml")
    gpt, small = prepared(cluster, {}), prepared(pod, {"training.global_batch": 1536})
    cases: dict[str, Callable[[], object]] = {
        "build fattree_3840.yaml": lambda: load(path),
        "gpt3.yaml meets 30,720 GPUs": lambda: placed(replace(cluster), gpt),  # with a memo that is empty
        "the same again": lambda: placed(cluster, gpt),
        "gpt3.yaml meets 1,024 GPUs": lambda: placed(replace(pod), small),
        "gpt3.yaml on 1,024 GPUs again": lambda: placed(pod, small),
        "route 57,600 pairs": lambda: cluster.route(np.arange(30720).repeat(2)[:57600], np.arange(57600)[::-1] % 30720),
        "all-reduce of 1 GB over 30,720 GPUs, ring": lambda: all_reduce(cluster, "ring", (cluster.gpus,)),
        "the same, a ring a rail as NCCL": lambda: all_reduce(cluster, "rail_ring", (8, 3840)),
        "the same, NVLSTree (NCCL's choice)": lambda: all_reduce(cluster, "nvls_tree", (8, 3840)),
        "the same, trees a rail": lambda: all_reduce(cluster, "rail_tree", (8, 3840)),
        "the same, NVLS and SHARP": lambda: all_reduce(cluster, "nvls", (8, 3840)),
        "the same, CollNet direct": lambda: all_reduce(cluster, "collnet_direct", (8, 3840)),
        "the same, CollNet chain": lambda: all_reduce(cluster, "collnet_chain", (8, 3840)),
        "the same, hierarchical": lambda: all_reduce(cluster, "hierarchical", (8, 3840)),
        "all-to-all over 30,720 GPUs": lambda: all_to_all(cluster, 1),
        "the same, static routes (D-mod-k)": lambda: all_to_all(static, 1),
        "dispatch with an imbalance of 4": lambda: all_to_all(cluster, 1, "dispatch", 4.0),
        "all-to-all in 3,840 groups of 8": lambda: all_to_all(cluster, 3840),
        "all-to-all in 480 groups of 64": lambda: all_to_all(cluster, 480),
        "all-to-all in 480 groups of 64, ECMP": lambda: all_to_all(ecmp, 480),
        "all-to-all over a torus of 4,096": lambda: all_to_all(torus, 1),
        "8 rails × 3,840 nodes, hops apart": lambda: hops(cluster),
        "128 rings of 240 in random order, ECMP": lambda: rings(ecmp, order),
        "128 rings of 240 in random order, adaptive": lambda: rings(cluster, order),
    }
    numbers = np.arange(16_000_000.0)
    reference = best(lambda: numbers + 1.0)
    for name, work in cases.items():
        took = best(work)
        print(f"{name:<45} {1e3 * took:8.2f} ms {took / reference:7.2f}")


if __name__ == "__main__":
    main()
