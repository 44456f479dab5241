"""Simulating alike ranks once gives what simulating every rank gives."""

import pytest
from engine_cases import cluster, simulate
from folding_cases import FABRICS, FAULTS, same


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_one_rank_of_each_group_of_a_node_stands_for_all(pp):
    folded = simulate(cluster(4), parallelism__tp=4, parallelism__pp=pp, parallelism__algorithms__dp="ring")
    assert folded.summary["simulated"]["rank_classes"] == pp  # only the stages differ


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


@pytest.mark.slow
@pytest.mark.parametrize("fabric", ["static", "hashed", "4 to 1"])
def test_folded_equals_unfolded_on_512_gpus(fabric):
    topology = cluster(64, gpus=8, nics=8, fabric=FABRICS[fabric].replace("radix: 16", "radix: 256"))
    options = {"parallelism__tp": 4, "parallelism__pp": 4, "training__global_batch": 128}
    same(simulate(topology, **options), simulate(topology, fold=False, **options))
