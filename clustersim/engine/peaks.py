"""The fullest moment of each pipeline rank, from the moments of a schedule at which memory may peak: some hundred of them.

What a rank keeps at a pass follows from how many microbatches each of its stages has in flight then, from the letter and
from which gradients are not reduced yet. A schedule has few different moments of this kind, whatever the job; so they are
found once for each schedule, and a job that does not fit is known at once. memory.py has every pass, for reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask
from clustersim.parallel.job import Job
from clustersim.parallel.memory import Memory, at_rest, gathered, gradients
from clustersim.parallel.stages import Stage
from clustersim.schedules.action import Action, Schedule


class Moments(NamedTuple):
    """Different moments of a schedule, rank by rank and each at its first place; those of rank r are start[r] to start[r + 1]."""

    start: Ints
    at: Ints
    """Which of its stages the rank runs."""
    forward: Mask
    kept: Ints
    """Microbatches in flight while the pass runs, by stage of the rank: (moments, stages)."""
    unreduced: Mask
    """Whether a stage has gradients that are not reduced yet, from its first backward pass to the one after its last."""


def moments(schedule: Schedule) -> Moments:
    """Return the moments of a legal schedule at which memory may peak."""
    rows = [list(_of_row(row)) for row in schedule]
    at, forward, kept, unreduced = zip(*(moment for row in rows for moment in row), strict=True)
    start = np.cumsum([0, *map(len, rows)])
    return Moments(start, np.array(at), np.array(forward, bool), np.array(kept), np.array(unreduced, bool))


def _of_row(row: Sequence[Action]) -> Mapping[tuple[object, ...], None]:
    """Return (stage, whether forward, microbatches in flight, unreduced gradients) of each different moment, in order."""
    own = {stage: i for i, stage in enumerate(sorted({action.stage for action in row}))}
    adds = [(i, own[action.stage]) for i, action in enumerate(row) if action.letter in "BW"]
    first = {stage: i for i, stage in reversed(adds)}
    after = {stage: i + 1 for i, stage in adds}
    changes = sorted({*first.values(), *(i + 1 for i in after.values())})
    kept, found = [0] * len(own), dict[tuple[object, ...], None]()
    unreduced: tuple[bool, ...] = (False,) * len(own)
    for i, (stage, letter, _) in enumerate(row):
        if changes and i == changes[0]:
            del changes[0]
            unreduced = tuple(first[s] <= i <= after[s] for s in range(len(own)))
        place = own[stage]
        kept[place] += letter == "F"
        found[place, letter == "F", tuple(kept), unreduced] = None
        kept[place] -= letter in "BW"
    return found


def peaks(job: Job, parts: Sequence[Sequence[Stage]], found: Moments) -> list[Memory]:
    """Return what the fullest GPU of each pipeline rank holds at its fullest moment.

    parts: all stages, by position in the ep group. found: the moments of the job's schedule, whose rows are legal.
    """
    ranks = [_of_position(job, part, found) for part in parts]
    return [max(lane, key=lambda one: one.total) for lane in zip(*ranks, strict=True)]


def _of_position(job: Job, part: Sequence[Stage], found: Moments) -> list[Memory]:
    """Return the peak of each pipeline rank at a position of the ep group, whose stages are `part`."""
    lanes = job.lanes(part)
    alike = {id(stage): stage for stage in part}
    facts = {
        key: (
            s.saved_bytes,
            *s.backward_peak,
            *s.forward_peak,
            gradients(job, s)[1],
            gathered(job, s, True),
            gathered(job, s, False),
        )
        for key, s in alike.items()
    }
    table = np.array([[facts[id(stage)] for stage in own] for own in lanes])
    rest = {key: at_rest(job, own) for key, own in {tuple(map(id, own)): own for own in lanes}.items()}
    rank = np.repeat(np.arange(len(lanes)), np.diff(found.start))
    saved, *of_pass, _, gathered_backward, gathered_forward = table[rank, found.at].T

    def running(backward: Floats, forward: Floats) -> Floats:
        return np.where(found.forward, forward, backward)

    kept, spaces = running(of_pass[0], of_pass[2]), running(of_pass[1], of_pass[3])
    activations = (found.kept * table[rank, :, 0]).sum(axis=1) - saved + kept
    whole = running(gathered_backward, gathered_forward)
    unreduced = (found.unreduced * table[rank, :, 5]).sum(axis=1)
    result = []
    for r, (begin, end) in enumerate(zip(found.start[:-1].tolist(), found.start[1:].tolist(), strict=True)):
        own = rest[tuple(map(id, lanes[r]))]
        held = own.gradients + unreduced[begin:end]
        most = int((activations[begin:end] + spaces[begin:end] + held + whole[begin:end]).argmax())
        at = begin + most
        result.append(
            own._replace(
                activations=float(activations[at]),
                workspace=float(spaces[at]),
                gradients=float(held[most]),
                gathered=float(whole[at]),
            )
        )
    return result
