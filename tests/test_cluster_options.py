"""Clusters on a command line: nodes, GPUs, NICs and oversubscription of a topology's file, and trees that grow with the nodes."""

from __future__ import annotations

import json
import sys

import pytest

from clustersim.cli.main import main
from clustersim.errors import InputError
from clustersim.simulation import simulate
from clustersim.topology.build import load
from clustersim.topology.override import node_with

REFERENCE = {  # NVIDIA DGX SuperPOD reference architectures: nodes → leaf, spine and core switches
    ("b200", 64): {64: (16, 8), 128: (32, 16), 256: (64, 32), 512: (128, 128, 64), 2048: (512, 512, 256)},
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


def test_oversubscription_takes_uplinks_away_and_never_makes_them_thinner():
    full = load("rail_optimized", {"cluster.nodes": 96})
    quarter = load("rail_optimized", {"cluster.nodes": 96, "fabric.oversubscription": 3})
    assert quarter.counts["oversubscription"] == 3
    assert quarter.counts["spine_cables"] * 3 == full.counts["spine_cables"]


def test_a_nic_takes_the_cables_with_it():
    written = load("superpod_h100_128", {"cluster.nic": "200Gb/s"})
    grown = load("rail_optimized", {"cluster.nodes": 128, "cluster.nic": "200Gb/s"})
    assert written.node.nic_line == grown.node.nic_line == 25e9
    assert not written.warnings
    assert (written.capacity == grown.capacity).all()
    assert load("rail_optimized", {"cluster.gpu": "b300"}).node.nic_line == 100e9


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


def test_a_change_on_the_command_line_is_one_in_the_file(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("cluster: {nodes: 16, node: hgx-b200}\nfabric: {kind: rail_optimized, radix: 32, tiers: 2}\n")
    asked = {"cluster.nodes": 16, "cluster.gpu": "b200", "fabric.radix": 32}
    mine, theirs = load("rail_optimized", asked), load(file)
    assert mine.counts == theirs.counts
    assert mine.gpu == theirs.gpu


def test_run_and_show_take_them(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    cluster = ["--nodes", "2", "--gpu", "b200", "--nic", "200Gb/s", "--oversubscription", "2"]
    for words in (
        ["show", "rail_optimized"],
        ["run", "rail_optimized", "gpt3_xl", "--predictor", "roofline", "--no-save"],
    ):
        monkeypatch.setattr(sys, "argv", ["clustersim", *words, *cluster, "--json"])
        with pytest.raises(SystemExit):
            main()
        out, err = capsys.readouterr()
        assert err == ""
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
        ({"cluster.gpu": "rtx-4090"}, "no shipped type of node has rtx-4090"),
        ({"cluster.gpu": "h1000"}, "unknown GPU 'h1000'; did you mean"),
        ({"cluster.foo": 1}, "(command line): unknown key 'foo'; known: jitter, name, node, nodes, pools"),
        ({"cluster.nodes": 0}, "(command line): cluster.nodes"),
        ({"cluster.nodes.x": 3}, "nodes is a single value and has no keys"),
        ({"parallelism.tp": 2}, "parallelism.tp: is no key of a topology"),
        ({"fabric.radix": 4}, "5 tiers of 4 ports do not join 256 NICs; use larger switches or fewer nodes"),
        ({"fabric.oversubscription": 0.5}, "(command line): fabric.oversubscription"),
    ],
)
def test_what_cannot_be_is_one_sentence(overrides, sentence):
    with pytest.raises(InputError) as error:
        load("rail_optimized", overrides)
    assert sentence in str(error.value)


def test_a_list_takes_numbers():
    assert load("superpod_h100_128", {"fabric.tiers.1.radix": 32}).counts["spine_switches"] == 32
    with pytest.raises(InputError, match="7 is no place in a list of 2; write a number from 0 to 1"):
        load("superpod_h100_128", {"fabric.tiers.7.radix": 32})
    with pytest.raises(InputError, match="the leaves say their `oversubscription` too; keep one of the two"):
        load("superpod_h100_128", {"fabric.tiers.0.oversubscription": 2, "fabric.oversubscription": 2})
