"""Rates that something else cuts are told, in show, run and collective, and count in the bisection."""

from __future__ import annotations

import json

import numpy as np
import pytest
from engine_cases import job

from clustersim.collectives.nccl.table import document, title
from clustersim.config.yaml import parse
from clustersim.simulation import run
from clustersim.topology.assemble import NICS
from clustersim.topology.build import build
from clustersim.topology.describe import describe

TREE = "kind: fat_tree, tiers: [{{radix: 64}}], link: {{rate: {0}}}"
SLIM = "kind: leaf_spine, tiers: [{{down: 16, up: 8}}, {{radix: 64}}], link: {{rate: {0}}}"
TORUS = "kind: torus, dims: [4, 2], link: {{rate: {0}}}"
SWITCH = "kind: switch, link: {{rate: {0}}}"
HOSTS = ", ".join(f'{{{{a: "node[{n}]", b: s, rate: {{0}}}}}}' for n in range(8))
EXPLICIT = f"kind: explicit, nodes: [s], links: [{HOSTS}]"


def text(fabric: str, rate: str, nic: str = "400Gb/s") -> str:
    count = 1 if fabric == EXPLICIT else 8
    node = f"{{extends: hgx-h100, nics: {{count: {count}, rate: {nic}}}}}"
    return f"cluster: {{name: test, nodes: 8, node: {node}}}\nfabric: {{{fabric.format(rate)}}}\n"


def cluster(fabric: str, rate: str, nic: str = "400Gb/s"):
    return build(parse(text(fabric, rate, nic), "test.yaml"))


@pytest.mark.parametrize("fabric", [TREE, SLIM, TORUS, SWITCH, EXPLICIT])
def test_a_cable_faster_than_its_nic_is_told_with_both_keys(fabric):
    assert cluster(fabric, "400Gb/s").warnings == ()
    (said,) = cluster(fabric, "800Gb/s").warnings
    assert NICS in said
    assert ("fabric.links" if fabric == EXPLICIT else "fabric.link.rate") in said
    assert "cables of 800 Gb/s end at NICs of 400 Gb/s" in said


@pytest.mark.parametrize("fabric", [TREE, SWITCH, EXPLICIT])
def test_a_nic_faster_than_its_cable_is_told_with_both_keys(fabric):
    (said,) = cluster(fabric, "200Gb/s").warnings
    assert said.startswith(f"{NICS}: NICs of 400 Gb/s get 200 Gb/s from their cables (fabric.link")


@pytest.mark.parametrize("fabric", [TREE, SWITCH, EXPLICIT])
def test_the_bisection_is_what_nics_can_send(fabric):
    as_fast, faster = cluster(fabric, "400Gb/s").counts, cluster(fabric, "1600Gb/s").counts
    assert faster["bisection"] == pytest.approx(as_fast["bisection"]) == as_fast["nics"] / 2 * 50e9
    assert faster["oversubscription"] == 1


def test_faster_links_above_nics_undo_an_oversubscription():
    slim, wide, wider = (cluster(SLIM, rate).counts for rate in ("400Gb/s", "800Gb/s", "1600Gb/s"))
    assert [c["oversubscription"] for c in (slim, wide, wider)] == [2, 1, 1]
    assert [c["bisection"] for c in (slim, wide, wider)] == [16 * 50e9, 32 * 50e9, 32 * 50e9]


def test_run_and_collective_tell_it_where_the_network_is_used():
    fast = cluster(TREE, "800Gb/s")
    far, near = (job(parallelism__tp=8, parallelism__dp=n) for n in (2, 1))
    assert run(fast, far).summary["warnings"] == [*fast.warnings]
    assert run(fast, near).summary["warnings"] == []
    assert title(fast, np.arange(16), "all_reduce").endswith(f"\n# warning: {fast.warnings[0]}")
    assert document(fast, np.arange(16), "all_reduce", [])["warnings"] == [*fast.warnings]
    assert "warning" not in title(fast, np.arange(8), "all_reduce")


def test_show_tells_it(tmp_path, call):
    path = tmp_path / "fast.yaml"
    path.write_text(text(TREE, "800Gb/s"))
    assert ("warning", cluster(TREE, "800Gb/s").warnings[0]) in describe(cluster(TREE, "800Gb/s"))
    assert json.loads(call("show", str(path), "--json")[1])["warnings"] == [*cluster(TREE, "800Gb/s").warnings]
