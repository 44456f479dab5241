"""Benchmarks, which no test runs, find what they import."""

import runpy

import pytest
from documents import ROOT


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_can_be_imported(path, monkeypatch):
    monkeypatch.syspath_prepend(path.parent)
    runpy.run_path(str(path), run_name="benchmark")
