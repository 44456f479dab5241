"""Tidy tables of measured kernels as samples, for training and judging predictors.

Layout of a data folder (parquet): `neusight/kernels_fp32` (sitar-lab/NeuSight, MIT: one eager FP32 call per row), `kernels/gemm`
and `kernels/attention_forward` (ai-dynamo/aiconfigurator, Apache-2.0: tensor-core GEMMs and causal attention, timed in CUDA
graphs). Checkouts of both repositories give the same tables (folder `checkouts`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clustersim.arrays import Floats
from clustersim.errors import DataError
from clustersim.hardware import gpus
from clustersim.hardware.constants import BYTES
from clustersim.lab.data.frames import check_columns
from clustersim.lab.data.own_measurements import measured
from clustersim.lab.data.samples import Samples, gpus_of, merge, pick
from clustersim.lab.data.sources import ATTENTION, FP32, GEMM, Data, csv, holds, own_files, places, tables
from clustersim.lab.data.sources import GROUPED as EXPERTS
from clustersim.model.kernel import Kernel, vector
from clustersim.predictors.classes import GROUPED, SIMT, TENSOR, route
from clustersim.predictors.features import Columns, bound, columns

_COLUMNS = {
    FP32: ("vendor", "split", "group", "op", "gpu", "b", "m", "n", "k", "h", "latency_s"),
    GEMM: ("gpu", "dtype", "m", "n", "k", "latency_s"),
    ATTENTION: ("gpu", "kernel", "dtype", "batch", "seq", "heads", "kv_heads", "head_dim", "latency_s"),
    EXPERTS: ("gpu", "kernel", "dtype", "tokens", "hidden", "ffn", "topk", "experts", "tp", "ep", "latency_s"),
}
_DTYPES = {"bfloat16": "bf16", "fp8": "fp8", "nvfp4": "fp4"}
_BINARY = ("add", "mul", "div", "pow")
_FLOP = {"softmax": 5.0, "layernorm": 6.0, "elementwise": 1.0}
_FLASH = {
    "a100_sxm:bfloat16:flash_attention": (128,),
    "l40s:bfloat16:flash_attention": (128,),
    "l40s:bfloat16:vllm_flash_attn": (64,),
    "b200_sxm:bfloat16:trtllm_mha": (128, 256),
    "b200_sxm:bfloat16:vllm_flashinfer_trtllmprefill": (64,),
    **{f"{gpu}:bfloat16:fa3": (64, 128, 256) for gpu in ("h100_sxm", "h200_sxm")},
    **{f"{gpu}:bfloat16:trtllm_mha": (64, 128, 256) for gpu in ("b300_sxm", "gb200")},
    **{f"{gpu}:fp8:fa3": (128,) for gpu in ("h100_sxm", "h200_sxm")},
    **{f"{gpu}:fp8:trtllm_mha": (128,) for gpu in ("b200_sxm", "b300_sxm", "gb200")},
}
"""Valid libraries and head dimensions for each GPU. Others are broken (up to 20 times the peak) or have other kernels."""
_BROKEN_HEADS = 3


def read(data: Data | Path, name: str) -> pl.DataFrame:
    """Return a table of all places, with the columns in use. Raises DataError if no place has it, or for a missing column."""
    found, wanted = tables(data, name), _COLUMNS[name]
    if not found:
        where = ", ".join(str(path / name) for path in places(data))
        raise DataError(f"{where}: no such table; the folder of measurements should hold {name}")
    for path, frame in found:
        check_columns(path, frame.columns, wanted)
    return pl.concat([frame.select(wanted) for _, frame in found], how="vertical_relaxed")


def fp32(data: Data | Path, split: str) -> Samples:
    """Return the FP32 kernels of one split: linear and bmm first, then elementwise, softmax and layernorm.

    The training split has NVIDIA's rows (of element-wise kernels the large ones, as in NeuSight) without P4's linear layers,
    which ran at a quarter of the speed that the same GPU reaches in the test split.
    """
    frame = read(data, FP32).filter((pl.col("split") == split) & (pl.col("latency_s") > 0))
    raw = pl.col("group").str.starts_with("collect_")
    if split == "train":
        broken = (pl.col("gpu") == "Tesla P4") & (pl.col("op") == "linear")
        frame = frame.filter((pl.col("vendor") == "nvidia") & ~broken)
        frame = frame.filter(~raw | pl.col("op").is_in(["softmax", "ln"]))
    gemms, vectors = frame.filter(pl.col("k").is_not_null()), frame.filter(pl.col("h").is_not_null())
    # the table of linear and bmm names the reduction n and the columns k
    b, m, reduction, columns = (_numbers(gemms, name, 1) for name in ("b", "m", "n", "k"))
    products = _gemms(gemms, _texts(gemms, "op"), np.full(len(gemms), "fp32"), b, m, columns, reduction)
    return merge([products, _fp32_vectors(vectors)])


def _fp32_vectors(frame: pl.DataFrame) -> Samples:
    """Return rows of vector kernels, (b, h) each; binary ones read two inputs."""
    op = _texts(frame, "op")
    kind = np.where(op == "ln", "layernorm", np.where(op == "softmax", "softmax", "elementwise"))
    rows, columns = _numbers(frame, "b"), _numbers(frame, "h")
    traffic = np.where(np.isin(op, _BINARY), 12.0, 8.0)
    flop = np.array([_FLOP[name] for name in kind.tolist()], dtype=np.float64)
    return _samples(frame, kind, op, "fp32", 1.0, rows, columns, 0.0, flop * rows * columns, traffic * rows * columns)


def gemm(data: Data | Path) -> Samples:
    """Return the tensor-core GEMMs of kind `linear`: bf16, fp8 (one scale per tensor) and fp4, each m×k by k×n."""
    frame = read(data, GEMM).filter((pl.col("m") > 0) & (pl.col("latency_s") > 0) & pl.col("dtype").is_in([*_DTYPES]))
    m, n, k = (_numbers(frame, name) for name in ("m", "n", "k"))
    return _gemms(frame, "linear", _dtypes(frame), np.ones(len(frame)), m, n, k)


def _gemms(
    frame: pl.DataFrame, kind: RowValues, dtype: NDArray[np.str_], b: Floats, m: Floats, n: Floats, k: Floats
) -> Samples:
    """Return the rows as GEMMs of op `forward`, `b` of m×k by k×n each; fp8 and fp4 ones write 16 bits."""
    size = _sizes(dtype)
    traffic = b * ((m * k + k * n) * size + m * n * np.maximum(size, 2.0))
    return _samples(frame, kind, "forward", dtype, b, m, n, k, 2 * b * m * n * k, traffic)


def attention(data: Data | Path) -> Samples:
    """Return causal attention of inference servers, op `prefill`, with the kernel nearest to training's on every GPU.

    Rows have at least 128 queries and a block for each SM. Below that, libraries split keys or pack heads, unlike in training.
    Rows faster than the roofline ran on data in L2, or not at all, and are left out.
    """
    key = pl.concat_str("gpu", "dtype", "kernel", "head_dim", separator=":")
    valid = [f"{name}:{dim}" for name, dims in _FLASH.items() for dim in dims]
    kept = key.is_in(valid) & (pl.col("heads") != _BROKEN_HEADS) & (pl.col("seq") >= 128) & (pl.col("latency_s") > 0)
    frame = read(data, ATTENTION).filter(kept)
    dtype = _dtypes(frame)
    b, s, heads, kv, dim = (_numbers(frame, c) for c in ("batch", "seq", "heads", "kv_heads", "head_dim"))
    size = _sizes(dtype)
    traffic = b * s * dim * (heads * (size + 2) + 2 * kv * size)
    flop = 2 * b * heads * s * s * dim
    found = _samples(
        frame, "flash_attention", "prefill", dtype, b, s, s, dim, flop, traffic, heads=heads, kv_heads=kv, causal=True
    )
    return found.select(_possible(found, full=True))


def _possible(samples: Samples, full: bool) -> NDArray[np.bool_]:
    """Return a mask of kernels that are not faster than the roofline and, with `full`, have 128 queries for each SM."""
    table, result = samples.table, np.zeros(len(samples), dtype=bool)
    for name, rows in gpus_of(samples).items():
        gpu, part = gpus.load(name), table.select(rows)
        queries = part.batch * part.heads * np.ceil(part.m / 128) >= gpu.sms
        result[rows] = (samples.seconds[rows] >= bound(part, gpu)) & (queries | (not full))
    return result


def experts(data: Data | Path) -> Samples:
    """Return gated expert layers without expert parallelism, op `layer`, with at least 64 rows per expert.

    Each layer has the fastest time of at least two libraries, because single ones often fell back to kernels of older GPUs.
    Bytes are those that no fusion saves: weights, tokens in and out, activations. Kernel: `batch` experts, m rows, n width, k
    hidden size.
    """
    shape = [name for name in _COLUMNS[EXPERTS] if name not in ("kernel", "latency_s")]
    frame = read(data, EXPERTS).filter(pl.col("dtype").is_in([*_DTYPES]) & ~pl.col("kernel").str.contains("nongated"))
    each = pl.col("tokens") * pl.col("topk") / pl.col("experts")
    frame = frame.filter((each >= 64) & (pl.col("ep") == 1) & (pl.col("latency_s") > 0))
    frame = frame.group_by(shape, maintain_order=True).agg(pl.col("latency_s").min(), pl.len().alias("libraries"))
    frame = frame.filter(pl.col("libraries") > 1)
    dtype = _dtypes(frame)
    tokens, hidden, ffn, topk, count, tp = (_numbers(frame, name) for name in shape[2:8])
    size = _sizes(dtype)
    m, width = tokens * topk / count, ffn / tp
    traffic = 3 * count * hidden * width * size + 2 * count * m * width * size + 4 * tokens * hidden
    flop = 6 * count * m * hidden * width
    found = _samples(frame, "grouped_gemm", "layer", dtype, count, m, width, hidden, flop, traffic)
    return found.select(_possible(found, full=False))


RowValues = NDArray[Any] | str | float


def _samples(
    frame: pl.DataFrame, *cells: RowValues, heads: RowValues = 1.0, kv_heads: RowValues = 1.0, causal: bool = False
) -> Samples:
    """Return the rows of a table as samples. cells: the first columns of `Columns`, each an array or one value for all rows."""
    every = (*cells, heads, kv_heads, causal)
    table = Columns(*(one if isinstance(one, np.ndarray) else np.full(len(frame), one) for one in every))
    return Samples(table, _texts(frame, "gpu"), _numbers(frame, "latency_s"))


def _numbers(frame: pl.DataFrame, name: str, null: float | None = None) -> Floats:
    """Return a column as floats (row,), with `null` for missing cells."""
    column = frame[name].cast(pl.Float64)
    return np.array(column if null is None else column.fill_null(null), dtype=np.float64)


def _texts(frame: pl.DataFrame, name: str) -> NDArray[np.str_]:
    """Return a column as texts (row,)."""
    return np.array(frame[name].to_list(), dtype=np.str_)


def _dtypes(frame: pl.DataFrame) -> NDArray[np.str_]:
    """Return the data types of rows in the spelling of this package (row,)."""
    return np.array([_DTYPES[name] for name in frame["dtype"].to_list()], dtype=np.str_)


def _sizes(dtype: NDArray[np.str_]) -> Floats:
    """Return the bytes of a value of each data type."""
    return np.array([BYTES[name] for name in dtype.tolist()])


TABLE = "kernels/published_kernels.csv"
PREFIX = "published/"
_BOARDS = {"A100-SXM4-80GB": "a100-sxm-80gb", "H100-SXM5-80GB": "h100-sxm", "H200-SXM-141GB": "h200-sxm"}
_BOARDS |= {"B200-SXM-180GB": "b200-sxm"}
_PUBLISHED_COLUMNS = ("gpu", "kernel", "dims", "us")

SizesByName = dict[str, int]


def _rope(size: SizesByName) -> Kernel:
    """Return the rotary positions of queries and keys as a kernel."""
    heads = size["hidden"] // size["tp"]
    grouped = 8 if size["hidden"] == 8192 else 1  # Llama-2-70B has 8 key heads for 64 query heads
    return vector("elementwise", "unfused_rope", "fp16", size["tokens"], heads + heads // grouped, 6.0, 4)


_KERNELS: dict[str, Callable[[SizesByName], Kernel]] = {
    "rmsnorm": lambda s: vector("layernorm", "unfused_rmsnorm", "fp16", s["tokens"], s["hidden"], 6.0, 4),
    "swiglu": lambda s: vector("elementwise", "unfused_swiglu", "fp16", s["tokens"], s["ffn"] // s["tp"], 1.0, 6),
    "residual_add": lambda s: vector("elementwise", "add", "fp16", s["tokens"], s["hidden"], 1.0, 6),
    "embedding": lambda s: vector("memory", "embedding", "fp16", s["tokens"], s["hidden"], 0.0, 4),
    "rope": _rope,
    "fp8_cast": lambda s: vector("memory", "quantize", "bf16", s["M"], s["K"], 0.0, 3),
}


def published(data: Data | Path) -> dict[str, Samples]:
    """Return the published 16-bit vector kernels by `published/<kernel>`; empty without such a table.

    Raises DataError for a table without the columns gpu, kernel, dims and us, and for an unreadable row.
    """
    found: dict[str, Samples] = {}
    for path in (place / TABLE for place in places(data) if (place / TABLE).is_file()):
        rows = csv(path, _PUBLISHED_COLUMNS).filter(pl.col("kernel").is_in([*_KERNELS]) & (pl.col("us") > 0)).rows()
        each = {name: [row for row in rows if row[1] == name and _board(row[0])] for name in _KERNELS}
        found |= {PREFIX + name: _published_samples(path, part) for name, part in each.items() if part}
    return found


def _board(text: str) -> str:
    """Return the GPU that a row names, "" if it is not one of `_BOARDS`."""
    return _BOARDS.get(text.split(" ", maxsplit=1)[0], "")


def _published_samples(path: Path, rows: list[tuple[str, str, str, float]]) -> Samples:
    """Return rows (gpu, kernel, dims, us) of one kernel as samples. Raises DataError for dims without a size."""
    kernels = []
    for _, name, dims, _ in rows:
        sizes = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", dims)}
        try:
            kernels.append(_KERNELS[name](sizes))
        except (KeyError, ZeroDivisionError) as error:
            raise DataError(f"{path}: {name} with dims {dims!r} does not have every size") from error
    boards = np.array([_board(row[0]) for row in rows])
    return Samples(columns(kernels), boards, np.array([row[3] for row in rows]) * 1e-6)


BUSY = "busy/"
"""Prefix of the class of a user's own kernels if the class has tables of eager calls, which include dispatch; own rows do not."""


def test_samples(data: Data | Path, split: str = "test") -> dict[str, Samples]:
    """Return {class: measured kernels}: FP32 of `split`, all tensor-core and published ones, and a user's own.

    Missing tables are left out. Raises DataError if nothing is left.
    """
    own = own_samples(data).items()
    parts: dict[str, list[Samples]] = {(BUSY + name if name in SIMT else name): [samples] for name, samples in own}
    simt = fp32(data, split) if holds(data, FP32) else None
    found = {name: pick(simt, name) for name in SIMT} if simt else {}
    for name, samples in (found | tensor_samples(data) | published(data)).items():
        parts.setdefault(name, []).insert(0, samples)
    filled = {name: merge(part) for name, part in parts.items() if any(map(len, part))}
    if not filled:
        raise DataError(f"{', '.join(map(str, places(data)))}: no measured kernel of a class that is learned")
    return filled


def tensor_samples(data: Data | Path) -> dict[str, Samples]:
    """Return {class: measured kernels} of the tensor-core classes and of experts, without empty ones."""
    found: dict[str, Samples] = {}
    readers = ((GEMM, "linear", gemm), (ATTENTION, "flash_attention", attention), (EXPERTS, "grouped_gemm", experts))
    for table, kind, read_samples in readers:
        if holds(data, table):
            samples = training_shapes(read_samples(data)) if table == GEMM else read_samples(data)
            found |= {name: pick(samples, name) for name in (*TENSOR, *GROUPED) if name.endswith(f"/{kind}")}
    return {name: samples for name, samples in found.items() if len(samples)}


def own_samples(data: Data | Path) -> dict[str, Samples]:
    """Return {class: a user's own measured kernels}; tensor-core `linear` only of training shapes. Raises DataError."""
    files = measured(own_files(data))
    if not files:
        return {}
    samples = merge(files)
    picked = {name: pick(samples, name) for name in dict.fromkeys(route(samples.table).tolist())}
    return {name: training_shapes(s) if name in TENSOR and name.endswith("linear") else s for name, s in picked.items()}


def training_shapes(samples: Samples, least: int = 128) -> Samples:
    """Return the GEMMs whose three sides are at least `least`, which excludes decoding of single tokens."""
    table = samples.table
    return samples.select((table.m >= least) & (table.n >= least) & (table.k >= least))
