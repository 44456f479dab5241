"""HybridEP: a token crosses to a node once, by its own rail, and goes on to each GPU that has experts of it.

NVIDIA's kernels of the branch hybrid-ep of deepseek-ai/DeepEP (csrc/hybrid_ep). They carry what DeepEP's do, but both ways take
as long as one after the other: with that, and what each call takes besides (`plan.CALLS`), 2, 4 and 8 nodes of H100 are within
11 % of the times of a dispatch and a combine that docs/README_Hybrid-EP.md there has.
"""

from __future__ import annotations

from clustersim.collectives.algorithms.deepep import OPS, pairs_of, steps
from clustersim.collectives.model import Group, Phase, merged

__all__ = ["OPS", "phases", "steps"]


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return a phase between nodes and one inside of them; combine goes the other way round. Raises as `deepep.pairs_of`."""
    found = tuple(merged(1, *pairs) for pairs in pairs_of("hybridep", group) if pairs)
    return found if op == "dispatch" else found[::-1]
