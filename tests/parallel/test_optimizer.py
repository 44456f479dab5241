"""Kernels of optimizers: what their own code runs and moves, and what others measured of it."""

from collections import Counter
from pathlib import Path

import pytest

from clustersim.hardware import gpus
from clustersim.model.kernel import gemm
from clustersim.model.parameters import parameters
from clustersim.parallel.load import load
from clustersim.parallel.optimizer import ITERATIONS, matrices, matrix_share, update
from clustersim.parallel.stages import stages
from clustersim.predictors.clocks import derate
from clustersim.predictors.load import get

FOLDER = Path(__file__).parents[2] / "workloads"
MEASURED = {
    "h800-sxm": (0.0112, 0.0384, 0.2955, 2.2643),
    "h20": (0.0275, 0.1588, 1.0431, 7.9691),
    "a100-sxm-80gb": (0.0228, 0.1166, 0.6644, 5.1604),
    "rtx-4090": (0.0213, 0.1098, 0.8535, 6.7631),
}
"""Milliseconds of X·Xᵀ in bf16 by torch, for X of 1,024, 2,048, 4,096 and 8,192 rows and columns (nil0x9/flash-muon, README)."""
BANDS = {"h800-sxm": (0.55, 0.83), "h20": (0.75, 0.95), "a100-sxm-80gb": (0.80, 0.98), "rtx-4090": (0.75, 1.0)}
"""Bounds of forecast over measured, a few hundredths beyond those found; forecasts are mostly low."""
PRODUCTS = {(768, 2048): (128, 13.8), (1536, 2048): (128, 31.0), (4096, 4096): (8, 22.0), (4096, 14336): (4, 29.3)}
"""{rows and columns: number of matrices, milliseconds of the GEMMs of their update on an H100} (docs/measured-ways.md)"""


def job(name="llama3_8b", **overrides):
    zero = overrides.get("parallelism__zero", 1)
    words = {"training.optimizer": "muon", "parallelism.overlap.param_gather": bool(zero)}
    words |= {key.replace("__", "."): value for key, value in overrides.items()}
    return load(FOLDER / f"{name}.yaml", words).place(8, 8)


def iterations(one, own, experts=0):
    """The kernels of a rank's Newton–Schulz updates."""
    return [kernel for kernel in update(one, own, experts) if kernel.op == "newton_schulz"]


@pytest.mark.parametrize("name, low, high", [(name, *band) for name, band in BANDS.items()])
def test_a_matrix_times_its_transpose_is_one_gemm(name, low, high):
    """Forecast as a batch, matrices of 1,024 rows would take 0.31 to 0.70 of these times, less than the bands allow."""
    sides, gpu = (1024, 2048, 4096, 8192), gpus.load(name)
    kernels = [gemm("linear", "newton_schulz", "bf16", 1, side, side, side) for side in sides]
    kernels.append(gemm("linear", "newton_schulz", "bf16", 64, 1024, 1024, 1024))
    *seconds, batch = derate(kernels, get("neusight").predict(kernels, gpu), gpu, "sustained")
    ratios = [1e3 * found / measured for found, measured in zip(seconds, MEASURED[name], strict=True)]
    assert all(low < ratio < high for ratio in ratios)
    assert 1e3 * batch / 64 / MEASURED[name][0] < low


@pytest.mark.parametrize("rows, columns", PRODUCTS)
def test_iterations_take_as_long_as_measured(rows, columns):
    """Forecast as a batch they would take 0.43 of the time of small matrices."""
    count, measured = PRODUCTS[rows, columns]
    shapes = ((rows, rows, columns), (rows, rows, rows), (rows, columns, rows))
    kernels = [gemm("linear", "newton_schulz", "bf16", 1, *shape) for shape in shapes]
    seconds = get("neusight").predict(kernels, gpus.load("h100-sxm")).sum()
    assert 1e3 * count * ITERATIONS * seconds == pytest.approx(measured, rel=0.12)


def test_a_search_of_codes_takes_as_long_as_the_moments_are_many():
    """bitsandbytes' Adam searches a code for each of two moments, its Lion for one, whatever the type of weights."""
    gpu, found = gpus.load("h100-sxm"), {}
    for kind in ("adam8bit", "lion8bit"):
        for dtype in ("fp32", "bf16"):
            types = {f"training__{key}": dtype for key in ("main_params", "moments", "gradients")}
            one = job(training__optimizer=kind, **types, parallelism__zero=0, parallelism__tp=1, parallelism__pp=1)
            kernels = [kernel for kernel in update(one, 10**9) if kernel.op == kind]
            found[kind, dtype] = get("neusight").predict(kernels, gpu).sum()
    assert found["adam8bit", "fp32"] == pytest.approx(0.028, rel=0.03)
    assert found["adam8bit", "bf16"] == pytest.approx(found["adam8bit", "fp32"], rel=1e-2)
    assert found["lion8bit", "bf16"] == pytest.approx(found["adam8bit", "bf16"] / 2, rel=1e-2)


def test_muon_updates_matrix_by_matrix():
    one = job(parallelism__dp=8, parallelism__tp=1, parallelism__pp=1, parallelism__zero=0)
    kernels = iterations(one, parameters(one.model))
    count = sum(shape.copies for shape in matrices(one.model))
    assert Counter(kernel.kind for kernel in kernels) == {"linear": 15 * count, "memory": 2 * ITERATIONS * count}
    assert {kernel.batch for kernel in kernels} == {1}


def test_owners_of_experts_update_all_of_them():
    """With as many expert-parallel as data-parallel ranks, an expert has no replica to share its matrices with."""
    split = {"parallelism__dp": 8, "parallelism__tp": 1, "parallelism__pp": 1, "parallelism__ep": 8}
    one = job("qwen3_30b_a3b", **split, parallelism__zero=1)
    held = parameters(one.model)
    spread = sum(shape.rows * shape.columns * shape.copies for shape in matrices(one.model) if shape.copies > 1000)
    work = sum(kernel.flop for kernel in iterations(one, held - spread + spread // 8, spread // 8))
    together = job("qwen3_30b_a3b", **{**split, "parallelism__ep": 1}, parallelism__zero=0)
    whole = sum(kernel.flop for kernel in iterations(together, held))
    assert 8 * work == pytest.approx(whole, rel=0.02)


@pytest.mark.parametrize("zero", [0, 1, 2])
@pytest.mark.parametrize(
    "tp, ep, slices", [(1, 1, 1), (1, 8, 1), (4, 1, 4), (4, 1, 1), (4, 8, 1), (4, 8, 4), (8, 16, 1)]
)
def test_ranks_together_iterate_on_each_whole_matrix_as_often_as_it_is_updated(tp, ep, slices, zero):
    """All ranks that hold a slice repeat the work on the whole matrix; only with ZeRO do replicas divide the matrices."""
    split = {"tp": tp, "ep": ep, "expert_tp": slices, "dp": 16, "pp": 1, "zero": zero}
    words = {"training.optimizer": "muon", "parallelism.overlap.param_gather": bool(zero)}
    words |= {f"parallelism.{key}": value for key, value in {**split, "sequence_parallel": tp > 1}.items()}
    one = load(FOLDER / "qwen3_30b_a3b.yaml", words).place(16 * tp, 8)
    [stage] = stages(one)
    work = 16 * tp * sum(kernel.flop for kernel in iterations(one, stage.parameters, stage.experts))
    ranks = {False: tp, True: slices} if zero else {False: 16 * tp, True: 16 * tp // ep}
    right = sum(ranks[matrix.routed] * matrix.copies * _whole(matrix) for matrix in matrices(one.model))
    assert work == pytest.approx(right, rel=1e-9)


@pytest.mark.parametrize("kernels, measured", [("fused", 0.0103), ("foreach", 0.0284), ("loop", 0.0259)])
def test_an_update_takes_as_long_as_measured(kernels, measured):
    """973 million fp32 parameters on an H100 (docs/measured-ways.md)."""
    one = job(training__optimizer="adam", training__optimizer_kernels=kernels, parallelism__zero=0)
    found = [kernel for kernel in update(one, 973_000_000) if kernel.op == "adam"]
    assert get("neusight").predict(found, gpus.load("h100-sxm")).sum() == pytest.approx(measured, rel=0.15)


def test_composers_update_moves_88_bytes_and_pytorchs_80():
    """Composer 02c872e, DecoupledAdamW.adamw, counted: 22 fp32 values, of which the mean five times, three in PyTorch."""
    words = {"training__optimizer": "adam", "parallelism__zero": 0}
    found = {
        kernels: sum(
            one.bytes for one in update(job(**words, training__optimizer_kernels=kernels), 1000) if one.op == "adam"
        )
        for kernels in ("foreach", "loop", "composer")
    }
    assert found == {"foreach": 80_000, "loop": 80_000, "composer": 88_000}


def _whole(matrix):
    """Return the FLOP of all iterations on one matrix: products of m by n by m, m by m by m, and m by m by n."""
    m, n = sorted((matrix.rows, matrix.columns))
    return ITERATIONS * 2 * (2 * m * m * n + m**3)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind, optimizer", [("muon", "Muon"), ("adafactor", "Adafactor")])
def test_separate_kernels_move_about_what_pytorchs_do(kind, optimizer, dtype):
    """Others' kernels cast, scale or take a root mean square once or twice more: up to 5 values per parameter."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
    from torch.utils._python_dispatch import TorchDispatchMode

    if not hasattr(torch.optim, optimizer):
        pytest.skip(f"this PyTorch has no {optimizer}")
    moved = Counter()

    class Traffic(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            written = [
                a
                for a, s in zip(args, function._schema.arguments, strict=False)
                if s.alias_info and s.alias_info.is_write
            ]
            if function._schema.name not in ("aten::permute", "aten::mm", "aten::addmm"):
                own = [*args, *(written or [out])]
                moved["bytes"] += sum(one.nbytes for one in own if isinstance(one, torch.Tensor))
            return out

    width = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    weight = torch.randn(1024, 2048, dtype=width, requires_grad=True)
    weight.grad = torch.randn_like(weight)
    step = getattr(torch.optim, optimizer)([weight]).step
    step()
    with Traffic():
        step()
    types = {f"training__{key}": dtype for key in ("main_params", "moments", "gradients")}
    one = job(training__optimizer=kind, **types, parallelism__zero=0, parallelism__tp=1, parallelism__pp=1)
    [kernel] = [found for found in update(one, 10**6) if found.op == kind]
    size = weight.itemsize
    others = 7.0 * size if kind == "muon" else 0.0  # embeddings, head and norms are Adam's
    share = matrix_share(one.model) if kind == "muon" else 1.0
    own = (kernel.bytes / 10**6 - (1 - share) * others) / share
    assert 0 <= own - moved["bytes"] / weight.numel() <= 5 * size + 1e-3
