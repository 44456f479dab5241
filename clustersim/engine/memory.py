"""Bytes on one GPU of each pipeline rank while each of its passes runs.

A forward pass keeps the activations of its stage and microbatch until the backward pass (or its half that yields the gradients
of the weights) is over (Korthikanti et al. 2022). With several stages a rank, the most of one and the most of another need not
come at one moment: the peak is that of the running sum, never the sum of the peaks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.engine.microbatch_overlap import memory_order
from clustersim.parallel.job import Job
from clustersim.parallel.memory import Memory, at_rest, gathered, gradients
from clustersim.parallel.stages import Stage
from clustersim.schedules.action import Action, Schedule

KEPT = {"F": 1.0, "B": -1.0, "I": 0.0, "W": -1.0}
"""By how many microbatches a pass changes what its stage keeps."""


class RankMemory(NamedTuple):
    """What one GPU of a pipeline rank holds while each action of `row` runs, in bytes."""

    row: tuple[Action, ...]
    rest: Memory
    """Between steps."""
    activations: Floats
    """What every microbatch in flight keeps at the fullest moment of the pass, with what recomputation brings back (actions,)."""
    workspace: Floats
    """The largest temporaries of the pass (actions,)."""
    gradients: Floats
    """All of them (actions,)."""
    gathered: Floats
    """Sharded parameters that are gathered (actions,)."""

    @property
    def peak(self) -> Memory:
        """The bytes by kind at the first of the fullest moments."""
        if not self.row:
            return self.rest
        most = int((self.activations + self.workspace + self.gradients + self.gathered).argmax())
        return self.rest._replace(
            activations=float(self.activations[most]),
            workspace=float(self.workspace[most]),
            gradients=float(self.gradients[most]),
            gathered=float(self.gathered[most]),
        )


def rank_memory(job: Job, stages: Sequence[Stage], row: tuple[Action, ...]) -> RankMemory:
    """Return what a rank with `stages` holds through its row of a schedule."""
    place = {index: i for i, index in enumerate(sorted({action.stage for action in row}))}
    at = np.array([place[action.stage] for action in row], np.int64)
    saved = np.array([s.saved_bytes for s in stages])[at]
    change = np.array([KEPT[action.letter] for action in row]) * saved
    forward = np.array([action.letter == "F" for action in row], bool)
    others = np.cumsum(change) - change - np.where(forward, 0.0, saved)
    peaks = np.array([[s.backward_peak for s in stages], [s.forward_peak for s in stages]])
    whole = np.array([[gathered(job, stage, backward) for stage in stages] for backward in (True, False)])
    rest = at_rest(job, stages)
    more = _unreduced(row, {index: gradients(job, stages[i])[1] for index, i in place.items()})
    side = forward.astype(np.int64)
    kept, spaces = np.moveaxis(peaks[side, at], 1, 0)
    return RankMemory(row, rest, others + kept, spaces, rest.gradients + more, whole[side, at])


def _unreduced(row: Sequence[Action], whole: Mapping[int, float]) -> Floats:
    """Return the bytes of gradients at each action that a stage holds until they are reduced; whole: of each stage.

    From the first pass that adds to them to the one after the last, beside which the reduction runs.
    """
    result = np.zeros(len(row))
    writes: dict[int, list[int]] = {}
    for i, action in enumerate(row):
        if action.letter in "BW" and whole[action.stage]:
            writes.setdefault(action.stage, []).append(i)
    for stage, places in writes.items():
        result[places[0] : places[-1] + 2] += whole[stage]
    return result


def memory_by_rank(job: Job, parts: Sequence[Sequence[Stage]], schedule: Schedule) -> list[RankMemory]:
    """Return what the fullest GPU of each pipeline rank holds; parts: all stages, by position in the ep group."""
    rows, of_part = memory_order(schedule, side_by_side(job)), [job.lanes(part) for part in parts]
    lanes = ([rank_memory(job, own[r], row) for own in of_part] for r, row in enumerate(rows))
    return [max(lane, key=lambda one: one.peak.total) for lane in lanes]


def side_by_side(job: Job) -> bool:
    """Return whether a backward pass and the forward pass behind it run beside each other."""
    return job.parallelism.overlap.ep == "microbatch" or job.pipeline.paired
