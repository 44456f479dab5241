"""Colour refinement finds the coarsest partition in which alike vertices see alike neighbours."""

from __future__ import annotations

from collections import Counter

import numpy as np
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.engine.refinement import partition
from clustersim.engine.traffic import Family, Traffic


def _coarsest(colours, edges):
    """Split colours one by one, by what each vertex sees: the definition, as slow as it is."""
    while True:
        seen = {v: Counter() for v in colours}
        for a, b, label in edges:
            seen[a][colours[b], label] += 1
            seen[b][colours[a], label] += 1
        known: dict[object, int] = {}
        fresh = {v: known.setdefault((c, frozenset(seen[v].items())), len(known)) for v, c in colours.items()}
        if len(set(fresh.values())) == len(set(colours.values())):
            return fresh
        colours = fresh


def _parts(of):
    found: dict[int, list[int]] = {}
    for vertex, cell in enumerate(of):
        found.setdefault(cell, []).append(vertex)
    return sorted(found.values())


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_cells_are_the_coarsest_equitable_partition(data):
    n, links = data.draw(st.sampled_from([4, 8, 12])), data.draw(st.integers(0, 6))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 16)))
    seeds = rng.integers(0, 2, n)
    capacity = rng.choice([1e9, 2e9], links)
    families, traffic = [], []
    colours, edges = {("rank", r): ("rank", s) for r, s in enumerate(seeds.tolist())}, []
    colours |= {("link", x): ("link", c) for x, c in enumerate(capacity.tolist())}
    for i, name in enumerate(data.draw(st.sampled_from([["dp"], ["tp", "dp"], ["tp", "p2p-forward"]]))):
        ranks = rng.permutation(n).reshape(-1, 2)
        ranks = ranks[: data.draw(st.integers(1, len(ranks)))]
        count = len(ranks)
        latency, bound = rng.choice([1e-6, 2e-6], count), rng.choice([1e9, 3e9], count)
        family = Family(name, ranks, (2,), "ring")
        group = np.sort(rng.integers(0, count, 5 if links else 0))
        link, weight = rng.integers(0, max(links, 1), len(group)), rng.choice([0.5, 1.0], len(group))
        families.append(family)
        traffic.append(Traffic(name, "send", 0, latency, bound, group, link, weight, lambda: ((), ())))
        colours |= {(name, g): (name, latency[g], bound[g]) for g in range(count)}
        roles = (0, 1) if name.startswith("p2p") else (0, 0)
        edges += [
            (("rank", r), (name, g), roles[at]) for g, own in enumerate(ranks.tolist()) for at, r in enumerate(own)
        ]
        loads = zip(link.tolist(), group.tolist(), weight.tolist(), strict=True)
        edges += [(("link", x), (name, g), (i, w)) for x, g, w in loads]
    expected = _coarsest({v: hash(c) for v, c in colours.items()}, edges)
    found = partition(seeds, families, traffic, traffic, capacity)
    kinds = {"rank": found.ranks, "link": found.links, **found.groups}
    for kind, cells in kinds.items():
        assert _parts(cells.of.tolist()) == _parts([expected[v] for v in colours if v[0] == kind])
        assert [cells.of.tolist().index(c) for c in range(len(cells.first))] == cells.first.tolist()
        assert np.bincount(cells.of, minlength=len(cells.size)).tolist() == cells.size.tolist()
