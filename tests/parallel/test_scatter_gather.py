"""Messages between stages in parts: each tensor-parallel rank sends its own, and the receivers gather them."""

from __future__ import annotations

import pytest
from bounds import bounds
from engine_cases import cluster, job

from clustersim.simulation import Simulator, run

SPLIT = {"parallelism__tp": 2, "parallelism__pp": 4, "training__micro_batch": 1, "training__global_batch": 32}


def calls(script, sends):
    """Return the messages of a script, or its other communication beside passes."""
    tasks = (task for tasks in script.layout.steps.values() for task in tasks)
    return [task.collective for task in tasks if task.collective and (task.kind == "send") == sends]


def scripts_of(**split):
    simulator = Simulator(cluster(8))
    placed = simulator.placed(job(**SPLIT, **split))
    return simulator.preparation.written(placed).scripts


def test_each_rank_sends_its_part_and_gathers_the_whole():
    whole, parts = (scripts_of(parallelism__scatter_gather=scattered) for scattered in (False, True))
    for one, other in zip(whole, parts, strict=True):
        sent = [call.size for call in calls(one, sends=True)]
        assert [call.size * 2 for call in calls(other, sends=True)] == sent
        gathered = [call for call in calls(other, sends=False) if call.op == "all_gather"]
        assert {(call.group, call.size) for call in gathered} <= {("tp", size) for size in sent}
        assert not [call for call in calls(one, sends=False) if call.op == "all_gather"]
    assert any(call.op == "all_gather" for script in parts for call in calls(script, sends=False))


def test_a_sequence_that_is_split_has_no_more_to_scatter():
    options = {"parallelism__sequence_parallel": True}
    one, other = scripts_of(**options), scripts_of(**options, parallelism__scatter_gather=True)
    assert [script.layout.parts for script in one] == [script.layout.parts for script in other]


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1), ("dualpipe", 1)])
def test_no_bound_is_above_a_step(schedule, chunks):
    split = {
        **SPLIT,
        "parallelism__schedule": schedule,
        "parallelism__vpp": chunks,
        "parallelism__scatter_gather": True,
    }
    simulator = Simulator(cluster(8))
    placed = simulator.placed(job(**split))
    assert bounds(simulator, placed).seconds <= simulator.outline(placed, "auto")["step_time_s"] * (1 + 1e-9)


def test_it_pays_where_messages_cross_nodes():
    long = {"model__hidden": 4096, "training__seq": 4096, "parallelism__tp": 4}
    found = [
        run(cluster(8), job(**{**SPLIT, **long}, parallelism__scatter_gather=scattered)).summary["breakdown_s"]["pp"]
        for scattered in (False, True)
    ]
    assert found[1] < 0.5 * found[0]
