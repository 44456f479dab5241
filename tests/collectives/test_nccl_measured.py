"""The model against measured nccl-tests: the errors that docs/collectives.md states."""

import os
from pathlib import Path
from statistics import median

import pytest
from nccl_rows import checks

DATA = os.environ.get("CLUSTERSIM_DATA")
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not DATA, reason="$CLUSTERSIM_DATA names no folder of measured tables"),
]


@pytest.fixture(scope="module")
def found():
    return checks(Path(DATA))


def error(rows):
    return median(abs(row.error) for row in rows)


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize(("size", "most"), [(">= 64 MiB", 0.10), ("<= 1 MiB", 0.25)])
def test_median_error_of_time(found, single, fresh, size, most):
    """All rows, and those of other sources than the one that the constants were chosen on."""
    rows = [row for row in found if row.single is single and row.size == size and not (fresh and row.chosen_on)]
    assert len(rows) > 50
    assert error(rows) <= most


@pytest.mark.parametrize("gpu", ["A100", "H100", "H200", "B200", "GB200"])
def test_single_nodes_of_every_gpu(found, gpu):
    rows = [row for row in found if row.single and row.run.gpu.startswith(gpu)]
    assert error(row for row in rows if row.size == ">= 64 MiB") <= 0.05
    assert error(row for row in rows if row.size == "<= 1 MiB") <= 0.10


def test_nvls_trees_from_4_to_1024_nodes(found):
    """NVIDIA's curves of NVLSTree (GTC 2024, S62129), which were in view when the trees' chunk was settled."""
    rows = [row for row in found if row.run.source.startswith("NVIDIA GTC24") and row.run.size >= 2**20]
    assert {row.run.nodes for row in rows} == {2**k for k in range(2, 11)}
    assert error(rows) <= 0.06
