"""Weighted max-min fair rates by progressive filling.

All rates rise together; a variable stops when it reaches its own bound or when one of its links is full. The result is the
unique allocation in which no rate can rise without lowering a smaller one (Bertsekas & Gallager, Data Networks, 6.5.2).
A variable of weight w on a link takes w bytes/s of it for every byte/s of its own rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Loads = Sequence[tuple[int, float]]
_FULL = 1e-12


def solve(loads: Sequence[Loads], bounds: Sequence[float], capacity: Mapping[int, float]) -> list[float]:
    """Return the max-min fair rate of every variable.

    loads[v]: (link, weight) pairs of variable v. bounds[v]: its largest rate. capacity[l]: bytes/s of every link named.
    """
    rates = [0.0] * len(loads)
    free = dict(capacity)
    users: dict[int, dict[int, float]] = {}
    for v, pairs in enumerate(loads):
        for link, weight in pairs:
            members = users.setdefault(link, {})
            members[v] = members.get(v, 0.0) + weight
    weight_of = {link: sum(members.values()) for link, members in users.items()}
    active = dict.fromkeys(range(len(loads)))
    level = 0.0
    while active:
        rise = min(_lowest_bound(active, bounds) - level, _first_full(free, weight_of))
        level += rise
        for link, weight in weight_of.items():
            free[link] -= rise * weight
        for v in _stopped(active, bounds, level, users, weight_of, free, capacity):
            rates[v] = min(level, bounds[v])
            del active[v]
            _leave(v, loads[v], users, weight_of)
    return rates


def _lowest_bound(active: Mapping[int, None], bounds: Sequence[float]) -> float:
    return min(bounds[v] for v in active)


def _first_full(free: Mapping[int, float], weight_of: Mapping[int, float]) -> float:
    return min((max(free[link], 0.0) / weight for link, weight in weight_of.items()), default=float("inf"))


def _stopped(
    active: Mapping[int, None],
    bounds: Sequence[float],
    level: float,
    users: Mapping[int, Mapping[int, float]],
    weight_of: Mapping[int, float],
    free: Mapping[int, float],
    capacity: Mapping[int, float],
) -> list[int]:
    full = [link for link in weight_of if free[link] <= _FULL * capacity[link]]
    stopped = {v: None for link in full for v in users[link]}
    stopped |= {v: None for v in active if bounds[v] <= level * (1 + _FULL)}
    return list(stopped)


def _leave(v: int, pairs: Loads, users: Mapping[int, dict[int, float]], weight_of: dict[int, float]) -> None:
    for link, _ in pairs:
        if users[link].pop(v, None) is None:
            continue
        if users[link]:
            weight_of[link] = sum(users[link].values())
        else:
            del weight_of[link]
