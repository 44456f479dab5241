"""The model against measured nccl-tests: the errors that docs/collectives.md states."""

import os
from pathlib import Path
from statistics import median

import nccl_rows
import pytest
from nccl_rows import measured

DATA = os.environ.get("CLUSTERSIM_DATA")
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not DATA, reason="$CLUSTERSIM_DATA names no folder of measured tables"),
]


@pytest.fixture(scope="module")
def found():
    return measured(Path(DATA))


def error(rows):
    return median(abs(nccl_rows.error(row)) for row in rows)


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize(("size", "most"), [(">= 64 MiB", 0.10), ("<= 1 MiB", 0.25)])
def test_median_error_of_time(found, single, fresh, size, most):
    """All rows, and those of other sources than the one that the constants were chosen on."""
    rows = [
        row
        for row in found
        if (row.place == "one domain") is single and row.band == size and not (fresh and row.chosen_on)
    ]
    assert len(rows) > 50
    assert error(rows) <= most


@pytest.mark.parametrize("gpu", ["A100", "H100", "H200", "B200", "GB200"])
def test_single_nodes_of_every_gpu(found, gpu):
    rows = [row for row in found if row.domains == 1 and row.gpu.startswith(gpu)]
    assert error(row for row in rows if row.band == ">= 64 MiB") <= 0.05
    assert error(row for row in rows if row.band == "<= 1 MiB") <= 0.10


def test_nvls_trees_from_4_to_1024_nodes(found):
    """NVIDIA's curves of NVLSTree (GTC 2024, S62129), which were in view when the trees' chunk was settled."""
    rows = [row for row in found if row.source.startswith("NVIDIA GTC24") and row.size >= 2**20]
    assert {row.nodes for row in rows} == {2**k for k in range(2, 11)}
    assert error(rows) <= 0.06
