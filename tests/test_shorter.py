"""What a whole step shows of shorter ones that begin like it."""

import numpy as np
import pytest

from clustersim.engine.common_begin import begin_alike, meets_too
from clustersim.engine.fold.adaptive import play
from clustersim.engine.groups import roles
from clustersim.engine.player import Compiled, Graphs, Player
from clustersim.engine.tasks import Tasks
from clustersim.parallel.load import load as load_workload
from clustersim.preparation import rows
from clustersim.schedules.action import parse
from clustersim.simulation import Simulator
from clustersim.topology.build import load as load_topology

CASES = [("1f1b", 1, 1), ("interleaved", 2, 1), ("zero_bubble", 1, 0), ("zero_bubble", 2, 3)]


@pytest.mark.parametrize(("schedule", "vpp", "zero"), CASES)
def test_tasks_that_meet_in_what_steps_begin_with_meet_in_each(schedule: str, vpp: int, zero: int) -> None:
    own = {"tp": 16, "pp": 4, "dp": 2, "vpp": vpp, "schedule": schedule, "zero": zero}
    batch = {"training.global_batch": 128, "training.micro_batch": 1}
    simulator = Simulator(load_topology("topologies/superpod_h100_128.yaml", {"cluster.nodes": 16}))
    job = simulator.placed(
        load_workload("workloads/gpt3.yaml", {f"parallelism.{k}": v for k, v in own.items()} | batch)
    )
    gpus, seen, prepared = np.arange(job.mesh.size), list[tuple[Compiled, Tasks]](), simulator.preparation

    def doubt(whole: Compiled, tasks: Tasks) -> bool:
        seen.append((whole, tasks))
        return True

    work = prepared.work(job, gpus)
    assert play(work, simulator.cluster, player=Player("auto", Graphs(), rows(job), doubt=doubt)) is None
    [(whole, tasks)] = seen
    shown = 0
    for number, steady in prepared.short(job):
        short = prepared.schedule(job, number).schedule
        if meets_too(whole, tasks, roles(job) // job.positions, short):
            player = Player("static", Graphs(), rows(job, number), steady)
            assert play(prepared.work(job, gpus, number), simulator.cluster, player=player) is None
            shown += 1
    assert shown


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


def test_rows_that_begin_alike() -> None:
    def row(text: str) -> tuple[object, ...]:
        return tuple(map(parse, text.split()))

    short, long = row("0F0 0F1 0B0 0B1"), row("0F0 0F1 0B0 0F2 0B1 0B2")
    assert begin_alike(long, short, 2)
    assert begin_alike(long, short, 3)
    assert not begin_alike(long, short, 4)
    assert not begin_alike(row("0F0 0B0 0F1 0B1"), row("0F0 0B0"), 2), "the backward pass is the last one of the other"
