"""Broken topology files: one sentence with the place and the remedy."""

from __future__ import annotations

import pytest

from clustersim.config.yaml import parse
from clustersim.errors import ConfigError
from clustersim.topology.build import build

NODE = "cluster: {nodes: 4, node: hgx-h100}\n"
LINK = "link: {rate: 400Gb/s}"


def tree(tiers: str, more: str = "", nodes: str = NODE) -> str:
    return f"{nodes}fabric: {{kind: fat_tree, tiers: {tiers}, {LINK}{more}}}\n"


def explicit(nodes: str, links: str) -> str:
    site = "cluster: {nodes: 2, node: {extends: hgx-h100, gpus: {count: 1}, nics: {count: 1}}}\n"
    return f"{site}fabric:\n  kind: explicit\n  nodes: {nodes}\n  links: {links}\n"


def fabric(text: str, nodes: str = NODE) -> str:
    return f"{nodes}fabric: {text}\n"


def plus(more: str, spines: int = 2, p: int = 4, h: int = 3) -> str:
    return fabric(
        f"{{kind: dragonfly_plus, leaves: 2, spines: {spines}, p: {p}, h: {h}, {LINK}{', ' * bool(more)}{more}}}"
    )


def inside(scale_up: str, gpus: int) -> str:
    return f"cluster: {{nodes: 1, node: {{gpus: {{model: h100-sxm, count: {gpus}}}, scale_up: {scale_up}}}}}"


DEAD = ", ".join(f"{{{part}, dead: true}}" for part in ("node: 0", "node: 1", "node: 2", "gpu: 31"))
NIC0, NIC1 = "{a: 'nic[0]', b: s0, rate: 1GB/s}", "{a: 'nic[1]', b: s1, rate: 1GB/s}"

CASES = {
    "cluster: {nodes: 10000000, node: hgx-h100}": "1: 80000000 GPUs; at most 2097152",
    "cluster: {nodes: 1, node: hgx-h10}": "1: unknown node type 'hgx-h10'; did you mean 'hgx-h100'?",
    "cluster: {nodes: 1, node: a}\nnodes:\n  a: {extends: b}\n  b: {extends: a}": "4: extends itself",
    "cluster:\n  nodes: 1\n  node:\n    extends: hgx-h100\n    gpus: {model: h100-sx}": "5: unknown GPU 'h100-sx'",
    NODE: "1: 4 nodes need a network between them; add `fabric:`",
    NODE
    + "fabric: {tiers: []}": "2: fabric.kind is missing; add one of dragonfly, dragonfly_plus, explicit, fat_tree, grid",
    tree("[]"): "2: fabric.tiers: has 0 entries; write 1 to 5",
    tree("[{name: leaf}]"): "2: leaf needs its number of ports; add radix",
    tree("[{radix: 8, down: 8, up: 8}, {radix: 64}]"): "2: 8 ports down and 8 up do not fit into radix 8",
    tree("[{radix: 8}]"): "2: nothing joins them; add a tier",
    tree("[{down: 4, up: 2}, {radix: 4}]"): "2: but a leaf has only 2 uplinks to reach them",
    tree("[{radix: 64, up: 2}]"): "2: leaf is the top tier and has no uplinks; put `up` on the tier below",
    tree("[{down: 8, up: 8}, {radix: 64, pod: 2}]"): "2: must join all 4 groups below it, not 2",
    tree("[{down: 8, oversubscription: 3}, {radix: 64}]"): "2: not a whole number of uplinks",
    tree("[{down: 8, up: 8, oversubscription: 2}, {radix: 64}]"): "2: 8 down over 8 up is 1, not 2",
    tree("[{name: a, radix: 64}, {name: a, radix: 64}]"): "2: two tiers are called 'a'",
    tree("[{name: nic, radix: 64}]"): "2: 'nic' is not a valid tier name",
    tree("[{radix: 64}]", ", rails: 3"): "2: rails: 3 do not divide the 8 NICs",
    tree("[{radix: 64}]", ", rails: some"): "2: 'some' is not known; write none, optimized, or a number",
    tree("[{radix: 64}]", ", scalable_unit: 4"): "2: scalable_unit is about rails",
    tree(
        "[{radix: 2, down: 1, up: 1}, {radix: 64}]", ", rails: optimized, scalable_unit: 4"
    ): "2: 4 nodes a rail do not fit into the 1 ports down",
    tree("[{radix: 64}]").replace("400Gb/s", "400Gb/s, cable: [1m, 2m]"): "2: 2 cable lengths for 1 tiers",
    tree("[{radix: 64}]", ", routing: {qps: 4}"): "2: qps is for `mode: ecmp`",
    "cluster: {nodes: 1, node: {extends: hgx-a100, nics: {rate: 400Gb/s}}}": "1: more than the 31.5 GB/s of host.pcie gen4x16",
    "cluster: {nodes: 1, node: {extends: hgx-a100, nics: {count: 16}}}": "1: 16 NICs for 8 GPUs",
    "cluster: {nodes: 2, node: {gpus: {model: h100-sxm, count: 8}}}": "1: several nodes need NICs",
    "cluster: {nodes: 1, node: {extends: hgx-a100, host: {pcie: gen9x16}}}": "1: 'gen9x16' is not a PCIe slot",
    "cluster: {nodes: 1, node: {gpus: {model: l40s, count: 8}, scale_up: {kind: nvswitch}}}": "1: scale_up.link is missing",
    tree(
        "[{down: 1, up: 90000}, {radix: 90000}]", ", routing: {mode: dmodk}", NODE.replace("4", "400", 1)
    ): "2: links are too many to build one by one",
    explicit("[s0, s1]", f"[{NIC0}, {NIC1}, {{a: s0, b: s0, rate: 1GB/s}}]"): "5: a cable from 's0' to itself",
    explicit("[s0]", f"[{NIC0}, {NIC0}]"): "5: joined twice; write the number of cables as `count`",
    explicit("[s0, s0]", f"[{NIC0}]"): "4: duplicate switch 's0'",
    explicit("['leaf[0]']", f"[{NIC0}]"): "4: brackets are for nic[e]",
    explicit("[s0, s1]", f"[{NIC0}, {NIC1}]"): "5: no cables lead from 's0' to 's1'",
    explicit("[s0]", f"[{NIC0}]"): "5: nic[1] hangs on no switch",
    explicit("[s0, s1]", f"[{NIC0}, {NIC1}, {{a: 'node[0]', b: s1, rate: 1GB/s}}]"): "5: nic[0] has a cable already",
    explicit("[s0]", f"[{NIC0}, {{a: 'nic[2]', b: s0, rate: 1GB/s}}]"): "5: nic[0] to nic[1] do",
    explicit("[s0]", f"[{NIC0}, {{a: s9, b: s0, rate: 1GB/s}}]"): "5: 's9' is neither a switch nor nic[e]",
    explicit(
        "[s0]", f"[{NIC0}, {{a: 'node[7]', b: s0, rate: 1GB/s}}]"
    ): "5: 'node[7]' does not exist; node[0] to node[1] do, as cluster.nodes is 2; change one of them",
    explicit(
        "[s0, s1, s2]", f"[{NIC0}, {NIC1}, {{a: s0, b: s1, rate: 1GB/s}}]"
    ): "4: switch 's2' has no cable; join it or drop it",
    "cluster: {nodes: 2, node: hgx-h100}\nfabric: {kind: switch}\nfaults: [{link: 'nic[0]', rate: 399Gb/s}]": (
        "3: 49.88 GB/s is not a fault of a link of 48 GB/s, which is its rate after efficiency and PCIe; write what is left "
        "of that"
    ),
    explicit("[s0]", f"[{NIC0}, {{a: 'nic[0]', b: 'nic[1]', rate: 1GB/s}}]"): "5: joins no switch",
    tree("[{radix: 64}]") + "faults: [{link: 'nik[1]', rate: 1GB/s}]": "3: 'nik[1]' is not a link",
    tree("[{radix: 64}]") + "faults: [{link: 'nic-up[32]', rate: 1GB/s}]": "3: nic-up has the links 0 to 31",
    tree("[{radix: 64}]") + "faults: [{link: 'nic-up[1]'}]": "3: a link needs a `rate`",
    tree("[{radix: 64}]") + "faults: [{node: 1}]": "3: needs a `slowdown`",
    tree("[{radix: 64}]") + "faults: [{node: 1, gpu: 2, slowdown: 2}]": "3: exactly one of link, node, gpu",
    tree("[{radix: 64}]") + "faults: [{node: 4, slowdown: 2}]": "3: there is no node 4; they are 0 to 3",
    fabric("{kind: torus, dims: [2, 3], " + LINK + "}"): "2: 2 × 3 = 6 positions for 4 nodes",
    fabric("{kind: torus, dims: [], " + LINK + "}"): "2: fabric.dims: has 0 entries; write 1 to 6",
    fabric(
        "{kind: torus, dims: [2, 2], link: {rate: 1GB/s, cable: [1m, 2m, 3m]}}"
    ): "2: 3 cable lengths for 2 dimensions",
    fabric("{kind: torus, dims: [5000], " + LINK + "}", NODE.replace("4", "5000", 1)): "2: a ring of 5000 is too long",
    fabric("{kind: dragonfly, a: 2, p: 1, h: 1, " + LINK + "}"): "2: a · p · groups = 2 · 1 · 3 = 6 ports for 32 NICs",
    fabric(
        "{kind: dragonfly, a: 2, p: 8, h: 1, groups: 9, " + LINK + "}"
    ): "2: 2 routers with 1 global cables each reach 2 other groups, not 8; use at most 3",
    plus("groups: 2"): "2: 2 groups of 1 nodes are too few for 4 nodes; use 4, or larger groups",
    plus(
        "groups: 9"
    ): "2: fabric.groups: 2 spines with 3 global cables each reach 6 other groups, not 8; use larger groups, or a larger h",
    plus(
        "groups: 5"
    ): "2: fabric.groups: 2 spines · 3 = 6 global cables of a group do not divide among 4 others; use another h, such as 2",
    plus("", p=2): "2: leaves · p = 2 · 2 = 4 ports of a group for 8 NICs of a node",
    plus("group_nodes: 2"): "2: enough for 1 nodes of 8 NICs, not 2; use fewer",
    plus("uplinks: 3"): "2: 3 cables of a leaf do not divide among 2 spines; use 2 or 4",
    plus("radix: 5"): "2: a leaf needs 4 ports down and 2 up, not 5; use a larger switch",
    plus(
        "radix: 6, uplinks: 2", h=6
    ): "2: a spine needs 2 ports down and 6 to other groups, not 6; use a larger switch",
    plus("routing: {qps: 2}"): "2: qps is for `mode: ecmp`; adaptive sends one flow a pair",
    fabric("{kind: leaf_spine, tiers: [{radix: 64}], " + LINK + "}"): "2: has two tiers",
    fabric("{kind: rail_only, rails: none, tiers: [{radix: 64}], " + LINK + "}"): "2: rail_only keeps its rails apart",
    "cluster: {nodes: 4, node: {extends: hgx-h100, scale_up: {kind: none}}}\n"
    "fabric: {kind: rail_only, tiers: [{radix: 64}], link: {rate: 1GB/s}}": (
        "1: need links between the GPUs of a node to change rails over"
    ),
    inside("{kind: ring, link: 1GB/s}", 1): "1: scale_up.kind: a ring of one GPU joins nothing",
    inside("{kind: mesh, link: 1GB/s}", 100_000): "1: links are too many",
    inside("{kind: torus, shape: [3, 2], link: 1GB/s}", 8): "1: scale_up.shape: 3 × 2 is not the 8 GPUs",
    inside("{kind: torus, link: 1GB/s}", 8): "1: write extents whose product is 8",
    inside("{kind: ring, shape: [8], link: 1GB/s}", 8): "1: is for kind: torus, not ring",
    inside("{kind: mesh, links_per_gpu: 7, link: 1GB/s}", 8): "1: mesh counts its links by links_per_peer",
    inside("{links_per_peer: 7, link: 1GB/s}", 8): "1: nvswitch counts its links by links_per_gpu",
    tree("[{radix: 64}]") + "faults: [{link: 'nic[1]', dead: true, rate: 1GB/s}]": "3: nothing else",
    tree("[{radix: 64}]") + "faults: [{link: 'nic[1]', cables: 2, dead: true}]": "3: nic[1] has 1 cables alive, not 2",
    tree("[{radix: 64}]")
    + "faults: [{link: 'nic[1]', dead: true}, {link: 'nic-up[1]', dead: true}]": "3: nic-up[1] has 0 cables alive, not 1",
    f"{NODE}fabric: {{kind: switch}}\nfaults: [{DEAD}]": "3: all 4 nodes are dead; let at least one live",
}


@pytest.mark.parametrize("text", CASES)
def test_broken_topologies(text: str) -> None:
    line, message = CASES[text].split(": ", 1)
    with pytest.raises(ConfigError) as caught:
        build(parse(text, "broken.yaml"))
    assert message in caught.value.message
    assert str(caught.value).startswith(f"broken.yaml:{line}:")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("preset", "scale_up"),
    [
        ("hgx-h100", "{kind: ring, link: 50GB/s}"),
        ("hgx-h100", "{kind: mesh, link: 50GB/s, links_per_peer: 2}"),
        ("hgx-h100", "{kind: torus, shape: [4, 2]}"),
        ("mi300x", "{kind: nvswitch, links_per_gpu: 7}"),
        ("dgx1-v100", "{kind: none}"),
    ],
)
def test_another_kind_of_links_inside_leaves_out_what_was_inherited_for_the_old_one(preset, scale_up):
    topology = build(parse(f"cluster: {{nodes: 1, node: {{extends: {preset}, scale_up: {scale_up}}}}}"))
    assert topology.gpus == 8
    assert not topology.node.multicast


def test_keys_of_another_kind_that_are_written_are_an_error_still():
    scale_up = "{kind: ring, link: 50GB/s, links_per_gpu: 2}"
    with pytest.raises(ConfigError, match="ring counts its links by links_per_peer; write that"):
        build(parse(f"cluster: {{nodes: 1, node: {{extends: hgx-h100, scale_up: {scale_up}}}}}"))
