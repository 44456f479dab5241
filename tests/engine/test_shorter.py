"""Shorter steps in the place of long ones."""

from clustersim.parallel.load import load as load_workload
from clustersim.simulation import Simulator
from clustersim.topology.build import load as load_topology


def test_what_is_found_first_is_found_in_any_order() -> None:
    """A step has the same times, to the last digit, after jobs that met and after none."""
    cluster = load_topology("topologies/superpod_h100_128.yaml", {"cluster.nodes": 16})
    asked = {"parallelism.tp": 16, "parallelism.pp": 4, "parallelism.dp": 2, "training.global_batch": 96}
    asked |= {"training.recompute": "full"}
    jobs = [load_workload("workloads/gpt3.yaml", asked | {"training.micro_batch": size}) for size in (1, 2, 3)]
    after, alone = Simulator(cluster), [Simulator(cluster).outline(job, "auto") for job in jobs]
    assert [after.outline(job, "auto") for job in jobs] == alone


def test_a_step_at_one_pace_says_nothing_of_another() -> None:
    """A step that is steady at some clocks may not be so at others, and the other way round."""
    cluster = load_topology("topologies/superpod_h100_128.yaml", {"cluster.nodes": 16})
    asked = {"parallelism.tp": 8, "parallelism.pp": 8, "training.global_batch": 1024, "training.micro_batch": 1}
    asked |= {"training.recompute": "full", "parallelism.zero": 1, "parallelism.overlap.p2p": True}
    jobs = [load_workload("workloads/gpt3.yaml", asked | {"clocks": clocks}) for clocks in ("sustained", 0.7)]
    after, alone = Simulator(cluster), [Simulator(cluster).outline(job, "auto") for job in jobs]
    assert [after.outline(job, "auto") for job in jobs] == alone
