"""Steps of one job whose GPU speeds vary from step to step: one plan of all ranks, retimed for each draw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from clustersim.arrays import Floats
from clustersim.engine.compile import Speed, Work, plan
from clustersim.engine.player import Engine, execute
from clustersim.engine.record import Record
from clustersim.engine.times import Tasks
from clustersim.topology.model import Topology


def execute_draws(
    work: Work, topology: Topology, factors: Iterable[Floats], engine: Engine, recompile: bool = False
) -> Iterator[Record]:
    """Yield the record of one step of a job for each of `factors`, arrays that multiply the compute time of each GPU (GPUs,).

    Every rank is simulated, because each has its own speed. recompile: whether to make a plan for each draw, because its times
    decide where GPUs wait for hosts.
    """
    if recompile:
        for factor in factors:
            [drawn_plan] = plan([work], replace(topology, slowdown=topology.slowdown * factor), fold=False)
            yield execute(Tasks(drawn_plan), engine)
        return
    work = work._replace(apart=True)
    [common_plan] = plan([work], topology, fold=False)
    tasks = Tasks(common_plan)
    node_types, slowdown = topology.kind_of(work.gpus).tolist(), topology.slowdown[work.gpus]
    compiled_speeds = list(map(Speed, slowdown.tolist(), node_types, range(len(work.gpus))))
    for factor in factors:
        drawn_speeds = map(Speed, (slowdown * factor[work.gpus]).tolist(), node_types)
        yield execute(tasks.retimed(work.seconds, dict(zip(compiled_speeds, drawn_speeds, strict=True))), engine)
