"""Measured kernels made up for tests of training."""

import numpy as np
import polars as pl
import pytest

from clustersim.hardware import gpus
from clustersim.lab.data import tables

FP32_GPUS = {"train": ("Tesla T4", "NVIDIA A100-PCIE-40GB"), "test": ("NVIDIA H100 80GB HBM3",)}

TENSOR_GPUS = ("a100_sxm", "h100_sxm")


def fp32_rows(rng, split, gpu):
    board = gpus.load(gpu)
    for op in ("linear", "bmm", "add", "softmax", "ln"):
        for _ in range(40):
            row = {"vendor": "nvidia", "split": split, "gpu": gpu, "op": op}
            if op in ("linear", "bmm"):
                b = int(rng.integers(1, 64)) if op == "bmm" else 1
                m, n, k = (int(x) for x in rng.integers(64, 4096, 3))
                seconds = 30e-6 + 2 * b * m * n * k / (0.7 * board.matrix_peak("fp32"))
                yield row | {"group": op, "b": b, "m": m, "n": n, "k": k, "h": None, "latency_s": seconds}
            else:
                b, h = int(rng.integers(2000, 60000)), int(rng.integers(512, 4096))
                group = "elem" if op == "add" else op
                seconds = 30e-6 + 8.0 * b * h / (0.8 * board.memory_bandwidth)
                yield row | {"group": group, "b": b, "m": None, "n": None, "k": None, "h": h, "latency_s": seconds}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for part in ("neusight", "kernels"):
        (folder / part).mkdir()
    rows = [row for split, names in FP32_GPUS.items() for gpu in names for row in fp32_rows(rng, split, gpu)]
    pl.DataFrame(rows).write_parquet(folder / tables.FP32)
    gemms, attentions = [], []
    for gpu in TENSOR_GPUS:
        for _ in range(40):
            m, n, k = (int(x) for x in rng.integers(128, 8192, 3))
            seconds = 3e-6 + 2 * m * n * k / (0.7 * gpus.load(gpu).matrix_peak("bf16"))
            gemms += [
                {"gpu": gpu, "dtype": dtype, "m": m, "n": n, "k": k, "latency_s": seconds}
                for dtype in ("bfloat16", "fp8")
            ]
            shape = {"batch": int(rng.integers(1, 9)), "seq": 512 * int(rng.integers(1, 9)), "heads": 16, "kv_heads": 8}
            work = 2 * shape["batch"] * 16 * shape["seq"] ** 2 * 128
            kernel = "flash_attention" if gpu == "a100_sxm" else "fa3"
            seconds = 5e-6 + work / (0.5 * gpus.load(gpu).matrix_peak("bf16"))
            attentions += [
                {"gpu": gpu, "kernel": kernel, "dtype": dtype, **shape, "head_dim": 128, "latency_s": seconds}
                for dtype in ("bfloat16", "fp8")
            ]
    pl.DataFrame(gemms).write_parquet(folder / tables.GEMM)
    pl.DataFrame(attentions).write_parquet(folder / tables.ATTENTION)
    return folder
