"""Small clusters and jobs for the tests of the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clustersim.collectives.model import Group, phases
from clustersim.config.yaml import parse
from clustersim.engine import traffic as engine_traffic
from clustersim.engine.network import Network, Tenant, demand, folded, networks
from clustersim.engine.traffic import Family, Traffic
from clustersim.parallel import load as workloads
from clustersim.simulation import StepResult, run
from clustersim.topology import build as topologies
from clustersim.topology.model import Topology

MODEL = """
name: small
predictor: roofline
model: {layers: 8, hidden: 512, heads: 8, vocab: 1024}
training: {global_batch: 16, micro_batch: 1, seq: 256}
parallelism: {tp: 1, pp: 1}
"""


def cluster(
    nodes: int,
    gpus: int = 4,
    nics: int = 4,
    attach: str = "per_gpu",
    fabric: str = "{kind: fat_tree, rails: none, tiers: [{radix: 64}], link: {rate: 400Gb/s}, routing: {mode: adaptive}}",
    extra: str = "",
    gpu: str = "h100-sxm",
) -> Topology:
    """Return a cluster of `nodes` nodes from YAML text."""
    text = f"""
cluster:
  name: test
  nodes: {nodes}
  node:
    extends: hgx-h100
    gpus: {{model: {gpu}, count: {gpus}}}
    nics: {{count: {nics}, rate: 400Gb/s, attach: {attach}}}
{f"fabric: {fabric}" if nodes > 1 else ""}
{extra}
"""
    return topologies.build(parse(text, "test.yaml"))


def job(**overrides: Any) -> Any:
    """Return the small job; keyword names are dotted keys with __ for the dot."""
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    return workloads.build(parse(MODEL, "job.yaml"), changes)


def simulate(topology: Topology, fold: bool = True, **overrides: Any) -> StepResult:
    """Simulate the small job."""
    return run(topology, job(**overrides), fold=fold, ignore_memory=True)


ROOT = Path(__file__).parents[2]


def all_links(topology: Topology, tenants: list[Tenant], fold: bool = True) -> tuple[Network, ...]:
    """Return the networks of jobs on all links that could be short."""
    found = demand(topology, tenants)
    return networks(found, folded(found, fold))


def traffic(topology: Topology, family: Family, op: str) -> tuple[Traffic, ...]:
    """Return what collective `op` puts on links in the groups of a family, by the algorithm that the family names."""
    group = Group(family.ranks.shape[1], family.levels, family.shares)
    return engine_traffic.traffic(topology, family, op, phases(family.algorithm, op, group))
