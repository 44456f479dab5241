"""Bytes on one GPU of each pipeline rank during its passes, at every pass or only at possible peaks.

A forward pass saves the activations of its stage and microbatch until the backward pass (or its weight-gradient half) ends
(Korthikanti et al. 2022). With several stages per rank, the peaks of different stages need not coincide: the peak is that of the
running sum, never the sum of the peaks.

The memory at a pass follows from the number of microbatches in flight of each stage, the letter, and which gradients are not
reduced yet. A schedule has few distinct moments of this kind, whatever the job; so they are found once per schedule, which tells
quickly whether a job fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, distinct_rows, lengths, offsets
from clustersim.engine.microbatch_overlap import memory_order
from clustersim.parallel.job import Job
from clustersim.parallel.memory import Memory, at_rest, beside, gathered, gradients
from clustersim.parallel.offload import host_peaks, kept_on_gpu
from clustersim.parallel.stages import Stage
from clustersim.schedules.action import BACKWARD, FORWARD, WEIGHTS, Action, ActionRow, Schedule


class Moments(NamedTuple):
    """Moments of a schedule at which memory is computed, one per row; pipeline rank r has the rows start[r] to start[r + 1]."""

    start: Ints
    """First moment of each rank, followed by the number of moments (ranks + 1,)."""
    at: Ints
    """Stage whose pass runs, as an index among the stages of the rank (moments,)."""
    forward: Mask
    """Whether the pass is a forward pass (moments,)."""
    kept: Ints
    """Microbatches in flight while the pass runs, its own included, by stage of the rank (moments, stages)."""
    unreduced: Mask
    """Whether a stage has unreduced gradients, from its first backward pass to the pass after its last (moments, stages)."""


def moments(schedule: Schedule, every: bool = False) -> Moments:
    """Return the distinct moments of a legal schedule at which memory may peak; with `every` one moment per action."""
    # columns over all actions, rank after rank
    rows = list(map(ActionRow.of, schedule))
    start = offsets(np.array([*map(len, rows)], np.int64))
    rank = np.arange(len(rows)).repeat(lengths(start))
    stage, letter = (np.concatenate([getattr(row, name) for row in rows]) for name in ("stage", "letter"))
    forward, backward, number = letter == FORWARD, (letter == BACKWARD) | (letter == WEIGHTS), np.arange(len(rank))
    stages = stage.max(initial=-1) + 1
    place = offsets(np.bincount(rank * stages + stage, minlength=len(schedule) * stages) > 0)
    at = place[rank * stages + stage] - place[rank * stages]
    change = np.zeros((len(rank), at.max(initial=-1) + 1), np.int64)
    change[number, at] = forward.astype(np.int64) - backward
    flight = np.zeros((len(rank) + 1, change.shape[1]), np.int64)
    change.cumsum(axis=0, out=flight[1:])
    kept = flight[1:] - flight[start[:-1]][rank] + (change < 0)  # a microbatch is in flight in its last pass too
    # the reduction overlaps the pass after the last one that adds gradients
    adds = np.flatnonzero(backward)
    begins, ends = np.full((2, len(schedule), change.shape[1]), len(rank))
    np.minimum.at(begins, (rank[adds], at[adds]), adds)
    ends[rank[adds], at[adds]] = adds + 1  # of several values for one element the last one stays
    unreduced = (begins[rank] <= number[:, np.newaxis]) & (number[:, np.newaxis] <= ends[rank])
    if every:
        return Moments(start, at, forward, kept, unreduced)
    kinds = distinct_rows(np.column_stack([rank, at, forward, kept, unreduced]))[0]
    start = np.searchsorted(rank[kinds], np.arange(len(schedule) + 1))
    return Moments(start, at[kinds], forward[kinds], kept[kinds], unreduced[kinds])


class RankMemory(NamedTuple):
    """Memory of one GPU of a pipeline rank at moments of its schedule, in bytes."""

    rest: Memory
    """Memory between steps."""
    peak: Memory
    """Bytes by kind at the first of the peak moments."""
    activations: Floats
    """Activations of all microbatches in flight at the peak of the pass, including recomputed ones (moments,)."""
    workspace: Floats
    """Largest temporary buffers of the pass (moments,)."""
    gradients: Floats
    """All gradients (moments,)."""
    gathered: Floats
    """Sharded parameters that are gathered (moments,)."""
    row: Sequence[Action] = ()
    """Actions of the rank, one per moment; () if the moments are only the distinct ones."""
    host: float = 0.0
    """Peak bytes of host memory for offloaded data."""


PASSES = [Memory._fields.index(name) for name in RankMemory._fields[2:6]]
"""Kinds of memory that passes change, as indices of the fields of Memory."""


def of_lanes(job: Job, lanes: Sequence[Sequence[Stage]], at_moments: Moments) -> list[RankMemory]:
    """Return the memory of one GPU of each pipeline rank at moments of its schedule. lanes: stages of each rank, by chunk."""
    rest, columns = _held(job, lanes, at_moments)
    ranks = zip(rest, pairwise(at_moments.start.tolist()), _peaks(rest, columns, at_moments.start), strict=True)
    return [RankMemory(own, peak, *columns[:, begin:end]) for own, (begin, end), peak in ranks]


def _peaks(rest: Sequence[Memory], columns: Floats, start: Ints) -> list[Memory]:
    """Return the memory of each rank at the first of its peak moments.

    rest: memory of each rank between steps. columns: bytes of each kind in `PASSES` at all moments (4, moments). start: as in
    Moments; every rank has moments.
    """
    total = columns.sum(axis=0)
    highest = np.flatnonzero(total == np.maximum.reduceat(total, start[:-1]).repeat(lengths(start)))
    table = np.array(rest)
    table[:, PASSES] = columns[:, highest[highest.searchsorted(start[:-1])]].T
    return [Memory(*row) for row in table.tolist()]


def _held(job: Job, lanes: Sequence[Sequence[Stage]], at_moments: Moments) -> tuple[list[Memory], Floats]:
    """Return each rank's memory between steps, and the bytes of each kind in `PASSES` at all moments (4, moments)."""
    facts = {
        key: (
            *kept_on_gpu(job, s),
            gradients(job, s)[1],
            gathered(job, s, True),
            gathered(job, s, False),
            *beside(job, s),
        )
        for key, s in {id(stage): stage for own in lanes for stage in own}.items()
    }
    table = np.array([[facts[id(stage)] for stage in own] for own in lanes])
    known = {key: at_rest(job, own) for key, own in {tuple(map(id, own)): own for own in lanes}.items()}
    rest = [known[tuple(map(id, own))] for own in lanes]
    rank = np.repeat(np.arange(len(lanes)), lengths(at_moments.start))
    saved, *of_pass, _, gathered_backward, gathered_forward, layer, temporaries = table[rank, at_moments.at].T

    def running(backward: Floats, forward: Floats) -> Floats:
        """Return values of the pass that runs at each moment (moments,): a backward or a forward pass."""
        return np.where(at_moments.forward, forward, backward)

    kept, spaces = running(of_pass[0] + layer, of_pass[2]), running(of_pass[1] + temporaries, of_pass[3])
    in_flight, added = (
        np.einsum("ij,ij->i", counts, table[:, :, column][rank])  # faster than numpy's sum for short rows
        for counts, column in ((at_moments.kept, 0), (at_moments.unreduced, 5))
    )
    activations = in_flight - saved + kept
    unreduced = np.array([one.gradients for one in rest])[rank] + added
    return rest, np.array([activations, spaces, unreduced, running(gathered_backward, gathered_forward)])


def peaks(job: Job, parts: Sequence[Sequence[Stage]], at_moments: Moments) -> list[Memory]:
    """Return the peak memory of the GPU of each pipeline rank that needs most.

    parts: all stages, for each position in the ep group. at_moments: `moments` of the job's schedule.
    """
    ranks = zip(*(_peaks(*_held(job, job.lanes(part), at_moments), at_moments.start) for part in parts), strict=True)
    return [max(lane, key=attrgetter("total")) for lane in ranks]


def memory_by_rank(job: Job, parts: Sequence[Sequence[Stage]], schedule: Schedule) -> list[RankMemory]:
    """Return the memory at every pass of the GPU of each rank that needs most. parts: all stages, by position in the ep group."""
    rows = memory_order(schedule, job.pipeline.paired)
    every = moments(rows, every=True)
    ranks = (of_lanes(job, job.lanes(part), every) for part in parts)
    fullest = (max(lane, key=lambda one: one.peak.total) for lane in zip(*ranks, strict=True))
    hosts = host_peaks(job, parts[0], every.start, every.kept)
    return [one._replace(row=row, host=host) for one, row, host in zip(fullest, rows, hosts, strict=True)]
