"""The measured kernels of each class, from all tables and files that `--data` names."""

from __future__ import annotations

from pathlib import Path

from clustersim.errors import DataError
from clustersim.lab.data import tables
from clustersim.lab.data.own_measurements import measured
from clustersim.lab.data.published_kernels import published
from clustersim.lab.data.samples import Samples, merge, pick
from clustersim.lab.data.sources import ATTENTION, FP32, GEMM, Data, holds, own_files, places
from clustersim.lab.data.sources import GROUPED as EXPERTS
from clustersim.predictors.classes import GROUPED, SIMT, TENSOR, route

BUSY = "busy/"
"""Before the class of a user's own kernels where the class has tables of eager calls: his rows hold no dispatch, theirs do."""


def test_samples(data: Data | Path, split: str = "test") -> dict[str, Samples]:
    """Return the measured kernels of each class: FP32 of one split, all of the tensor-core ones, and a user's own.

    Tables that no place holds are left out. Raises DataError when nothing is left.
    """
    own = own_samples(data).items()
    parts: dict[str, list[Samples]] = {(BUSY + name if name in SIMT else name): [samples] for name, samples in own}
    simt = tables.fp32(data, split) if holds(data, FP32) else None
    found = {name: pick(simt, name) for name in SIMT} if simt else {}
    for name, samples in (found | tensor_samples(data) | published(data)).items():
        parts.setdefault(name, []).insert(0, samples)
    filled = {name: merge(part) for name, part in parts.items() if any(map(len, part))}
    if not filled:
        raise DataError(f"{', '.join(map(str, places(data)))}: no measured kernel of a class that is learned")
    return filled


def tensor_samples(data: Data | Path) -> dict[str, Samples]:
    """Return the measured kernels of the tensor-core classes, as far as a place has their tables."""
    found: dict[str, Samples] = {}
    for table, kind in ((GEMM, "linear"), (ATTENTION, "flash_attention"), (EXPERTS, "grouped_gemm")):
        if holds(data, table):
            samples = _tensor_table(data, table)
            found |= {name: pick(samples, name) for name in (*TENSOR, *GROUPED) if name.endswith(f"/{kind}")}
    return {name: samples for name, samples in found.items() if len(samples)}


def _tensor_table(data: Data | Path, table: str) -> Samples:
    if table == GEMM:
        return training_shapes(tables.gemm(data))
    return tables.attention(data) if table == ATTENTION else tables.experts(data)


def own_samples(data: Data | Path) -> dict[str, Samples]:
    """Return a user's own measured kernels by class, of GEMMs those of training shapes. Raises DataError."""
    files = measured(own_files(data))
    if not files:
        return {}
    samples = merge(files)
    picked = {name: pick(samples, name) for name in dict.fromkeys(route(samples.table).tolist())}
    return {name: training_shapes(s) if name in TENSOR and name.endswith("linear") else s for name, s in picked.items()}


def training_shapes(samples: Samples, least: int = 128) -> Samples:
    """Return the GEMMs whose three sides are at least `least`: those of training, not of decoding a token at a time."""
    table = samples.table
    return samples.select((table.m >= least) & (table.n >= least) & (table.k >= least))
