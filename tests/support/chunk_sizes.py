"""Sizes of the chunks that the steps of a collective send."""

from clustersim.collectives.model import SKEWED, Group


def fraction_of(op: str, group: Group, chunks: int, chunk: int) -> float:
    """Return the size of a chunk divided by the size S of the collective; S of an all_to_all is the bytes of one rank.

    Chunk s·n + d of a dispatch holds the rows of rank s for the experts of rank d; in a combine, their results from d to s.
    """
    if op not in SKEWED:
        return 1 / chunks
    expert = chunk // group.n if op == "combine" else chunk % group.n
    return group.shares[expert] if group.shares else 1 / group.n
