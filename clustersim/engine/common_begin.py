"""What steps of different numbers of microbatches have in common from their begin on, and whether tasks meet in that.

Two steps of a job whose ranks begin with the same passes are the same up to there: a node's end depends on what comes before it
alone. So if tasks meet in that part of one of them, tasks meet in the other too, whatever follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.engine.contention import Holders
from clustersim.engine.graph import StepGraph
from clustersim.engine.player import Compiled
from clustersim.engine.static import longest
from clustersim.engine.tasks import SlotTimes, Tasks
from clustersim.schedules.action import Action, Schedule

_PASS = itemgetter(Action._fields.index("stage"), Action._fields.index("letter"))


def meets_too(whole: Compiled, tasks: Tasks, pipeline_rank: Ints, schedule: Schedule) -> bool:
    """Return whether tasks meet in the step of another schedule of a job, as far as a compiled one of it shows that.

    tasks: with the times of the job. pipeline_rank: of each rank. schedule: of another number of microbatches.
    """
    graph = whole.graph
    ends = longest(graph, np.append(tasks.times.idle, 0.0)[graph.arrays[2]])
    passes = passes_to_meeting(graph, tasks.times, whole.holders, graph.starts(ends), ends)
    if passes is None or any(program.pairing for program in whole.plan.programs):
        return False
    own = pipeline_rank[whole.plan.first].tolist()
    return all(
        begin_alike(program.row, schedule[rank], count)
        for program, rank, count in zip(whole.plan.programs, own, passes.tolist(), strict=True)
    )


def passes_to_meeting(
    graph: StepGraph, times: SlotTimes, holders: Holders, starts: Floats, ends: Floats
) -> Ints | None:
    """Return how many passes of each rank decide a meeting, the first one to begin: later ones change nothing of it (ranks,).

    starts, ends: of nodes, if nobody slowed anybody. None where nobody meets.
    """
    node, first, last = holders.met(times, starts, ends)
    if not len(node):
        return None
    run = first[np.argmin(starts[node])]
    own = node[(first <= run) & (run <= last)]
    slot = graph.arrays[2][own]
    begun, over = starts[own] + times.before[slot], ends[own] - times.after[slot]
    latest = int(own[begun <= over.min()].max())  # they hold a link before one of them gives it back
    found = np.zeros(graph.ranks, np.int64)
    rank, *_, place = (column[graph.occurrences.node <= latest] for column in graph.occurrences)
    np.maximum.at(found, rank, place)
    np.maximum.at(found, graph.node_rank[1 : latest + 1], graph.labels.place[1 : latest + 1])
    return found


def begin_alike(one: Sequence[Action], other: Sequence[Action], passes: int) -> bool:
    """Return whether two rows of a rank begin with the same passes, so many, and do the same in them.

    The last one of a stage that yields gradients of weights may also reduce them.
    """
    begin = one[:passes]
    if begin != other[:passes]:
        return False
    gradients = {_PASS(action) for action in begin if action.letter in "BW"}
    return all(gradients <= set(map(_PASS, row[passes:])) for row in (one, other))
