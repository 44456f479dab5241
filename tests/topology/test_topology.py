"""Clusters from YAML: published switch counts, capacities, latencies, faults."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clustersim.config.yaml import parse
from clustersim.topology.build import build, load, preset, presets
from clustersim.topology.describe import describe

SHIPPED = sorted(Path("topologies").glob("*.yaml"))
SUPERPOD = """
cluster: {{name: pod, nodes: {nodes}, node: hgx-h100}}
fabric:
  kind: rail_optimized
  scalable_unit: 32
  tiers: {tiers}
  link: {{rate: 400Gb/s}}
  routing: {{mode: {mode}}}
"""


def superpod(nodes: int, tiers: int, mode: str = "adaptive"):
    return build(parse(SUPERPOD.format(nodes=nodes, tiers="[" + ", ".join(["{radix: 64}"] * tiers) + "]", mode=mode)))


def test_the_large_trees() -> None:
    wide, narrow = load("topologies/fattree_3840.yaml"), load("topologies/fattree_3840_100g.yaml")
    assert wide.counts["cables"] == 92_160
    assert wide.gpus == narrow.gpus == 30_720
    assert [wide.counts[f"{tier}_switches"] for tier in ("leaf", "spine", "core")] == [960, 960, 480]
    assert [narrow.counts[f"{tier}_switches"] for tier in ("leaf", "spine", "core")] == [240, 240, 120]
    assert narrow.fanouts == (16, 16, 15)
    assert wide.fanouts == (32, 4, 30)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_topology_loads_routes_and_describes_itself(path: Path) -> None:
    topology = load(path)
    assert path.read_text().startswith("# ")
    assert math.prod(topology.fanouts) == topology.nodes
    assert topology.counts["gpus"] == topology.gpus
    assert (topology.capacity > 0).all()
    gpus = np.arange(topology.gpus)
    with np.errstate(all="raise"):
        routes = topology.route(gpus, gpus[::-1])
    assert routes.start[-1] == len(routes.links) == len(routes.share)
    assert routes.links.max() < len(topology.capacity)
    assert dict(describe(topology))["nodes"] == f"{topology.nodes:,}"
    assert topology.link_name(len(topology.capacity) - 1).endswith("]")


@pytest.mark.parametrize(
    ("nodes", "fanouts"), [(1, (1,)), (4, (4,)), (384, (4, 96)), (768, (4, 96, 2)), (3840, (4, 96, 2, 5))]
)
def test_fanouts_of_the_neusight_clusters(nodes: int, fanouts: tuple[int, ...]) -> None:
    topology = load(f"topologies/neusight_{nodes}.yaml")
    assert topology.fanouts == fanouts
    assert topology.capacity[0] == pytest.approx(324 * 2**30)
    assert topology.launch == 0
    assert topology.latency.max() == 0
    if nodes > 1:
        nic = next(tier for tier in topology.tiers if tier.name == "nic-up")
        assert topology.capacity[nic.first] == 12.5 * 2**30


def test_partly_filled_groups_round_the_fanouts_up() -> None:
    assert superpod(100, 2).fanouts == (32, 4)


def test_rates_and_latencies_of_a_node() -> None:
    topology = load("topologies/superpod_h100_128.yaml")
    first = {tier.name: tier.first for tier in topology.tiers}
    assert topology.capacity[first["nvlink-up"]] == pytest.approx(18 * 25e9 * 0.824)
    assert topology.capacity[first["nic-up"]] == 48e9  # PCIe holds 50 GB/s of line rate at 48
    assert topology.latency[first["nvlink-up"]] == pytest.approx(1.7e-6)
    assert topology.latency[first["nic-up"]] == pytest.approx(7e-6)
    assert topology.latency[first["leaf-up"]] == pytest.approx(250e-9 + 30 * 5e-9)
    assert topology.capacity[first["leaf-up"]] == 32 * 50e9
    assert topology.launch == pytest.approx(8.4e-6)


def test_nvl72_counts() -> None:
    counts = load("topologies/nvl72_16.yaml").counts
    assert (counts["leaf_switches"], counts["spine_switches"]) == (36, 18)


def test_presets_all_load() -> None:
    for name in presets():
        topology = build(parse(f"cluster: {{nodes: 1, node: {name}}}"))
        assert topology.gpus == preset(name)["gpus"]["count"] >= 4


FAULTY = SUPERPOD + "faults: {faults}\n"


def faulty(faults: str):
    return build(parse(FAULTY.format(nodes=64, tiers="[{radix: 64}, {radix: 64}]", mode="dmodk", faults=faults)))


@pytest.mark.parametrize("node", sorted(presets()))
def test_one_gpu_of_each_node_runs_alone(node: str) -> None:
    alone = f"{{extends: {node}, gpus: {{count: 1}}, scale_up: {{kind: none}}, nics: {{count: 1}}}}"
    topology = build(parse(f"cluster: {{nodes: 1, node: {alone}}}"))
    assert topology.gpus == 1
    assert dict(describe(topology))["GPUs"].startswith("1 × ")
    assert len(topology.route(np.array([0]), np.array([0])).links) == 0


def test_faults_slow_what_they_name_and_nothing_else() -> None:
    sound = superpod(64, 2, "dmodk")
    topology = faulty('[{link: "nic[77]", rate: 100Gb/s}, {node: 12, slowdown: 1.1}, {gpu: 97, slowdown: 1.2}]')
    changed = np.flatnonzero(topology.capacity != sound.capacity)
    assert [topology.link_name(int(link)) for link in changed] == ["nic-up[77]", "nic-down[77]"]
    assert (topology.capacity[changed] == 12.5e9).all()
    assert np.flatnonzero(topology.slowdown != 1).tolist() == list(range(96, 104))
    assert topology.slowdown[97] == pytest.approx(1.1 * 1.2)
    assert (sound.slowdown == 1).all()


def test_a_fault_of_one_direction() -> None:
    topology = faulty('[{link: "leaf-up[3]", rate: 1Gb/s}]')
    assert topology.link_name(int(topology.capacity.argmin())) == "leaf-up[3]"
    assert (topology.capacity == topology.capacity.min()).sum() == 1


def test_a_generated_cluster_needs_no_heavy_library() -> None:
    code = "import sys; from clustersim.topology.build import load; load('topologies/torus_4096.yaml'); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"networkx", "torch", "polars", "rich", "simpy", "xml.etree.ElementTree", "clustersim.figures.cluster"}
    assert not heavy & set(modules)


def test_the_power_of_the_nodes_is_their_maximum() -> None:
    assert load("topologies/superpod_h100_128.yaml").counts["power"] == 128 * 10.2e3


def test_a_million_gpus_are_described():
    nodes = 125_000
    topology = build(
        parse(f"cluster: {{nodes: {nodes}, node: hgx-h100}}\nfabric: {{kind: switch, link: {{rate: 400Gb/s}}}}")
    )
    rows = dict(describe(topology))
    assert rows["GPUs"].startswith(f"{8 * nodes:,} ")
    assert rows["diameter"] == "2 links, 14 us from GPU to GPU when idle (from a sample of GPUs)"
