"""Clusters of each kind of fabric, as YAML."""

from __future__ import annotations

from clustersim.config.yaml import parse
from clustersim.topology.build import build
from clustersim.topology.model import Topology

LINK = "link: {rate: 100GB/s}"


def cluster(nodes: int, fabric: str, gpus: int = 2, nics: int = 2, scale_up: str = "", faults: str = "") -> Topology:
    node = f"{{extends: hgx-h100, gpus: {{count: {gpus}}}, nics: {{count: {nics}}}}}"
    if scale_up:
        node = f"{{gpus: {{model: h100-sxm, count: {gpus}}}, nics: {{count: {nics}, rate: 400Gb/s}}, scale_up: {scale_up}}}"
    fabric = f"fabric: {fabric}" if nodes > 1 else ""
    return build(parse(f"cluster: {{name: t, nodes: {nodes}, node: {node}}}\n{fabric}\n{faults}"))


def _plus(leaves: int, spines: int, p: int, h: int, more: str = "") -> str:
    return f"{{kind: dragonfly_plus, leaves: {leaves}, spines: {spines}, p: {p}, h: {h}, {LINK}{more}}}"


PLUS = {
    "uneven": (8, _plus(2, 3, 2, 2, ", groups: 4")),
    "one cable": (5, _plus(1, 4, 2, 1)),
    "one spine": (6, _plus(2, 1, 2, 4)),
    "static": (8, _plus(2, 2, 2, 3, ", routing: {mode: dmodk}")),
    "parallel": (6, _plus(2, 2, 2, 4, ", uplinks: 6, routing: {mode: dmodk}")),
    "hashed": (8, _plus(2, 2, 2, 3, ", routing: {mode: ecmp, qps: 3, seed: 5}")),
}

SHORTEST = {
    "torus 4 x 2": (8, f"{{kind: torus, dims: [4, 2], {LINK}}}"),
    "torus 3 x 4": (12, f"{{kind: torus, dims: [3, 4], {LINK}}}"),
    "torus 5": (5, f"{{kind: torus, dims: [5], {LINK}}}"),
    "hypercube": (8, f"{{kind: torus, dims: [2, 2, 2], {LINK}}}"),
    "open": (6, f"{{kind: torus, wrap: false, dims: [3, 2], {LINK}}}"),
    "rails": (
        8,
        "{kind: grid, rails: true, dims: [{kind: ring, size: 4, rate: 1GB/s}, {kind: switch, size: 2, rate: 1GB/s}]}",
    ),
    "mesh": (8, "{kind: grid, dims: [{kind: mesh, size: 4, rate: 1GB/s}, {kind: line, size: 2, rate: 1GB/s}]}"),
    "planes": (8, f"{{kind: fat_tree, planes: 2, tiers: [{{down: 4, up: 4}}, {{radix: 16}}], {LINK}}}"),
    "hashed planes": (
        8,
        f"{{kind: fat_tree, planes: 3, tiers: [{{down: 4, up: 4}}, {{radix: 16}}], {LINK}, routing: {{mode: ecmp, qps: 2}}}}",
    ),
    "planes of rails": (
        8,
        f"{{kind: fat_tree, rails: optimized, planes: 2, tiers: [{{down: 4, up: 4}}, {{radix: 16}}], {LINK}}}",
    ),
    "rail_only": (8, f"{{kind: rail_only, tiers: [{{radix: 16}}], {LINK}}}"),
    "rail_only with spines": (8, f"{{kind: rail_only, tiers: [{{down: 4, up: 4}}, {{radix: 16}}], {LINK}}}"),
    "leaf_spine": (8, f"{{kind: leaf_spine, tiers: [{{down: 4, up: 4}}, {{radix: 16}}], {LINK}}}"),
    "dragonfly_plus of bundles": (8, _plus(2, 2, 2, 6)),
}
SHORTEST |= {f"dragonfly_plus, {name}": case for name, case in PLUS.items()}
