"""The best points of a space; or why there is none, and what would have a result: each named figure was simulated."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

from clustersim.errors import ClustersimError, InputError, OutOfMemoryError, SimulationError, option
from clustersim.frameworks.table import offers
from clustersim.optimization.fit import advice, remedies
from clustersim.optimization.objective import Objective, objective, priced
from clustersim.optimization.search import TO_THE_END, Limits, SearchProgress, SearchResult, by_memory, search
from clustersim.optimization.space import CandidateSpace
from clustersim.parallel.check import context_parallel, encoder_decoder
from clustersim.parallel.job import divisors
from clustersim.parallel.options import KEYS, change_words
from clustersim.report.verdicts import band, verdict
from clustersim.sweeps.check import check
from clustersim.sweeps.evaluate import SweepInputs, evaluate
from clustersim.sweeps.legal import CUTS, FRAMEWORK, GRAD_REDUCE, TP_OVERLAP, check_values
from clustersim.sweeps.space import NODES, Point, SweepSpace
from clustersim.units import gibibytes, plural, three_digits

CP, SEQ, EXPERT_TP = KEYS["cp"], KEYS["seq"], "parallelism.expert_tp"
SEQUENCE_PARALLEL = "parallelism.sequence_parallel"
PART = 2048
"""Smallest number of tokens of a sequence per context-parallel rank, unless the user asks for other degrees."""
SMALLEST: Point = {GRAD_REDUCE: True, TP_OVERLAP: "none"}
"""Overlap settings of the points that need least memory: 2 of `zero` frees gradients as they are reduced."""
CHECKED = 64
"""Number of splits whose cluster and workload are checked before anything is bounded."""
DOUBLED = 8
"""Largest number of times that the nodes are doubled to find a sufficient number."""


def answer(
    case: SweepInputs,
    sweep: SweepSpace,
    wanted: Objective,
    top: int = 5,
    show: SearchProgress = lambda *_: None,
    limits: Limits = TO_THE_END,
) -> SearchResult:
    """Return the `top` points of a space that minimize an objective.

    Keys missing in the space have the workload's values, except those added by `wider`. Raises InputError if no point has a
    result.
    """
    check_values(case, sweep)
    sweep = wider(case, sweep)
    space = CandidateSpace(case, sweep)
    check(case, [space.completed(split) for split in space.splits[:CHECKED]])
    priced(wanted.name, *(tile.cluster for tile in space.tiles))
    show(0, space.points, None)
    result = search(case, space, wanted, top, show, limits)
    if not result.best:
        raise _refusal(case, sweep, space, result)
    return result


def wider(case: SweepInputs, sweep: SweepSpace) -> SweepSpace:
    """Return a space with useful degrees of context parallelism and slices of experts, where the user sets none.

    Values of cp that leave at least `PART` tokens of a sequence together; for a mixture of experts, all slices. A layout in the
    workload applies only to its own number of stages: other stages are cut by computation.
    """
    known, axes, auto, fixed = {*sweep.axes, *sweep.fixed, *sweep.auto}, dict(sweep.axes), sweep.auto, sweep.fixed
    *written, cut = ((f"parallelism.{key}", getattr(case.base.parallelism, key)) for key in CUTS)
    cuts = [key for key, value in written if value is not None and key not in known]
    if cuts and cut[0] not in known and not {KEYS["pp"], KEYS["vpp"]}.isdisjoint((*axes, *auto)):
        fixed = {**fixed, **dict.fromkeys(cuts), cut[0]: "compute"}
    if CP not in known and len(degrees := _context_degrees(case, sweep)) > 1:
        axes[CP] = degrees
    if EXPERT_TP not in known and case.base.model.experts:
        auto = (*auto, EXPERT_TP)
    return replace(sweep, axes=axes, auto=auto, fixed=fixed)


def untried(case: SweepInputs, sweep: SweepSpace) -> str:
    """Return a note on a choice that changes steps but is not tried, because nothing names it; "" without one."""
    written = {f"parallelism.{name}" for name in case.base.parallelism.model_fields_set}
    if SEQUENCE_PARALLEL in {*sweep.axes, *sweep.fixed, *sweep.auto, *written}:
        return ""
    return f"all without sequence parallelism, as the workload says nothing of it; --set {SEQUENCE_PARALLEL}=auto tries both"


def _context_degrees(case: SweepInputs, sweep: SweepSpace) -> list[int]:
    """Return the legal degrees of cp that leave enough tokens together, on the first cluster of a space; [] if none."""
    with suppress(InputError):
        first = sweep.space()[0]
        gpus, seq = case.cluster(first).simulator.cluster.gpus, str(first.get(SEQ, case.base.training.seq))
        tokens = int(seq) if seq.isdecimal() else 0
        offered = offers(first.get(FRAMEWORK, case.base.training.framework)).get(CP)
        degrees = [d for d in divisors(math.gcd(gpus, tokens // PART or 1)) if offered is None or offered.has(d, 1)]
        jobs = {d: case.base.changed({CP: d, SEQ: tokens}) for d in degrees}
        return [d for d, job in jobs.items() if not any((*context_parallel(job), *encoder_decoder(job)))]
    return []


def _refusal(case: SweepInputs, sweep: SweepSpace, space: CandidateSpace, result: SearchResult) -> ClustersimError:
    """Return the error, with a remedy where one is known, of a search without any point that has a result."""
    if result.points > sum(result.refused.counts.values()):  # what is left was too slow for the target
        fastest = search(case, space, objective("soonest"), 1)
        if fastest.best:
            return _too_slow(fastest)
    return _too_large(case, sweep, space) or _wrong(case, space)


def _too_slow(fastest: SearchResult) -> InputError:
    """Return the error for a target that no point reaches, with the speed of the fastest as remedy."""
    speed = fastest.best[0].row["tokens_per_s"]
    target = f"{three_digits(speed, math.floor):.0f}"
    less = option(f"--target {target}", f"target={target}")
    return InputError(
        f"{option('--target', 'target=')}: no point is so fast; the fastest of {plural(fastest.points, 'point', 'points')} has "
        f"{speed:,.0f} tokens/s ({_words(fastest.best[0].point)}); ask for {less}, or give more GPUs"
    )


def _wrong(case: SweepInputs, space: CandidateSpace) -> ClustersimError:
    """Return an error with the reason of the first point: SimulationError if its simulation failed, else InputError."""
    row = evaluate(case, space.completed(space.splits[0]))
    kind = SimulationError if row["status"] == "failed" else InputError
    return kind(f"none of {plural(space.points, 'point', 'points')} has a result, such as the first: {row['reason']}")


def _too_large(case: SweepInputs, sweep: SweepSpace, space: CandidateSpace) -> OutOfMemoryError | None:
    """Return the error with the memory of the smallest point, and changes that would fit; None if no point is legal."""
    sweep = replace(sweep, fixed={**sweep.fixed, **{key: SMALLEST[key] for key in space.chosen if key in SMALLEST}})
    smallest = _smallest(case, CandidateSpace(case, sweep))
    if smallest is None:
        return None
    need, point = smallest
    simulator = case.cluster(point).simulator
    have, gpu = simulator.cluster.memory, simulator.cluster.gpu.name
    more = f"pass {option('--unlikely', 'unlikely=True')}, or " if verdict(need, have) == "unlikely" else ""
    error = OutOfMemoryError(
        f"none of {plural(space.points, 'point', 'points')} likely fits: the smallest ({_words(point)}) needs {gibibytes(need)}, "
        f"and {gpu} has {gibibytes(have)}: {band(need, have).text}; {more}give {_nodes(case, sweep, simulator.cluster.nodes)}"
    )
    error.advice = advice(remedies(simulator, case.job(point)))
    return error


def _nodes(case: SweepInputs, sweep: SweepSpace, nodes: int) -> str:
    """Return in words the first doubling of `nodes` on which the smallest point of the space fits, and other remedies."""
    other = "GPUs with more memory or a smaller model"
    axes = {key: values for key, values in sweep.axes.items() if key != NODES}
    for count in (nodes * 2**power for power in range(1, DOUBLED + 1)):
        with suppress(InputError):
            grown = CandidateSpace(case, replace(sweep, axes=axes, fixed={**sweep.fixed, NODES: count}))
            smallest = _smallest(case, grown)
            if smallest and evaluate(case, smallest[1])["status"] == "ok":
                return f"{count} nodes ({_words(smallest[1])} fits there), {other}"
    return other


def _words(point: Point) -> str:
    return " ".join(change_words(point))


def _smallest(case: SweepInputs, space: CandidateSpace) -> tuple[float, Point] | None:
    """Return (peak bytes of a GPU, point) of the point that needs least memory; None if no point is legal."""
    best: tuple[float, Point] | None = None
    for least, point in by_memory(space):
        if best and least >= best[0]:
            break
        if (need := _peak_bytes(case, point)) < (best[0] if best else math.inf):
            best = need, point
    return best


def _peak_bytes(case: SweepInputs, point: Point) -> float:
    """Return the peak bytes of the GPU that needs most; infinity if the point is illegal."""
    simulator = case.cluster(point).simulator
    with suppress(InputError):
        return max(peak.total for peak in simulator.preparation.peaks(simulator.placed(case.job(point))))
    return math.inf
