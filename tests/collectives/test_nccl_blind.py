"""The model against nccl-tests that it had not seen: the errors that docs/collectives.md states as blind."""

from statistics import median

import pytest
from nccl_rows import BANDS, blind, error


def test_what_is_in_the_table():
    rows = blind()
    assert (len(rows), len({row.source for row in rows})) == (930, 37)
    assert len(set(rows)) == len(rows)
    assert {row.op for row in rows} == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send"}
    assert sum(row.amd for row in rows) == 97


def median_error(place, band, op=None, amd=False):
    rows = [row for row in blind() if row.amd is amd and (row.place, row.band) == (place, band)]
    return median(abs(error(row)) for row in rows if op in (None, row.op))


@pytest.mark.parametrize(
    ("place", "most"),
    [("one domain", (0.07, 0.18, 0.46)), ("several", (0.10, 0.36, 0.42))],
)
def test_median_error_of_time(place, most):
    """At or above 64 MiB, between, at or below 1 MiB, on NVIDIA GPUs."""
    for band, bound in zip(BANDS, most, strict=True):
        assert median_error(place, band) <= bound, band


@pytest.mark.parametrize(
    ("place", "op", "most"),
    [
        ("one domain", "all_reduce", 0.04),
        ("one domain", "all_gather", 0.12),
        ("one domain", "reduce_scatter", 0.09),
        ("one domain", "all_to_all", 0.08),
        ("several", "all_reduce", 0.09),
        ("several", "all_gather", 0.13),
        ("several", "reduce_scatter", 0.05),
        ("several", "all_to_all", 0.06),
    ],
)
def test_large_messages_of_every_operation(place, op, most):
    assert median_error(place, BANDS[0], op) <= most


@pytest.mark.parametrize(("place", "most"), [("one domain", 0.03), ("several", 0.09)])
def test_large_messages_on_amd(place, most):
    """RCCL, which the model had not been held against when it was written."""
    assert median_error(place, BANDS[0], amd=True) <= most
