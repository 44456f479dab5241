"""Narrow formats: what they multiply, move and keep, on which GPUs, and that narrower is never slower."""

import re
from pathlib import Path
from typing import get_args

import pytest

from clustersim.config.workload import Precision
from clustersim.config.yaml import parse
from clustersim.errors import ConfigError
from clustersim.hardware import gpus
from clustersim.hardware.constants import BYTES
from clustersim.hardware.formats import FORMATS, FP8, activation_type, multiplies, product_type
from clustersim.model.kernel import Kernel, gemm, vector
from clustersim.model.linear import dgrad, product, wgrad
from clustersim.model.operator import Collective
from clustersim.parallel.load import load
from clustersim.parallel.memory import at_rest
from clustersim.parallel.stages import stages
from clustersim.predictors.load import get as predictor
from clustersim.simulation import run
from clustersim.topology.build import build

FOLDER = Path(__file__).parents[2] / "workloads"
BLOCKS = {"fp8": 1.0, "mxfp8": 1 + 1 / 32, "nvfp4": 0.5 + 1 / 16, "mxfp4": 0.5 + 1 / 32}
"""Bytes of a value: OCP Microscaling Formats v1.0, table 1; Transformer Engine, NVFP4BlockScaling."""
BLACKWELL = {"b200-sxm", "b300-sxm", "gb200", "gb300"}


FEW = {"training.global_batch": 16}
"""A batch of few microbatches: what is compared is a pass, not how many there are."""


def one(precision, name="llama3_8b", predictor="neusight", **more):
    return load(FOLDER / f"{name}.yaml", {"training.precision": precision, "predictor": predictor, **more})


def node(gpu):
    return build(parse(f"cluster: {{nodes: 1, node: {{extends: hgx-b200, gpus: {{model: {gpu}}}}}}}", "t.yaml"))


def kernels(job):
    [stage, *_] = stages(job.place(64, 8))
    return [step for step in (*stage.forward, *stage.backward) if isinstance(step, Kernel)]


def test_every_precision_is_a_type_or_a_format():
    assert set(FORMATS) == set(BLOCKS)
    for name in get_args(Precision):
        assert product_type(name) in BYTES and activation_type(name) in BYTES
        assert (name in FORMATS) == (BYTES[product_type(name)] < 2)


@pytest.mark.parametrize("precision", BLOCKS)
def test_products_read_their_scales_and_leave_16_bits(precision):
    found = kernels(one(precision))
    for op in ("forward", "dgrad", "wgrad"):
        linear = next(k for k in found if k.kind == "linear" and k.op == op and k.dtype == FORMATS[precision].product)
        m, n, k = linear.m, linear.n, linear.k
        written = 8 if op == "wgrad" else 2  # added to fp32 main gradients
        assert linear.bytes == pytest.approx((m * k + k * n) * BLOCKS[precision] + m * n * written, rel=1e-12)
    assert {k.dtype for k in found if k.kind not in ("linear", "memory")} == {"bf16"}


@pytest.mark.parametrize("precision", ["bf16", *BLOCKS])
def test_logits_and_routers_stay_in_16_bits(precision):
    """As Megatron, torchtitan and DeepSeek-V3 have them, forward and backward."""
    placed = one(precision, "mixtral_8x7b").place(64, 8)
    layers = [layer for stage in stages(placed) for layer, _ in stage.layers]
    kept = {op.name: op for layer in layers for op in layer.operators if op.name in ("logits", "router")}
    for op in kept.values():
        products = [k for k in (*op.forward, *op.backward_input, *op.backward_weight) if isinstance(k, Kernel)]
        assert {k.dtype for k in products if k.kind == "linear"} == {"bf16"}
        assert not [k for k in products if k.op == "cast"]
        assert op.saved_input == 2 * placed.training.seq * placed.model.hidden // placed.parallelism.tp
    assert set(kept) == {"logits", "router"}


@pytest.mark.parametrize("precision", BLOCKS)
def test_an_operand_is_written_by_rows_and_by_columns(precision):
    """One kernel reads it; nvfp4 takes the largest value of the tensor first (Transformer Engine, csrc/quantizer.cpp)."""
    read = 4 if precision == "nvfp4" else 2
    casts = [k for k in kernels(one(precision)) if k.op == "cast"]
    assert casts and all(k.bytes == pytest.approx(k.m * k.n * (read + 2 * BLOCKS[precision])) for k in casts)
    assert not [k for k in kernels(one("bf16")) if k.op == "cast"]


@pytest.mark.parametrize(("scaling", "read", "size"), [("delayed", 2, 1), ("current", 4, 1), ("block", 2, 1 + 4 / 128)])
def test_kinds_of_fp8_differ_in_what_a_cast_reads_and_in_scales(scaling, read, size):
    """Transformer Engine: Float8CurrentScaling takes the largest value first, Float8BlockScaling has fp32 for 128 values."""
    found = kernels(one("fp8", **{"training.fp8_scaling": scaling}))
    casts = [k for k in found if k.op == "cast"]
    assert casts and all(k.bytes == pytest.approx(k.m * k.n * (read + 2 * size)) for k in casts)
    linear = next(k for k in found if k.kind == "linear" and k.op == "forward" and k.dtype == "fp8")
    assert linear.bytes == pytest.approx((linear.m * linear.k + linear.k * linear.n) * size + 2 * linear.m * linear.n)


@pytest.mark.parametrize(
    ("scaling", "travels"),
    [("delayed", {1}), ("current", {1}), ("block", {1 + 4 / 128, 2 * (1 + 4 / 128)}), ("row", {2})],
)
def test_parts_of_a_sequence_travel_as_they_are_cast(scaling, travels):
    split = {"parallelism.tp": 8, "parallelism.sequence_parallel": True, "training.fp8_scaling": scaling}
    [stage, *_] = stages(one("fp8", **split).place(64, 8))
    values = 8192 * 4096
    found = {
        s.size / values for s in (*stage.forward, *stage.backward) if isinstance(s, Collective) and s.op == "all_gather"
    }
    scattered = {s.size / values for s in stage.forward if isinstance(s, Collective) and s.op == "reduce_scatter"}
    assert found - {2} == travels - {2} and scattered == {2}


@pytest.mark.parametrize(
    ("scaling", "ops"), [("current", {"all_gather", "reduce_scatter"}), ("row", {"reduce_scatter"})]
)
def test_a_gather_before_a_cast_is_not_cut_into_chunks(scaling, ops):
    """pytorch/pytorch issue 149990: with scales by rows, sums are scattered under GEMMs, and gathers come before them."""
    split = {"parallelism.tp": 8, "parallelism.sequence_parallel": True, "parallelism.overlap.tp": "async"}
    [stage, *_] = stages(one("fp8", **split, **{"training.fp8_scaling": scaling}).place(64, 8))
    steps = [s for s in (*stage.forward, *stage.backward) if isinstance(s, Collective) and s.over]
    assert {s.op for s in steps} == ops


@pytest.mark.parametrize(("scaling", "measured"), [("current", 0.63e-3), ("row", 1.35e-3)])
def test_casts_of_a_linear_take_as_long_as_measured(scaling, measured):
    """Casts around torchao's linear of 8,192 rows from 4,096 to 14,336 values, forward and back (docs/measured-ways.md)."""
    options = {"training.fp8_scaling": scaling, "training.framework": "torchtitan", "parallelism.tp": 1}
    shard = one("fp8", **options).place(64, 8).shard
    found = (*product(shard, 4096, 14336), *dgrad(shard, 4096, 14336, 8192), *wgrad(shard, 4096, 14336, bias=False))
    around = [k for k in found if k.op in ("cast", "rescale")]
    assert predictor("neusight").predict(around, gpus.load("h100-sxm")).sum() == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(("scaling", "split", "count"), [("delayed", 2, 1), ("current", 2, 0), ("delayed", 1, 0)])
def test_delayed_scales_are_agreed_on_once_a_pass_by_all_ranks_of_a_stage(scaling, split, count):
    changes = {
        "training.fp8_scaling": scaling,
        "parallelism.pp": split,
        "parallelism.tp": split,
        "parallelism.dp": split,
    }
    job = one("fp8", **changes).place(split**3, 8)
    for stage in stages(job):
        for steps in (stage.forward, stage.backward):
            assert sum(isinstance(step, Collective) and step.group == "amax" for step in steps) == count


@pytest.mark.parametrize("dispatch", [None, "fp8"])
def test_rows_of_experts_are_cast_where_they_arrive_and_tokens_where_they_leave(dispatch):
    """Transformer Engine casts rows before grouped products; DeepSeek-V3 (section 3.3.3) sends them in fp8."""
    placed = one("mxfp8", "mixtral_8x7b", **{"training.dispatch": dispatch, "parallelism.ep": 8}).place(64, 8)
    [stage, *_] = stages(placed)
    ops = {op.name: op for layer, _ in stage.layers for op in layer.operators}
    fc1, fc2 = (ops[name] for name in ("experts_fc1", "experts_fc2"))
    steps = fc1.forward, fc1.backward_input, fc2.forward, fc2.backward_input
    rows = [next(k.m for k in kernels if k.op == "cast") for kernels in steps]
    assert rows[1] == rows[2] == 2 * placed.training.seq * placed.training.micro_batch // placed.parallelism.tp
    assert rows[0] == rows[3] == (rows[1] // 2 if dispatch else rows[1])


def test_weights_of_experts_are_read_twice_for_a_cast_and_rows_as_those_of_linears():
    """torchao's kernel transposes weights as it casts them, and rows by a copy (prototype/moe_training/scaled_grouped_mm.py)."""
    options = {"training.fp8_scaling": "row", "training.framework": "torchtitan"}
    [stage, *_] = stages(one("fp8", "mixtral_8x7b", **options).place(64, 8))
    [fc1, *_] = [op for layer, _ in stage.layers for op in layer.operators if op.name == "experts_fc1"]
    casts = [kernel.bytes / (kernel.batch * kernel.m * kernel.n) for kernel in fc1.forward if kernel.op == "cast"]
    assert casts == pytest.approx([4.8 * 2 + 2, 2 * 2 + 1])


@pytest.mark.parametrize("predictor", ["neusight", "roofline"])
@pytest.mark.parametrize("gpu", sorted(BLACKWELL))
def test_narrower_is_never_slower_for_large_products(gpu, predictor):
    cluster = node(gpu)
    seconds = {
        precision: run(cluster, one(precision, predictor=predictor, **FEW)).summary["step_time_s"]
        for precision in ("bf16", "mxfp8", "nvfp4", "mxfp4")
    }
    assert list(seconds.values()) == sorted(seconds.values(), reverse=True), seconds


LINEARS = ((4096, 12288), (4096, 4096), (4096, 16384), (16384, 4096))
"""Inputs and outputs of a layer of Transformer Engine's page on products, with 15,872 tokens (docs/examples/gemm_profiling)."""


@pytest.mark.parametrize(
    ("format_", "milliseconds"),
    [(FP8["current"], 2.879 - 2.158), (FORMATS["mxfp8"], 2.847 - 2.365), (FORMATS["nvfp4"], 1.932 - 1.254)],
)
def test_casts_take_as_long_as_transformer_engine_measured(format_, milliseconds):
    """Forward on a B300, inputs and weights: what a layer takes with casts, less what its products take without."""
    sides = [(rows, k) for k, n in LINEARS for rows in (15872, n)]
    traffic = 2 * format_.reads + 2 * format_.size
    casts = [vector("memory", "cast", "bf16", *side, 0.0, traffic) for side in sides]
    found = predictor("neusight").predict(casts, gpus.load("b300"))
    assert 1e3 * found.sum() == pytest.approx(milliseconds, rel=0.15)


@pytest.mark.parametrize(("narrow", "wide", "ratio"), [("mxfp8", "bf16", 1.83), ("nvfp4", "mxfp8", 1.90)])
def test_products_are_as_much_faster_as_transformer_engine_measured(narrow, wide, ratio):
    """All twelve of a layer on a B300, forward and both gradients, of operands that were cast before."""

    def seconds(precision):
        shapes = [shape for k, n in LINEARS for shape in ((15872, n, k), (15872, k, n), (n, k, 15872))]
        more = {"output": 2, "operand": BLOCKS.get(precision, 2)}
        found = [gemm("linear", "forward", product_type(precision), 1, *shape, **more) for shape in shapes]
        return predictor("neusight").predict(found, gpus.load("b300")).sum()

    assert seconds(wide) / seconds(narrow) == pytest.approx(ratio, rel=0.12)


def test_memory_keeps_the_narrow_input_and_16_bit_weights():
    kept, rest = {}, {}
    for precision in ("bf16", *BLOCKS):
        placed = one(precision).place(64, 8)
        [stage, *_] = stages(placed)
        linears = [op for layer, _ in stage.layers for op in layer.operators if op.name == "fc2"]
        kept[precision], rest[precision] = sum(op.saved_input for op in linears), at_rest(placed, [stage])
    assert {name: kept[name] / kept["bf16"] for name in BLOCKS} == pytest.approx(
        {name: size / 2 for name, size in BLOCKS.items()}
    )
    assert len(set(rest.values())) == 1  # weights in bf16, fp32 masters and gradients: as without


@pytest.mark.parametrize("precision", BLOCKS)
@pytest.mark.parametrize("name", ["llama3_8b", "mixtral_8x7b"])
def test_transformer_engine_keeps_weights_in_the_format_too(precision, name):
    """Of all linear layers but logits and routers, by rows and by columns (TE pytorch/module/linear.py, weight_workspace)."""

    def held(precision, framework):
        more = {"training.framework": framework, "parallelism.tp": 1, "parallelism.pp": 1, "parallelism.ep": 1}
        placed = one(precision, name, **more).place(64, 8)
        return placed, at_rest(placed, stages(placed)).total

    job, narrow = held(precision, "megatron-core")
    m = job.model
    mlp = 3 * m.hidden * m.ffn * (m.experts or 1)
    attention = 2 * m.hidden * m.hidden * (1 + m.kv_heads / m.heads)
    more = narrow - held("bf16", "megatron-core")[1]
    assert more == pytest.approx(2 * BLOCKS[precision] * m.layers * (mlp + attention), rel=1e-9)
    assert held(precision, "nemo")[1] == held("bf16", "nemo")[1]  # whose recipes hold no weights in bf16 beside them


@pytest.mark.parametrize("precision", BLOCKS)
def test_gpus_without_a_format_are_refused(precision):
    """MXFP8 and NVFP4 need compute capability 10 (Transformer Engine, docs/features/low_precision_training); AMD's CDNA 4 has
    the MX formats of OCP and not NVIDIA's (AMD CDNA 4 whitepaper)."""
    expected = {"fp8": {gpu.name for gpu in gpus.everything() if "fp8" in gpu.matrix}, "nvfp4": BLACKWELL}.get(
        precision, {*BLACKWELL, "mi350x", "mi355x"}
    )
    assert {gpu.name for gpu in gpus.everything() if multiplies(gpu, precision)} == expected
    lacking = "a100-sxm-80gb" if precision == "fp8" else "h100-sxm"
    message = f"training.precision: {lacking} multiplies no {precision}, its datasheet has "
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        run(node(lacking), one(precision))
    assert "take a GPU that has it, such as " in str(error.value)
    assert ("mi355x" in str(error.value)) == (precision != "nvfp4")


def test_layers_at_the_ends_stay_in_bf16():
    """Each costs what a layer of a bf16 job does (Megatron-LM, core/fp4_utils.py); nothing changes for wider precisions."""

    def products(precision, **ends):
        more = {f"training.bf16_{name}_layers": count for name, count in ends.items()}
        found = (stages(one(precision, **more).place(64, 8))[0]).layers
        layers = [layer for layer, count in found for _ in range(count) if layer.name == "block"]
        return [{k.dtype for k in layer.operators[1].forward if isinstance(k, Kernel)} for layer in layers]

    assert products("nvfp4", first=1, last=4) == [{"bf16"}] + [{"bf16", "fp4"}] * 27 + [{"bf16"}] * 4
    assert products("nvfp4", last=32) == products("bf16") == products("bf16", first=3) == [{"bf16"}] * 32
    cluster = node("b200-sxm")
    times = [
        run(cluster, one("nvfp4", **FEW, **{"training.bf16_last_layers": n})).summary["step_time_s"] for n in (0, 4, 32)
    ]
    assert times == sorted(times)
    assert times[2] == run(cluster, one("bf16", **FEW)).summary["step_time_s"]
    with pytest.raises(
        ConfigError, match=r"bf16_last_layers: 33 is more than the 32 of model\.layers; write at most 32"
    ):
        run(cluster, one("nvfp4", **{"training.bf16_last_layers": 33}))
