"""Folded = unfolded on every kind of fabric, with every kind of fault."""

from __future__ import annotations

import pytest
from engine_cases import simulate
from examples import examples
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from test_folding import same

from clustersim.config.yaml import parse
from clustersim.errors import ConfigError
from clustersim.topology.build import build
from clustersim.topology.model import Topology

LINK = "link: {rate: 400Gb/s}"
TIERS = "tiers: [{down: 4, up: 4}, {radix: 16}]"
THREE = "tiers: [{down: 4, up: 4}, {radix: 4, pod: 2}, {radix: 16}]"
FABRICS = {
    "switch": f"{{kind: switch, {LINK}}}",
    "bundles": f"{{kind: fat_tree, {THREE}, {LINK}}}",
    "static": f"{{kind: fat_tree, {THREE}, {LINK}, routing: {{mode: dmodk}}}}",
    "hashed": f"{{kind: fat_tree, {THREE}, {LINK}, routing: {{mode: ecmp, qps: 2, seed: 3}}}}",
    "leaf_spine": f"{{kind: leaf_spine, {TIERS}, {LINK}}}",
    "rail_optimized": f"{{kind: rail_optimized, scalable_unit: 2, {TIERS}, {LINK}}}",
    "rail_only": f"{{kind: rail_only, {TIERS}, {LINK}}}",
    "planes": f"{{kind: fat_tree, planes: 2, {TIERS}, link: {{rate: 200Gb/s}}}}",
    "hashed planes": f"{{kind: fat_tree, planes: 2, {TIERS}, link: {{rate: 200Gb/s}}, routing: {{mode: ecmp, seed: 1}}}}",
    "dragonfly": f"{{kind: dragonfly, a: 2, p: 4, h: 2, {LINK}}}",
    "dragonfly_plus": f"{{kind: dragonfly_plus, leaves: 2, spines: 2, p: 4, h: 3, {LINK}}}",
    "sparse dragonfly_plus": f"{{kind: dragonfly_plus, leaves: 1, spines: 4, p: 4, h: 2, groups: 9, {LINK}}}",
    "static dragonfly_plus": f"{{kind: dragonfly_plus, leaves: 2, spines: 2, p: 4, h: 3, {LINK}, routing: {{mode: dmodk}}}}",
    "hashed dragonfly_plus": (
        f"{{kind: dragonfly_plus, leaves: 2, spines: 2, p: 4, h: 3, {LINK}, routing: {{mode: ecmp, qps: 2}}}}"
    ),
    "torus": f"{{kind: torus, dims: [4, 2], {LINK}}}",
    "grid": "{kind: grid, rails: true, dims: [{kind: mesh, size: 4, rate: 50GB/s}, {kind: switch, size: 2, rate: 25GB/s}]}",
}
_HOSTS = ", ".join(f"{{a: 'node[{n}]', b: l{n // 2}, rate: 400Gb/s}}" for n in range(8))
_TRUNKS = ", ".join(
    f"{{a: l{leaf}, b: s{spine}, rate: {100 * (spine + 1)}Gb/s, latency: 300ns, count: 2}}"
    for leaf in range(4)
    for spine in range(3)
)
_GRAPH = f"{{kind: explicit, nodes: [l0, l1, l2, l3, s0, s1, s2], links: [{_HOSTS}, {_TRUNKS}]"
FABRICS |= {
    "explicit": f"{_GRAPH}}}",
    "hashed explicit": f"{_GRAPH}, routing: {{mode: ecmp, qps: 2, seed: 1}}}}",
    "first explicit": f"{_GRAPH}, routing: {{mode: first}}}}",
}
FAULTS = {
    "none": [],
    "slow GPU": ["{gpu: 1, slowdown: 1.3}"],
    "slow node": ["{node: 0, slowdown: 1.1}"],
    "slow NIC": ["{link: 'nic-up[1]', rate: 100Gb/s}"],
    "dead NIC": ["{link: 'nic[1]', dead: true}"],
    "dead nodes": ["{node: 1, dead: true}", "{node: 4, dead: true}", "{node: 5, dead: true}", "{node: 6, dead: true}"],
    "degraded": ["{link: '%[0]', rate: 10GB/s}"],
    "dead": ["{link: '%[0]', dead: true}"],
    "dead and slow": ["{link: '%[0]', dead: true}", "{link: '%[1]', rate: 10GB/s}", "{gpu: 7, slowdown: 1.2}"],
}
INSIDE = {
    "nvswitch": "{kind: nvswitch, links_per_gpu: 18, link: 20GB/s}",
    "mesh": "{kind: mesh, link: 64GB/s}",
    "ring": "{kind: ring, link: 64GB/s}",
    "torus": "{kind: torus, shape: [2, 2], link: 64GB/s}",
    "none": "{kind: none}",
}
TIER = {
    "torus": "x",
    "dragonfly": "global",
    "sparse dragonfly_plus": "global",
    "hashed dragonfly_plus": "global",
    "grid": "dim0",
    "planes": "port",
    "hashed planes": "port",
    "explicit": "trunk",
    "hashed explicit": "trunk",
    "first explicit": "trunk",
}


def cluster(fabric: str, fault: str, inside: str, nodes: int = 8, gpus: int = 4) -> Topology:
    faults = ", ".join(FAULTS[fault]).replace("%", TIER.get(fabric, "leaf"))
    node = f"{{gpus: {{model: h100-sxm, count: {gpus}}}, scale_up: {INSIDE[inside]}, nics: {{count: {gpus}, rate: 400Gb/s}}}}"
    return build(
        parse(f"cluster: {{name: t, nodes: {nodes}, node: {node}}}\nfabric: {FABRICS[fabric]}\nfaults: [{faults}]")
    )


@settings(
    max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(
    fabric=st.sampled_from(sorted(FABRICS)),
    fault=st.sampled_from(sorted(FAULTS)),
    inside=st.sampled_from(sorted(INSIDE)),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4]),
    overlap=st.booleans(),
    algorithm=st.sampled_from(["ring", "tree", "hierarchical", "direct"]),
)
def test_folded_equals_unfolded(fabric, fault, inside, tp, pp, overlap, algorithm):
    assume(fabric != "switch" or "%" not in str(FAULTS[fault]))
    assume(fabric != "rail_only" or inside != "none")
    topology = cluster(fabric, fault, inside)
    assume(topology.gpus % (tp * pp) == 0)
    options = {
        "parallelism__tp": tp,
        "parallelism__pp": pp,
        "training__global_batch": topology.gpus,
        "parallelism__algorithms__dp": algorithm,
        "parallelism__overlap__grad_reduce": overlap,
        "parallelism__bucket": 1_000_000,
    }
    same(simulate(topology, **options), simulate(topology, fold=False, **options))


@pytest.mark.parametrize("fabric", sorted(FABRICS))
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_every_kind_takes_every_fault(fabric, fault):
    if fabric == "switch" and "%" in str(FAULTS[fault]):
        with pytest.raises(ConfigError, match="is no link"):
            cluster(fabric, fault, "nvswitch")
        return
    cluster(fabric, fault, "nvswitch")


@pytest.mark.slow
@pytest.mark.parametrize(
    "fabric", [f for f in sorted(FABRICS) if "radix: 16" in FABRICS[f] and f not in ("bundles", "static", "hashed")]
)
def test_folded_equals_unfolded_on_512_gpus(fabric, monkeypatch):
    monkeypatch.setitem(FABRICS, fabric, FABRICS[fabric].replace("radix: 16", "radix: 256"))
    topology = cluster(fabric, "slow GPU", "nvswitch", nodes=64, gpus=8)
    options = {"parallelism__tp": 4, "parallelism__pp": 4, "training__global_batch": 128}
    same(simulate(topology, **options), simulate(topology, fold=False, **options))


_WIDE_HOSTS = ", ".join(f'{{a: "node[{n}]", b: l{n // 8}, rate: 400Gb/s}}' for n in range(64))
_WIDE_TRUNKS = ", ".join(f"{{a: l{i}, b: s{j}, rate: 400Gb/s, count: 8}}" for i in range(8) for j in range(3))
_WIDE = f"{{kind: explicit, nodes: [{', '.join(f'l{i}' for i in range(8))}, s0, s1, s2], links: [{_WIDE_HOSTS}, {_WIDE_TRUNKS}]"
LARGE = {
    "explicit": f"{_WIDE}}}",
    "hashed explicit": f"{_WIDE}, routing: {{mode: ecmp, qps: 2, seed: 1}}}}",
    "first explicit": f"{_WIDE}, routing: {{mode: first}}}}",
    "torus": f"{{kind: torus, dims: [4, 4, 4], {LINK}}}",
    "grid": "{kind: grid, rails: true, dims: [{kind: ring, size: 8, rate: 25GB/s}, {kind: mesh, size: 8, rate: 25GB/s}]}",
    "dragonfly": f"{{kind: dragonfly, a: 8, p: 4, h: 4, {LINK}}}",
    "dragonfly_plus": f"{{kind: dragonfly_plus, leaves: 8, spines: 8, p: 8, h: 7, {LINK}}}",
    "sparse dragonfly_plus": f"{{kind: dragonfly_plus, leaves: 4, spines: 4, p: 8, h: 4, groups: 17, {LINK}}}",
    "static dragonfly_plus": f"{{kind: dragonfly_plus, leaves: 8, spines: 8, p: 8, h: 7, {LINK}, routing: {{mode: dmodk}}}}",
    "hashed dragonfly_plus": (
        f"{{kind: dragonfly_plus, leaves: 8, spines: 8, p: 8, h: 7, {LINK}, routing: {{mode: ecmp, qps: 2}}}}"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fabric", sorted(LARGE))
@pytest.mark.parametrize("fault", ["none", "dead and slow"])
def test_folded_equals_unfolded_on_512_gpus_without_tiers(fabric, fault, monkeypatch):
    monkeypatch.setitem(FABRICS, fabric, LARGE[fabric])
    topology = cluster(fabric, fault, "nvswitch", nodes=64, gpus=8)
    options = {"parallelism__tp": 4, "parallelism__pp": 4, "training__global_batch": 128}
    same(simulate(topology, **options), simulate(topology, fold=False, **options))
