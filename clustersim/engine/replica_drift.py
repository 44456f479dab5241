"""Parts of a step that nothing joins before its end: replicas of a pipeline, each with a period of its own.

While passes run, a replica waits for its own stages alone. One whose messages cross more switches takes longer for each
microbatch, so that replicas drift apart until the end of the step joins them: a reduction of gradients begins when the last
replica is there. Skipped periods therefore delay each part by its own seconds, and what is joined by those of the latest.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, connected, distinct
from clustersim.engine.contention import LinkUse, peaks
from clustersim.engine.flows import FITS
from clustersim.engine.graph import StepGraph
from clustersim.engine.record import Lateness
from clustersim.engine.tasks import SlotTimes

JOINED, BEGIN = -1, -2
"""In place of a part: of nodes that wait for several; of nodes before all passes, which wait for none."""


def parts(graph: StepGraph, place: Ints, follows: Mask) -> Ints:
    """Return the part of each node; place, follows: as in engine.steady_state.Periods."""
    a, b, _ = graph.arrays
    own = np.flatnonzero((place >= 0) & ~follows)
    rank, before = graph.node_rank.astype(np.int64), np.concatenate([a[own], b[own]])
    inside = place[before] >= 0
    pairs = np.unique(np.concatenate([rank[own], rank[own]])[inside] * graph.ranks + rank[before[inside]])
    part = connected(graph.ranks, *np.divmod(pairs, graph.ranks))
    found = np.where((place >= 0) | follows, part[rank], BEGIN)
    joined = np.zeros(len(found), bool)
    for before in (a, b):
        joined |= follows & (found[before] != BEGIN) & (found[before] != found)
    for begin, end in pairwise(graph.levels):
        level = slice(begin, end)
        joined[level] |= joined[a[level]] | joined[b[level]]
    return np.where(joined, JOINED, found)


class JoinedTimes(NamedTuple):
    """The times of a step whose parts drifted apart."""

    starts: Floats
    ends: Floats
    """Those of nodes that join parts are times of the step; all others leave skipped periods out."""
    lateness: Lateness
    end: float
    """Of the step."""


def joined(
    graph: StepGraph, part: Ints, delayed: Mask, links: LinkUse, times: SlotTimes, ends: Floats, seconds: Floats
) -> JoinedTimes | None:
    """Return the times of a step whose parts do not contend before or while its end joins them; None where they may.

    part: of each node. delayed: the nodes that come after further periods. times: of slots. ends: of the nodes of the short
    step. seconds: by which each node's part is delayed.
    """
    if not _apart(part, links):
        return None
    joining, starts = part == JOINED, graph.starts(ends)
    late = np.where(delayed & ~joining, seconds, 0.0)
    took, seen = ends - starts, (ends + late).tolist()
    ends = ends.copy()
    for node in np.flatnonzero(joining).tolist():
        starts[node] = begun = max(seen[graph.a[node]], seen[graph.b[node]])
        ends[node] = seen[node] = begun + took[node]
    # in the time of the step; of what comes before the last whole period, the ends of its last copies
    begun, over = links.under_way(times, starts + late, ends + np.where(part >= 0, seconds, 0.0))
    if not _joined_alone(joining[links.node], ~(joining | delayed)[links.node], links, begun, over):
        return None
    return JoinedTimes(starts, ends, Lateness(late, joining), max(seen))


def _apart(part: Ints, links: LinkUse) -> bool:
    """Return whether parts fit on the links that they share at whatever times each of them comes there."""
    own, link, many = part[links.node][links.user], links.link.astype(np.int64), len(part)
    rows = np.flatnonzero(own >= 0)
    count = np.bincount(distinct(link[rows] * many + own[rows]) // many)
    rows = rows[count[links.link[rows]] > 1]
    slot = links.slot[links.user[rows]]
    _, once = np.unique(link[rows] * many + slot, return_index=True)  # a task is under way once at a time
    return bool((np.bincount(links.link[rows[once]], links.share[rows[once]]) <= FITS).all())


def _joined_alone(joining: Mask, before: Mask, links: LinkUse, begun: Floats, over: Floats) -> bool:
    """Return whether what joins parts never contends for a link with what they do before it.

    joining, before, begun, over: of each user of links.
    """
    count = int(links.link.max(initial=-1)) + 1
    first, last = np.full(count, np.inf), np.zeros(count)
    begun, over = begun[links.user], over[links.user]
    joining, before = joining[links.user], before[links.user]
    np.minimum.at(first, links.link[joining], begun[joining])
    np.maximum.at(last, links.link[before], over[before])
    if (first < last).any():
        return False
    some = np.flatnonzero(over > first[links.link])
    return bool((peaks(links.link[some], begun[some], over[some], links.share[some], count) <= FITS).all())
