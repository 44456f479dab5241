"""Published times of 16-bit vector kernels: `kernels/published_kernels.csv` of a data folder, as samples to be judged by.

Profilers and CUDA graphs timed them: kernels alone, no dispatch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clustersim.errors import DataError
from clustersim.lab.data.samples import Samples
from clustersim.lab.data.sources import Data, csv, places
from clustersim.model.kernel import Kernel, vector
from clustersim.predictors.features import columns

if TYPE_CHECKING:
    pass

TABLE = "kernels/published_kernels.csv"
PREFIX = "published/"
_BOARDS = {"A100-SXM4-80GB": "a100-sxm-80gb", "H100-SXM5-80GB": "h100-sxm", "H200-SXM-141GB": "h200-sxm"}
_BOARDS |= {"B200-SXM-180GB": "b200-sxm"}
_COLUMNS = ("gpu", "kernel", "dims", "us")

Sizes = dict[str, int]


def _rope(size: Sizes) -> Kernel:
    heads = size["hidden"] // size["tp"]
    grouped = 8 if size["hidden"] == 8192 else 1  # Llama-2-70B has 8 key heads for 64 query heads
    return vector("elementwise", "unfused_rope", "fp16", size["tokens"], heads + heads // grouped, 6.0, 4)


_KERNELS: dict[str, Callable[[Sizes], Kernel]] = {
    "rmsnorm": lambda s: vector("layernorm", "unfused_rmsnorm", "fp16", s["tokens"], s["hidden"], 6.0, 4),
    "swiglu": lambda s: vector("elementwise", "unfused_swiglu", "fp16", s["tokens"], s["ffn"] // s["tp"], 1.0, 6),
    "residual_add": lambda s: vector("elementwise", "add", "fp16", s["tokens"], s["hidden"], 1.0, 6),
    "embedding": lambda s: vector("memory", "embedding", "fp16", s["tokens"], s["hidden"], 0.0, 4),
    "rope": _rope,
    "fp8_cast": lambda s: vector("memory", "quantize", "bf16", s["M"], s["K"], 0.0, 3),
}


def published(data: Data | Path) -> dict[str, Samples]:
    """Return the published 16-bit vector kernels by `published/<kernel>`, empty when the folder has no such table.

    Raises DataError for a table without the columns gpu, kernel, dims and us, or with a row that cannot be read.
    """
    import polars as pl

    found: dict[str, Samples] = {}
    for path in (place / TABLE for place in places(data) if (place / TABLE).is_file()):
        rows = csv(path, _COLUMNS).filter(pl.col("kernel").is_in([*_KERNELS]) & (pl.col("us") > 0)).rows()
        each = {name: [row for row in rows if row[1] == name and _board(row[0])] for name in _KERNELS}
        found |= {PREFIX + name: _samples(path, part) for name, part in each.items() if part}
    return found


def _board(text: str) -> str:
    return _BOARDS.get(text.split(" ", maxsplit=1)[0], "")


def _samples(path: Path, rows: list[tuple[str, str, str, float]]) -> Samples:
    kernels = []
    for _, name, dims, _ in rows:
        sizes = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", dims)}
        try:
            kernels.append(_KERNELS[name](sizes))
        except (KeyError, ZeroDivisionError) as error:
            raise DataError(f"{path}: {name} with dims {dims!r} lacks a size") from error
    boards = np.array([_board(row[0]) for row in rows])
    return Samples(columns(kernels), boards, np.array([row[3] for row in rows]) * 1e-6)
