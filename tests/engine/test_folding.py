"""Simulating alike ranks once gives what simulating every rank gives."""

import numpy as np
import pytest
from engine_cases import cluster, simulate
from examples import examples
from folding_cases import FABRICS, FAULTS, same
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from clustersim.errors import InputError
from clustersim.topology.model import Topology


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    nodes=st.sampled_from([2, 4, 6, 8]),
    fabric=st.sampled_from(sorted(FABRICS)),
    fault=st.sampled_from(sorted(FAULTS)),
    nics=st.sampled_from([(4, "per_gpu"), (1, "shared")]),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4]),
    schedule=st.sampled_from(["1f1b", "gpipe"]),
    zero=st.sampled_from([0, 1]),
    overlap=st.booleans(),
    wait=st.booleans(),
    algorithm=st.sampled_from(["ring", "nccl", "tree", "hierarchical", "neusight_hierarchical"]),
)
def test_folded_equals_unfolded(nodes, fabric, fault, nics, tp, pp, schedule, zero, overlap, wait, algorithm):
    assume(tp * pp <= 4 * nodes)
    try:
        topology = cluster(nodes, nics=nics[0], attach=nics[1], fabric=FABRICS[fabric], extra=FAULTS[fault])
    except InputError:  # rails need a NIC each
        assert fabric == "rails"
        return
    options = {
        "parallelism__tp": tp,
        "parallelism__pp": pp,
        "parallelism__schedule": schedule,
        "parallelism__zero": 0 if algorithm in ("tree", "neusight_hierarchical") else zero,
        "parallelism__algorithms__dp": algorithm,
        "parallelism__overlap__grad_reduce": overlap,
        "parallelism__overlap__p2p": not wait,
        "parallelism__bucket": 1_000_000,
    }
    folded = simulate(topology, **options)
    same(folded, simulate(topology, fold=False, **options))
    ranks = folded.summary["simulated"]
    alike = algorithm not in ("tree", "nccl")  # a tree's root and leaves load their NICs unequally; NCCL may take one
    if alike and fault == "none" and fabric == "one leaf" and nics[0] == 4 and tp == 4:
        assert ranks["rank_classes"] == pp  # one rank of each group a node: only the stages differ


def test_a_straggler_splits_what_it_touches_and_slows_the_step():
    wide = {"parallelism__pp": 2, "model__hidden": 4096, "training__seq": 2048, "training__global_batch": 256}
    healthy = simulate(cluster(8), **wide)
    slow = simulate(cluster(8, extra=FAULTS["slow GPU"]), **wide)
    assert slow.summary["step_time_s"] > healthy.summary["step_time_s"] * 1.05
    cells = [r.summary["simulated"]["rank_classes"] for r in (healthy, slow)]
    assert cells[0] < cells[1] <= 3 * cells[0] < 32  # 32 ranks: most stay folded


def test_a_slow_nic_slows_only_what_crosses_it():
    healthy = simulate(cluster(4), parallelism__tp=4)
    slow = simulate(cluster(4, extra=FAULTS["slow NIC"]), parallelism__tp=4)
    touched = slow.parts[int(slow.plan.network.cells.ranks.of[1])]
    assert touched["dp"] > 2 * healthy.parts[0]["dp"]
    assert slow.parts[0]["dp"] == healthy.parts[0]["dp"]
    assert touched["compute"] == healthy.parts[0]["compute"]


@pytest.mark.parametrize("fabric", sorted(FABRICS))
@pytest.mark.parametrize("split", [(1, 4), (2, 2), (4, 2)])
def test_links_that_are_left_out_never_matter(fabric, split, monkeypatch):
    """Keeping every link in the max-min problem gives the same step."""
    from clustersim.engine import traffic

    topology = cluster(4, fabric=FABRICS[fabric])
    options = {"parallelism__tp": split[0], "parallelism__pp": split[1], "parallelism__overlap__p2p": True}
    left_out = simulate(cluster(4, fabric=FABRICS[fabric]), **options)
    monkeypatch.setattr(traffic, "_scarce", lambda topology, _: np.ones(len(topology.capacity), bool))
    monkeypatch.setattr(Topology, "up_to_nics", lambda _: None)
    whole = simulate(topology, **options)
    assert whole.summary["simulated"]["links_that_can_be_short"] == len(topology.capacity)
    assert left_out.summary["step_time_s"] == pytest.approx(whole.summary["step_time_s"], rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("fabric", sorted(FABRICS))
def test_folded_equals_unfolded_on_512_gpus(fabric):
    topology = cluster(64, gpus=8, nics=8, fabric=FABRICS[fabric].replace("radix: 16", "radix: 256"))
    options = {"parallelism__tp": 4, "parallelism__pp": 4, "training__global_batch": 128}
    same(simulate(topology, **options), simulate(topology, fold=False, **options))
