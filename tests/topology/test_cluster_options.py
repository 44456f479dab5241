"""Clusters on a command line: nodes, GPUs, NICs and oversubscription of a topology's file, and trees that grow with the nodes."""

from __future__ import annotations

import json
import re
from collections import Counter
from copy import deepcopy

import numpy as np
import pytest
from sweep_cases import plain

from clustersim.config.yaml import read
from clustersim.convert.override import node_with
from clustersim.errors import InputError
from clustersim.simulation import simulate
from clustersim.topology.build import described, load, overridden

REFERENCE = {  # NVIDIA DGX SuperPOD reference architectures: nodes → leaf, spine and core switches
    ("b200", 64): {64: (16, 8), 128: (32, 16), 256: (64, 32), 512: (128, 128, 64), 2048: (512, 512, 256)},
    ("h100", 64): {1024: (256, 256, 128)},
    ("b300", 144): {72: (8, 4), 144: (16, 8), 288: (32, 18), 576: (64, 36), 1296: (144, 72)},
}


def _switches(topology):
    return tuple(
        int(topology.counts[f"{tier}_switches"])
        for tier in ("leaf", "spine", "core")
        if f"{tier}_switches" in topology.counts
    )


@pytest.mark.parametrize(
    ("gpu", "radix", "nodes", "expected"),
    [(gpu, radix, nodes, found) for (gpu, radix), rows in REFERENCE.items() for nodes, found in rows.items()],
)
def test_trees_are_those_of_the_reference_architectures(gpu, radix, nodes, expected):
    found = load("rail_optimized", {"cluster.nodes": nodes, "cluster.gpu": gpu, "fabric.radix": radix})
    assert _switches(found) == expected
    assert found.counts["cables"] == 8 * nodes * len(expected)
    assert found.counts["oversubscription"] == 1
    assert found.counts["bisection"] == 8 * nodes * found.node.nic_line / 2
    assert not found.warnings


def test_a_tree_without_rails_is_one_switch_where_that_has_enough_ports():
    flat = {"fabric.rails": "none", "fabric.radix": 64}
    assert _switches(load("rail_optimized", {**flat, "cluster.nodes": 8})) == (1,)
    assert _switches(load("rail_optimized", {**flat, "cluster.nodes": 9})) == (3, 2)


def test_a_file_that_writes_its_tiers_gives_the_tree_that_it_gave():
    ours = load("rail_optimized", {"cluster.nodes": 128})
    theirs = load("superpod_h100_128")
    assert ours.counts == theirs.counts
    assert (ours.capacity == theirs.capacity).all()
    assert (ours.latency == theirs.latency).all()


@pytest.mark.parametrize("ratio", [1, 1.5, 3, 8])
@pytest.mark.parametrize("nodes", [100, 512])
@pytest.mark.parametrize("rails", ["optimized", "none", 4])
def test_leaves_have_the_oversubscription_that_was_asked_for(rails, nodes, ratio):
    """NICs on the fullest leaf over its uplinks, as cables are counted, not as ports of a switch could be shared out."""
    asked = {"cluster.nodes": nodes, "fabric.rails": rails, "fabric.oversubscription": ratio}
    built = load("rail_optimized", asked)
    assert built.counts["oversubscription"] == pytest.approx(ratio, rel=1e-12)
    leaves, spines, nics = (built.counts[f"{key}"] for key in ("leaf_switches", "spine_cables", "nics"))
    leaf = cables_by_leaf(built, nodes)
    assert leaf.max() / (spines / leaves) == pytest.approx(ratio, rel=1e-12)
    assert leaf.sum() == nics == nodes * 8
    assert built.counts["switch_ports"] == 64 * built.counts["switches"]  # a switch is bought with all its ports


def cables_by_leaf(built, nodes):
    """Return how many NICs hang on each leaf that has one, from the names of the links' ends."""
    first = next(tier.first for tier in built.tiers if tier.name == "nic-up")
    return np.array(list(Counter(built.ends(first + nic)[1] for nic in range(8 * nodes)).values()))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "superpod_h100_128 fabric.oversubscription=1.5",
            "fabric.oversubscription: 32 NICs on a leaf are 1.5 : 1 with no whole number of uplinks; write 1.4545 (22 uplinks) "
            "or 1.5238 (21 uplinks)",
        ),
        (
            "superpod_h100_128 fabric.tiers.0.oversubscription=3",
            "fabric.tiers.0.oversubscription: 32 NICs on a leaf are 3 : 1",
        ),
        ("rail_optimized fabric.oversubscription=3.14159", "or 3.2667 (49 down, 15 up)"),
        ("rail_optimized fabric.oversubscription=64", "64 ports of a switch cannot be shared out 64 : 1"),
        (
            "rail_optimized cluster.nodes=8 fabric.rails=none fabric.oversubscription=2",
            "one tier has no uplinks; leave it out, or add a tier",
        ),
    ],
)
def test_an_oversubscription_that_cannot_be_built_names_those_that_can(words, sentence):
    file, asked = words.split(" ", 1)
    with pytest.raises(InputError, match=re.escape(sentence)):
        load(file, plain(asked))


def test_ratios_that_a_refusal_names_can_be_built():
    assert load("superpod_h100_128", {"fabric.oversubscription": 1.4545}).counts["spine_cables"] == 32 * 22
    assert load("rail_optimized", {"cluster.nodes": 98, "fabric.oversubscription": 3.2667}).counts[
        "oversubscription"
    ] == pytest.approx(49 / 15)


@pytest.mark.parametrize(
    ("file", "nodes", "ratio", "built"),
    [("rail_optimized", 3, 2, "1.5"), ("rail_optimized", 45, 4, "3.75"), ("superpod_h100_128", 20, 8, "6.667")],
)
def test_leaves_that_too_few_nodes_fill_say_what_they_have(file, nodes, ratio, built):
    cluster = load(file, {"cluster.nodes": nodes, "fabric.oversubscription": ratio})
    assert f"{cluster.counts['oversubscription']:.4g}" == built
    (said,) = cluster.warnings
    assert f"are {built} : 1, not {ratio} : 1; more nodes fill them" in said
    assert not load(file, {"cluster.nodes": 1, "fabric.oversubscription": ratio}).warnings


def test_a_nic_takes_the_cables_with_it():
    written = load("superpod_h100_128", {"cluster.nic": "200Gb/s"})
    grown = load("rail_optimized", {"cluster.nodes": 128, "cluster.nic": "200Gb/s"})
    assert written.node.nic_line == grown.node.nic_line == 25e9
    assert not written.warnings
    assert (written.capacity == grown.capacity).all()
    assert load("rail_optimized", {"cluster.gpu": "b300"}).node.nic_line == 100e9


def test_a_nic_that_no_slot_carries_is_refused_with_the_slot_that_does():
    with pytest.raises(InputError, match=r"write cluster\.node\.host\.pcie: gen6x16 too, or a slower NIC"):
        load("rail_optimized", {"cluster.nic": "800Gb/s"})
    wide = load("rail_optimized", {"cluster.nic": "800Gb/s", "cluster.node.host.pcie": "gen6x16"})
    assert wide.node.nic_line == 100e9
    assert wide.node.nic == 96e9  # what hgx-b300's slots of that generation reach too
    assert not wide.warnings
    with pytest.raises(InputError, match=r"300 GB/s is more than .* gen5x16; use a slower NIC"):
        load("rail_optimized", {"cluster.nic": "2400Gb/s"})


def test_a_key_of_a_node_changes_the_node_that_is_asked_for_whatever_their_order():
    keys = {"cluster.nic": "200Gb/s", "cluster.gpu": "b200"}
    for asked in (keys, dict(reversed(keys.items()))):
        found = load("rail_optimized", asked)
        assert (found.node.nic_line, found.gpu.name) == (25e9, "b200-sxm")


def test_a_key_of_a_fabric_that_is_not_there_says_so():
    with pytest.raises(
        InputError, match=r"^fabric\.oversubscription: .*has no fabric; give a topology of several nodes, such as"
    ):
        load("hgx_h100_8", {"fabric.oversubscription": 2})


def test_another_slot_reaches_what_it_reaches_unless_the_file_says():
    """What was measured of the slot of a shipped node is no figure of another one."""
    slot = {"cluster.node.host.pcie": "gen4x16", "cluster.nic": "200Gb/s"}
    assert load("rail_optimized", slot).node.pcie == 24e9
    assert load("rail_optimized", {**slot, "cluster.node.host.effective": "20GB/s"}).node.pcie == 20e9
    assert load("rail_optimized", {"cluster.node.host.pcie": "gen5x16"}).node.pcie == 48e9


def test_what_caps_a_nic_is_named():
    (said,) = load("rail_optimized", {"cluster.nic": "500Gb/s"}).warnings
    assert "NICs of 500 Gb/s get 384 Gb/s through their PCIe slots (cluster.node.host.effective)" in said
    assert said.endswith("without a wider slot (cluster.node.host.pcie: gen6x16)")


@pytest.mark.parametrize(
    ("gpu", "node"),
    [("h100", "hgx-h100"), ("a100", "hgx-a100"), ("v100-sxm2-32gb", "dgx1-v100"), ("gb200", "gb200-nvl72")],
)
def test_a_gpu_stands_for_the_node_of_its_maker(gpu, node):
    """Not for what one cloud or one laboratory has built of it."""
    assert node_with(gpu) == node


def test_a_nic_is_changed_in_every_pool_and_a_key_in_one():
    changed = load("mixed_h100_b200_64", {"cluster.nic": "200Gb/s", "cluster.pools.1.node.host.slowdown": 2})
    assert [pool.facts.nic_line for pool in changed.kinds] == [25e9, 25e9]
    assert [pool.host_slowdown for pool in changed.kinds] == [1.0, 2.0]


def test_run_and_show_take_them(call):
    cluster = ["--nodes", "2", "--gpu", "b200", "--nic", "200Gb/s", "--oversubscription", "2"]
    for words in (
        ["show", "rail_optimized"],
        ["run", "rail_optimized", "gpt3_xl", "--predictor", "roofline", "--no-save"],
    ):
        code, out, err = call(*words, *cluster, "--json")
        assert (code, err) == (0, "")
        found = json.loads(out)
        assert (
            (found["gpu"], found["gpus"]) == ("b200-sxm", 16)
            if words[0] == "show"
            else found["cluster"]["gpu"] == "b200-sxm"
        )
    points = {"cluster.nodes": 2, "cluster.gpu": "b200", "cluster.nic": "200Gb/s", "fabric.oversubscription": 2}
    alone = simulate("rail_optimized", "gpt3_xl", {**points, "predictor": "roofline"})
    assert alone.summary["step_time_s"] == found["step_time_s"]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"cluster.gpu": "rtx-a6000"}, "no shipped type of node has rtx-a6000"),
        ({"cluster.gpu": "h1000"}, "unknown GPU 'h1000'; did you mean"),
        ({"cluster.gpu": "p5"}, "a YAML file, or a node of `clustersim list nodes`"),
        ({"cluster.foo": 1}, "(command line): unknown key 'foo'; known: jitter, name, node, nodes, pools"),
        ({"cluster.nodes.x": 3}, "(command line): cluster.nodes.x: nodes is a single value and has no keys"),
        (
            {"fabric.tiers.0.radix": 4},
            "(command line): fabric.tiers: no list with an item 0 is here; write the whole list",
        ),
        ({"nodes.007.foo": 4}, "(command line): unknown key 'foo'"),
        ({"parallelism.tp": 2}, "parallelism.tp: not a key of a topology"),
        ({"fabric.radix": 4}, "5 tiers of 4 ports do not join 256 NICs; use larger switches or fewer nodes"),
        ({"fabric.oversubscription": 0.5}, "(command line): fabric.oversubscription"),
    ],
)
def test_what_cannot_be_is_one_sentence(overrides, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        load("rail_optimized", overrides)


def test_a_list_takes_numbers():
    assert load("superpod_h100_128", {"fabric.tiers.1.radix": 32}).counts["spine_switches"] == 32
    with pytest.raises(InputError, match=r"d_h100_128.yaml \(command line\): fabric.tiers.7.radix: 7 must be an index"):
        load("superpod_h100_128", {"fabric.tiers.7.radix": 32})
    with pytest.raises(InputError, match="the leaves say their `oversubscription` too; keep one of the two"):
        load("superpod_h100_128", {"fabric.tiers.0.oversubscription": 2, "fabric.oversubscription": 2})


FABRIC = {"kind": "fat_tree", "tiers": [{"radix": 64}], "link": {"rate": "400Gb/s"}}
NODES = {"nodes": 2, "node": "hgx-h100"}


@pytest.mark.parametrize(
    "key", ["cluster.nodes=2", "cluster.nic=200Gb/s", "cluster.gpu=h100", "fabric.oversubscription=2"]
)
@pytest.mark.parametrize(
    ("cluster", "fabric", "sentence"),
    [
        (NODES, 5, "fabric: 5 must be a mapping of keys"),
        (3, FABRIC, "cluster: 3 must be a mapping of keys"),
        ([NODES], FABRIC, "cluster: a list must be a mapping of keys"),
        ({"pools": 2}, FABRIC, "cluster.pools: 2 must be a list"),
        (
            {"nodes": 2, "node": 7},
            FABRIC,
            "cluster.node: must be the name of a node type, or a mapping such as {extends: hgx-h100, nics: {count: 1}}",
        ),
    ],
)
def test_values_replace_those_of_a_file_whose_sections_are_sections(cluster, fabric, sentence, key, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps({"cluster": cluster, "fabric": fabric}))
    name, _, value = key.partition("=")
    with pytest.raises(InputError) as error:
        load(path, {name: value})
    assert str(error.value).startswith(f"{path}:1:")
    assert str(error.value).endswith(f": {sentence}")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"cluster": 5, "cluster.nic": "200Gb/s"}, "c.yaml (command line): cluster: 5 must be a mapping of keys"),
        ({"cluster.pools": [5], "cluster.pools.0.nodes": 2}, "0 is a single value and has no keys"),
        ({f"fabric.tiers.{'9' * 5000}.radix": 2}, "must be an index of a list of 1"),
        ({"faults": [3], "faults.0.slowdown": 2}, "0 is a single value and has no keys"),
        (
            {"faults": [], "faults.0.gpu": 3},
            "faults.0.gpu: faults is an empty list, which has no 0; write the whole list as faults",
        ),
        ({"cluster": None}, "c.yaml (command line): cluster is empty; it must be a mapping of keys"),
    ],
)
def test_values_that_replace_values_that_are_replaced(overrides, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(json.dumps({"cluster": NODES, "fabric": FABRIC}))
    with pytest.raises(InputError, match=re.escape(sentence)):
        load("c.yaml", overrides)


def test_a_section_may_be_wrong_in_the_file_that_is_replaced_as_a_whole(tmp_path):
    (tmp_path / "c.yaml").write_text(json.dumps({"cluster": 3, "fabric": FABRIC}))
    assert load(tmp_path / "c.yaml", {"cluster": NODES, "cluster.nodes": 4}).gpus == 32


POOLS = [{"nodes": 1, "node": {"extends": "hgx-h100"}}, {"nodes": 1, "node": "hgx-h100"}]


@pytest.mark.parametrize(
    ("given", "more"),
    [
        ({"cluster.node": {"extends": "hgx-h100"}}, {"cluster.nic": "25Gb/s"}),
        ({"cluster": NODES | {"node": {"extends": "hgx-h100"}}}, {"cluster.node.nics.count": 4}),
        ({"cluster": {"pools": POOLS}}, {"cluster.pools.0.nodes": 2}),
        ({"fabric.tiers": [{"radix": 64}]}, {"fabric.tiers.0.radix": 128}),
        ({"faults": [{"gpu": 3, "slowdown": 2.0}]}, {"faults.0.gpu": 4}),
    ],
)
def test_what_is_given_stays_as_it_is_and_has_the_same_answer_again(given, more, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps({"cluster": NODES, "fabric": FABRIC}))
    written = deepcopy(given)
    document = read(path)
    first, _, last = (described(overridden(document, asked))[0] for asked in (given, {**given, **more}, given))
    assert given == written
    assert document == read(path)
    assert last == first != described(overridden(document, {**given, **more}))[0]
    assert (
        described(overridden(document, {**more, **given}))[0] == described(overridden(document, {**given, **more}))[0]
    )


def test_keys_fill_an_empty_section_of_the_file_or_of_an_override(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps({"cluster": None, "fabric": FABRIC}))
    keys = {f"cluster.{key}": value for key, value in NODES.items()}
    assert (
        load(path, keys).counts == load(path, {"cluster": None, **keys}).counts == load(path, {"cluster": NODES}).counts
    )
