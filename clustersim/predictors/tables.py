"""Measured kernels: the tidy tables of a data folder, as samples that predictors learn from and are judged by.

Layout of the folder (parquet): `neusight/kernels_fp32` (sitar-lab/NeuSight, MIT: one eager FP32 call a row),
`kernels/gemm` and `kernels/attention_forward` (ai-dynamo/aiconfigurator, Apache-2.0: tensor-core GEMMs and causal
attention, timed in CUDA graphs).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clustersim.config.gpu import BYTES
from clustersim.errors import DataError
from clustersim.predictors.columns import Columns, Floats
from clustersim.predictors.samples import Samples, join

if TYPE_CHECKING:
    import polars as pl

FP32 = "neusight/kernels_fp32.parquet"
GEMM = "kernels/gemm.parquet"
ATTENTION = "kernels/attention_forward.parquet"

_COLUMNS = {
    FP32: ("vendor", "split", "group", "op", "gpu", "b", "m", "n", "k", "h", "latency_s"),
    GEMM: ("gpu", "dtype", "m", "n", "k", "latency_s"),
    ATTENTION: ("gpu", "kernel", "dtype", "batch", "seq", "heads", "kv_heads", "head_dim", "latency_s"),
}
_DTYPES = {"bfloat16": "bf16", "fp8": "fp8", "nvfp4": "fp4"}
_BINARY = ("add", "mul", "div", "pow")
_FLOP = {"softmax": 5.0, "layernorm": 6.0, "elementwise": 1.0}
_FLASH = (
    "a100_sxm:bfloat16:flash_attention",
    "l40s:bfloat16:vllm_flash_attn_fa2",
    *(f"{gpu}:{dtype}:fa3" for gpu in ("h100_sxm", "h200_sxm") for dtype in ("bfloat16", "fp8")),
    *(f"{gpu}:{dtype}:trtllm_mha" for gpu in ("b300_sxm", "gb200") for dtype in ("bfloat16", "fp8")),
)


def folder(data: str | Path | None = None) -> Path:
    """Return the data folder: `data`, or else $CLUSTERSIM_DATA. Raises DataError when there is none."""
    path = data or os.environ.get("CLUSTERSIM_DATA")
    if not path:
        raise DataError("no folder of measurements is given; pass --data DIR or set $CLUSTERSIM_DATA")
    if not Path(path).is_dir():
        raise DataError(f"{path}: no such folder; it should hold {FP32}")
    return Path(path)


def read(data: Path, name: str, more: Sequence[str] = ()) -> pl.DataFrame:
    """Return one table of the folder with the columns that are used, and `more`. Raises DataError for what is missing."""
    import polars as pl

    path = data / name
    if not path.is_file():
        raise DataError(f"{path}: no such table; the folder of measurements should hold {name}")
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path}: cannot be read as parquet: {str(error).splitlines()[0]}") from error
    wanted = (*_COLUMNS[name], *more)
    missing = [column for column in wanted if column not in frame.columns]
    if missing:
        raise DataError(f"{path}: has no column {', '.join(missing)}; expected {', '.join(wanted)}")
    return frame.select(wanted)


def digest(data: Path, names: Sequence[str]) -> str:
    """Return the SHA-256 of the named tables, as 16 hexadecimal digits."""
    state = hashlib.sha256()
    for name in names:
        state.update((data / name).read_bytes())
    return state.hexdigest()[:16]


def fp32(data: Path, split: str) -> Samples:
    """Return the FP32 kernels of one split: linear, bmm, elementwise, softmax, layernorm.

    Training takes NVIDIA's rows (of element-wise kernels the large ones, as NeuSight does) without P4's linear layers, which
    ran at a quarter of the speed that the same GPU reaches in the test split.
    """
    import polars as pl

    frame = read(data, FP32).filter((pl.col("split") == split) & (pl.col("latency_s") > 0))
    raw = pl.col("group").str.starts_with("collect_")
    if split == "train":
        broken = (pl.col("gpu") == "Tesla P4") & (pl.col("op") == "linear")
        frame = frame.filter((pl.col("vendor") == "nvidia") & ~broken)
        frame = frame.filter(~raw | pl.col("op").is_in(["softmax", "ln"]))
    return fp32_samples(frame)


def fp32_samples(frame: pl.DataFrame) -> Samples:
    """Return rows of the FP32 table as samples: products first, then vector kernels, each in the table's order."""
    import polars as pl

    gemms, vectors = frame.filter(pl.col("k").is_not_null()), frame.filter(pl.col("h").is_not_null())
    return join(_fp32_gemms(gemms), _fp32_vectors(vectors))


def _fp32_gemms(frame: pl.DataFrame) -> Samples:
    b, m, reduction, columns = (_numbers(frame, name, 1) for name in ("b", "m", "n", "k"))
    return _gemms(frame, _texts(frame, "op"), _same(frame, "fp32"), b, m, columns, reduction)


def _fp32_vectors(frame: pl.DataFrame) -> Samples:
    op = _texts(frame, "op")
    kind = np.where(op == "ln", "layernorm", np.where(op == "softmax", "softmax", "elementwise"))
    rows, columns = _numbers(frame, "b"), _numbers(frame, "h")
    traffic = np.where(np.isin(op, _BINARY), 12.0, 8.0)
    flop = np.vectorize(_FLOP.__getitem__, otypes=[float])(kind) if len(kind) else np.zeros(0)
    one = np.ones(len(op))
    shape = (one, rows, columns, 0 * one, flop * rows * columns, traffic * rows * columns)
    return _samples(frame, Columns(kind, op, _same(frame, "fp32"), *shape, one, one, one < 0))


def gemm(data: Path) -> Samples:
    """Return the tensor-core GEMMs: bf16, fp8 (one scale a tensor) and fp4, each m×k by k×n."""
    import polars as pl

    frame = read(data, GEMM).filter((pl.col("m") > 0) & (pl.col("latency_s") > 0) & pl.col("dtype").is_in([*_DTYPES]))
    frame = frame.with_columns(pl.col("dtype").replace_strict(_DTYPES))
    one = np.ones(len(frame))
    m, n, k = (_numbers(frame, name) for name in ("m", "n", "k"))
    return _gemms(frame, _same(frame, "linear"), _texts(frame, "dtype"), one, m, n, k)


def _gemms(
    frame: pl.DataFrame, kind: NDArray[np.str_], dtype: NDArray[np.str_], b: Floats, m: Floats, n: Floats, k: Floats
) -> Samples:
    size = np.array([BYTES[name] for name in dtype.tolist()])
    output = np.maximum(size, 2.0)  # fp8 and fp4 products are written in 16 bits
    traffic = b * ((m * k + k * n) * size + m * n * output)
    one = np.ones(len(m))
    return _samples(
        frame,
        Columns(kind, _same(frame, "forward"), dtype, b, m, n, k, 2 * b * m * n * k, traffic, one, one, one < 0),
    )


def attention(data: Path) -> Samples:
    """Return causal attention: of every GPU the kernel that training uses (FlashAttention-2 or 3, or the vendor's).

    B200 is left out: its rows scatter by 40 % from neighbour to neighbour, which those of B300 and GB200 do not.
    """
    import polars as pl

    key = pl.concat_str("gpu", "dtype", "kernel", separator=":")
    frame = read(data, ATTENTION).filter(key.is_in([*_FLASH]) & (pl.col("seq") >= 64) & (pl.col("latency_s") > 0))
    frame = frame.with_columns(pl.col("dtype").replace_strict(_DTYPES))
    dtype = _texts(frame, "dtype")
    b, s, heads, kv, dim = (_numbers(frame, c) for c in ("batch", "seq", "heads", "kv_heads", "head_dim"))
    size = np.array([BYTES[name] for name in dtype.tolist()])
    traffic = 2 * b * s * dim * (heads + kv) * size
    flop = 2 * b * heads * s * s * dim
    kind, op = _same(frame, "flash_attention"), _same(frame, "forward")
    return _samples(frame, Columns(kind, op, dtype, b, s, s, dim, flop, traffic, heads, kv, heads > 0))


def _samples(frame: pl.DataFrame, table: Columns) -> Samples:
    return Samples(table, _texts(frame, "gpu"), _numbers(frame, "latency_s"))


def _numbers(frame: pl.DataFrame, name: str, null: float | None = None) -> Floats:
    import polars as pl

    column = frame[name].cast(pl.Float64)
    return np.array(column if null is None else column.fill_null(null), dtype=np.float64)


def _texts(frame: pl.DataFrame, name: str) -> NDArray[np.str_]:
    return np.array(frame[name].to_list(), dtype=np.str_)


def _same(frame: pl.DataFrame, text: str) -> NDArray[np.str_]:
    return np.full(len(frame), text)
