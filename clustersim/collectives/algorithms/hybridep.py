"""HybridEP: a token crosses to each node once, on its own rail, and goes on to each GPU that has its experts.

Models NVIDIA's kernels in the branch hybrid-ep of deepseek-ai/DeepEP (csrc/hybrid_ep). They carry the same bytes as DeepEP, but
transfers between and inside nodes take as long as one after the other. With that and the overhead per call (`plan.CALLS`),
forecasts for 2, 4 and 8 nodes of H100 are within 11 % of the dispatch and combine times in docs/README_Hybrid-EP.md there.
"""

from __future__ import annotations

from clustersim.collectives.algorithms.deepep import OPS, pairs_of, steps
from clustersim.collectives.model import Group, Phase, merged

__all__ = ["OPS", "phases", "steps"]


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return one phase between nodes and one inside nodes, in reverse order for combine. Raises InputError if ranks have
    different numbers of rows."""
    dispatch_phases = tuple(merged(1, *pairs) for pairs in pairs_of("hybridep", group) if pairs)
    return dispatch_phases if op == "dispatch" else dispatch_phases[::-1]
