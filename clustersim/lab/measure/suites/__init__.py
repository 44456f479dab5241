"""The kernels that `clustersim lab profile` measures, as plain data: a suite is a list of cases. One file a suite."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from clustersim.lab.measure.case import Case
from clustersim.lab.measure.suites import attention, gemm, grouped, vector

MOST_FLOP = 2e13
"""FLOP of a case at most: 20 to 40 ms on a GPU of 600 to 1,000 TFLOP/s."""

SUITES: dict[str, Callable[[], Iterable[Case]]] = {
    "gemm": gemm.cases,
    "attention": attention.cases,
    "vector": vector.cases,
    "grouped": grouped.cases,
}


def cases(names: Iterable[str]) -> list[Case]:
    """Return the distinct cases of some suites, those of the lowest tier first, none of more than 2e13 FLOP."""
    found: dict[tuple[object, ...], Case] = {}
    for name in names:
        for case in SUITES[name]() if name in SUITES else ():
            key = (case.kernel, case.layout, case.note)
            before = found.get(key)
            if before is None:
                found[key] = case
            else:
                found[key] = before._replace(
                    sustained=before.sustained or case.sustained, tier=min(before.tier, case.tier)
                )
    return sorted((c for c in found.values() if c.kernel.flop <= MOST_FLOP), key=lambda c: c.tier)
