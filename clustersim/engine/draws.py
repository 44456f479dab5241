"""Steps of one job whose GPU speeds vary from step to step: one plan of all ranks, timed again for each draw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from clustersim.arrays import Floats
from clustersim.engine.compile import Speed, Work, plan
from clustersim.engine.player import Engine, execute
from clustersim.engine.record import Record
from clustersim.engine.times import Tasks
from clustersim.topology.model import Topology


def drawn(
    work: Work, topology: Topology, factors: Iterable[Floats], engine: Engine, anew: bool = False
) -> Iterator[Record]:
    """Yield the step of a job for each of `factors`, arrays that multiply the compute time of each GPU (GPUs,).

    Every rank is simulated, because each has its own speed. anew: compile each draw, because its times decide where GPUs wait for
    hosts.
    """
    if anew:
        for one in factors:
            [planned] = plan([work], replace(topology, slowdown=topology.slowdown * one), fold=False)
            yield execute(Tasks(planned), engine)
        return
    work = work._replace(apart=True)
    [planned] = plan([work], topology, fold=False)
    tasks = Tasks(planned)
    kinds, usual = topology.kind_of(work.gpus).tolist(), topology.slowdown[work.gpus]
    old = list(map(Speed, usual.tolist(), kinds, range(len(work.gpus))))
    for one in factors:
        slowdown = usual * one[work.gpus]
        speeds = dict(zip(old, map(Speed, slowdown.tolist(), kinds), strict=True))
        yield execute(tasks.retimed(work.seconds, speeds), engine)
