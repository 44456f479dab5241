"""Assigns nodes in turn, so that all jobs share every leaf in proportion to their sizes."""

from __future__ import annotations

from collections.abc import Sequence


def place(wanted: Sequence[int], free: Sequence[int], seed: int) -> list[list[int]]:
    """Return the nodes of each job: each free node in order goes to the job that is farthest behind its share.

    Jobs of equal size alternate. This is the largest-deficit rule of weighted round-robin: before node i, a job that wants w of
    all W nodes is behind by (i + 1)·w/W minus the number it has. Of equal jobs the first gets the node.
    """
    result: list[list[int]] = [[] for _ in wanted]
    total = sum(wanted)
    for i, node in enumerate(free[:total]):
        behind = [(i + 1) * w - len(own) * total for w, own in zip(wanted, result, strict=True)]
        open_jobs = [job for job, w in enumerate(wanted) if len(result[job]) < w]
        result[max(open_jobs, key=lambda job: behind[job])].append(node)
    return result
