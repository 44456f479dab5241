"""Every kind of fabric, with every kind of fault."""

from __future__ import annotations

from clustersim.config.yaml import parse
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

TIER = {"torus": "x", "grid": "dim0", "planes": "port", "hashed planes": "port", "dragonfly": "global"}
TIER |= dict.fromkeys(("sparse dragonfly_plus", "hashed dragonfly_plus"), "global")
TIER |= dict.fromkeys(("explicit", "hashed explicit", "first explicit"), "trunk")


def cluster(fabric: str, fault: str, inside: str, nodes: int = 8, gpus: int = 4) -> Topology:
    faults = ", ".join(FAULTS[fault]).replace("%", TIER.get(fabric, "leaf"))
    node = f"{{gpus: {{model: h100-sxm, count: {gpus}}}, scale_up: {INSIDE[inside]}, nics: {{count: {gpus}, rate: 400Gb/s}}}}"
    return build(
        parse(f"cluster: {{name: t, nodes: {nodes}, node: {node}}}\nfabric: {FABRICS[fabric]}\nfaults: [{faults}]")
    )


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
