"""Proof of a collective: run its steps on sets of contributions and compare the final content of every rank.

As in the pre- and postconditions of SCCL (Cai et al. 2021, section 3) and MSCCL. A chunk is the set of ranks whose values it
sums, so that a lost, doubled or misplaced contribution is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import attrgetter

from clustersim.collectives.model import SKEWED, Step
from clustersim.errors import SimulationError

Contributions = dict[tuple[int, int], int]
"""{(rank, chunk): bit mask of the ranks whose values are summed in it}"""


def chunks_of(op: str, n: int, steps: Iterable[Step]) -> int:
    """Return the number of chunks of `op`: n² for all_to_all, dispatch and combine, else 1 + the largest in `steps`."""
    return n * n if op in SKEWED else 1 + max(step.chunk for step in steps)


def check(op: str, n: int, steps: Iterable[Step]) -> None:
    """Prove that `steps` turn the precondition of `op` over `n` ranks into its postcondition.

    all_reduce: every rank ends with every chunk of the sum. reduce_scatter: rank r ends with part r of the sum. all_gather: part
    r starts on rank r, and all end everywhere. broadcast, reduce: the root is rank 0. all_to_all, dispatch, combine: chunk s·n +
    d goes from rank s to rank d. Raises SimulationError with the first step or chunk that is wrong.
    """
    ordered = sorted(steps, key=attrgetter("round"))
    chunks = chunks_of(op, n, ordered)
    if op in ("all_gather", "reduce_scatter") and chunks % n:
        raise SimulationError(f"{op} over {n} ranks needs a multiple of {n} chunks, not {chunks}")
    contents, received = _start(op, n, chunks), Contributions()
    for _, together in groupby(ordered, key=attrgetter("round")):
        _execute_round(tuple(together), contents, received)
    for cell, expected in _end(op, n, chunks).items():
        if contents.get(cell) != expected:
            raise SimulationError(
                f"{op} over {n} ranks: rank {cell[0]} ends with {_shown(contents.get(cell))} in chunk {cell[1]}, "
                f"not with {_shown(expected)}"
            )


def _start(op: str, n: int, chunks: int) -> Contributions:
    """Return {(rank, chunk): bit mask} before `op` over `n` ranks. chunks: number of chunks of the whole array."""
    if op == "broadcast":
        return {(0, c): 1 for c in range(chunks)}
    if op in ("all_gather", *SKEWED):
        return {(c * n // chunks, c): 1 << (c * n // chunks) for c in range(chunks)}
    return {(r, c): 1 << r for r in range(n) for c in range(chunks)}


def _end(op: str, n: int, chunks: int) -> Contributions:
    """Return {(rank, chunk): bit mask of the ranks summed in it} after `op` over `n` ranks.

    chunks: number of chunks of the whole array. The root of broadcast and reduce is rank 0.
    """
    everything = (1 << n) - 1
    if op == "all_reduce":
        return {(r, c): everything for r in range(n) for c in range(chunks)}
    if op == "reduce":
        return {(0, c): everything for c in range(chunks)}
    if op == "reduce_scatter":
        return {(c * n // chunks, c): everything for c in range(chunks)}
    if op in SKEWED:
        return {(c % n, c): 1 << (c // n) for c in range(chunks)}
    return {(r, c): mask for r in range(n) for (_, c), mask in _start(op, n, chunks).items()}


def _execute_round(together: tuple[Step, ...], contents: Contributions, received: Contributions) -> None:
    """Execute the steps of one round: update `contents`, and `received`, the mask that each rank last received in each chunk.

    Raises SimulationError if two steps overwrite the same chunk, a sum counts a rank twice, or a sent chunk is missing.
    """
    sent = [_sent(step, received if step.relay else contents) for step in together]
    overwritten = [(step.destination, step.chunk) for step in together if not step.reduce]
    if len(set(overwritten)) < len(overwritten):
        raise SimulationError(f"two steps overwrite one chunk in round {together[0].round}: {together}")
    for step, mask in zip(together, sent, strict=True):
        cell = step.destination, step.chunk
        held = contents.get(cell, 0) if step.reduce else 0
        if held & mask:
            raise SimulationError(f"{step} adds {_shown(held & mask)} twice")
        contents[cell], received[cell] = held | mask, mask


def _sent(step: Step, source: Mapping[tuple[int, int], int]) -> int:
    """Return the bit mask in `source` of the chunk that a step sends. Raises SimulationError if the sender does not have it."""
    mask = source.get((step.source, step.chunk))
    if mask is None:
        raise SimulationError(f"{step} sends a chunk that rank {step.source} does not have")
    return mask


def _shown(mask: int | None) -> str:
    """Return the ranks in a bit mask as text; `nothing` for 0 and None."""
    ranks = [str(r) for r in range((mask or 0).bit_length()) if (mask or 0) >> r & 1]
    return f"the contributions of ranks {', '.join(ranks)}" if ranks else "nothing"
