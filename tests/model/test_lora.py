"""Low-rank adapters beside frozen weights: parameters, kernels, memory, FLOP and steps follow from what is trained."""

import math
from pathlib import Path

import pytest
from engine_cases import cluster, job
from fsdp_cases import sent

from clustersim.errors import ConfigError
from clustersim.model.kernel import Kernel
from clustersim.model.lora import ADAPTER, NF4
from clustersim.model.operator import Collective
from clustersim.model.parameters import adapter_parameters
from clustersim.model.parameters import parameters as total
from clustersim.parallel.flops import hardware_flop, model_flop
from clustersim.parallel.load import load
from clustersim.parallel.memory import at_rest
from clustersim.parallel.stages import stages
from clustersim.simulation import Simulator

LLAMA = Path(__file__).parents[2] / "workloads" / "llama2_70b_lora.yaml"
ALL = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
EACH = ["linear_q", "linear_k", "linear_v", "linear_proj", "linear_fc1_gate", "linear_fc1_up", "linear_fc2"]


def llama(**overrides):
    return load(LLAMA, {key.replace("__", "."): value for key, value in overrides.items()}).place(64, 8)


def adapted(rank=8, targets=ALL, **more):
    return job(training__lora={"rank": rank, "targets": list(targets)}, **more)


def operators(one, name="block"):
    return [
        op for stage in stages(one) for layer, n in stage.layers for op in layer.operators * n if layer.name == name
    ]


def kernels(one):
    """Return the kernels of the passes of all stages, with tp 1."""
    return [step for stage in stages(one) for step in (*stage.forward, *stage.backward) if isinstance(step, Kernel)]


def test_llama_2_70b_has_the_trained_parameters_of_the_mlperf_reference():
    """80 · 16 · ((8192 + 10240) + (8192 + 8192)): mlcommons/training, llama2_70b_lora, lora_target_modules qkv_proj,o_proj."""
    one = llama()
    assert 80 * adapter_parameters(one.model, one.training.lora) == 44_564_480
    apart = one.training.lora.model_copy(update={"targets": ("linear_q", "linear_k", "linear_v", "linear_proj")})
    assert 80 * adapter_parameters(one.model, apart) == 80 * 16 * (3 * 8192 + 10240 + 2 * 8192)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("targets", [ALL, EACH, ["linear_proj"], ["linear_v", "linear_fc2"]])
def test_ranks_share_adapters_and_frozen_weights(tp, targets):
    one = llama(parallelism__tp=tp, training__precision="bf16", training__lora={"rank": 16, "targets": targets})
    [stage] = stages(one)
    assert stage.parameters * tp == 80 * adapter_parameters(one.model, one.training.lora)
    norms = 161 * 8192  # every tp rank holds them
    assert stage.frozen[0] * tp == total(one.model, vocab=one.vocab) + (tp - 1) * norms
    full = llama(parallelism__tp=tp, training__precision="bf16", training__lora=None)
    assert stage.frozen[0] == stages(full)[0].parameters


def test_frozen_weights_have_no_gradients_and_no_optimizer_state():
    one = llama(parallelism__zero=0, parallelism__overlap__param_gather=False)
    [stage] = stages(one)
    memory = at_rest(one, [stage])
    assert memory.gradients == 4 * stage.parameters
    assert memory.optimizer == 12 * stage.parameters
    for layer, _ in stage.layers:
        for op in layer.operators:
            if not op.name.endswith(ADAPTER):
                assert not op.backward_weight
                assert not op.parameters
    [first] = {id(layer): layer for layer, _ in stage.layers if layer.name == "embedding"}.values()
    assert not any(op.backward_input for op in first.operators)


@pytest.mark.parametrize(
    ("base", "precision", "each"), [(None, "bf16", 2), ("nf4", "bf16", NF4), ("int8", "bf16", 1), ("fp8", "fp8", 1)]
)
def test_frozen_linears_of_blocks_lie_in_their_format(base, precision, each):
    """Embedding, head and norms stay in 16 bits; 4.127 bits of nf4 are those of QLoRA, section 3."""
    one = llama(parallelism__tp=1, training__precision=precision, training__lora__base=base)
    memory, model = at_rest(one, stages(one)), one.model
    trained = 44_564_480
    others = 2 * one.vocab * model.hidden + 161 * model.hidden
    linears = total(model, vocab=one.vocab) - others
    assert memory.parameters == pytest.approx(2 * (trained + others) + each * linears, rel=1e-9)
    assert round(8 * NF4, 3) == 4.127


LINEARS = 80 * (8192 * (10240 + 8192) + 3 * 8192 * 28672)
FIRST = 8192 * 10240
"""Weights of the first block's first linear, before whose adapter no gradient of the input is needed."""


def test_weights_in_nf4_are_unpacked_before_each_product():
    one = llama(parallelism__tp=1, training__precision="bf16", training__lora__base="nf4")
    unpacked = [kernel for kernel in kernels(one) if kernel.op == "dequantize"]
    assert sum(kernel.m * kernel.n for kernel in unpacked) == 2 * LINEARS - FIRST


@pytest.mark.parametrize(("fused", "narrow"), [(True, 3), (False, 6)])  # each module casts its input
def test_weights_in_int8_are_unpacked_backward_and_outputs_scaled_forward(fused, narrow):
    """bitsandbytes, autograd/_functions.py, MatMul8bitLt: int8 inputs, int32 outputs, and 16-bit weights for the gradient."""
    keys = {"training__precision": "bf16", "training__lora__base": "int8", "training__fused_projections": fused}
    one = llama(parallelism__tp=1, **keys)
    unpacked = [kernel for kernel in kernels(one) if kernel.op == "dequantize"]
    rows = one.training.micro_batch * one.training.seq
    outputs = 80 * (10240 + 8192 + 2 * 28672 + 8192)
    assert sum(kernel.m * kernel.n for kernel in unpacked) == LINEARS - FIRST + rows * outputs
    assert sum(kernel.m * kernel.n for kernel in kernels(one) if kernel.op == "cast") == rows * 80 * (
        narrow * 8192 + 28672
    )


def test_a_step_of_small_rank_is_the_forward_pass_and_the_gradients_of_inputs():
    """Beside adapters' kernels a frozen model runs what a trained one does but for gradients of weights."""
    trained, frozen = (
        llama(parallelism__tp=1, training__precision="bf16", training__lora=None),
        llama(parallelism__tp=1, training__precision="bf16", training__lora={"rank": 1, "targets": ["linear_qkv"]}),
    )
    [whole], [part] = stages(trained), stages(frozen)

    def linears(steps):
        found = (k for k in steps if isinstance(k, Kernel) and k.kind == "linear")
        return sum(k.flop for k in found if 1 not in (k.m, k.n, k.k))

    first = 2 * 8192 * 8192 * 10240  # in front of the first adapter no gradient is needed
    assert linears(part.forward) == linears(whole.forward)
    assert linears(part.backward) == pytest.approx(linears(whole.backward_input) - first, rel=1e-12)
    others = [sum(k.bytes for k in stage.backward if k.kind == "flash_attention") for stage in (whole, part)]
    assert others[0] == others[1]


@pytest.mark.parametrize("targets", [ALL, EACH, ["linear_proj"]])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_model_flop_is_that_of_the_kernels(targets, recompute):
    one = llama(
        parallelism__tp=1,
        training__precision="bf16",
        training__recompute=recompute,
        training__lora={"rank": 16, "targets": targets},
        training__fused_projections=True,
    )
    [stage] = stages(one)
    blocks = [layer for layer, n in stage.layers for _ in range(n) if layer.name == "block"]

    def counted(steps):
        """Return FLOP of products; what a flash kernel computes again in its backward pass does not count."""
        found = [k for k in steps if isinstance(k, Kernel) and k.kind in ("linear", "flash_attention")]
        return sum(k.flop * (0.8 if (k.kind, k.op) == ("flash_attention", "backward") else 1.0) for k in found)

    # in front of the first adapter the first block has no gradients
    assert (counted(stage.steps(blocks[1], "B")) > counted(stage.steps(blocks[0], "B"))) == (recompute == "none")
    assert 8 * (counted(stage.forward) + counted(stage.backward)) == pytest.approx(hardware_flop(one), rel=1e-12)
    assert model_flop(one) < 0.72 * model_flop(one.changed({"training.lora": None}))


@pytest.mark.parametrize("zero", [0, 1])
def test_data_parallel_ranks_reduce_adapters_alone(zero):
    one = adapted(parallelism__zero=zero, parallelism__algorithms__dp="ring", training__clip_gradients=False)
    result = Simulator(cluster(4, gpus=1, nics=1)).run(one, ignore_memory=True)
    [stage] = stages(result.job)
    moved = (4 + 2) if zero else 2 * 4
    assert sent(result) == pytest.approx(3 / 4 * moved * stage.parameters, rel=1e-9)


def test_sharded_weights_are_gathered_whole_and_only_adapters_are_reduced():
    one = adapted(parallelism__zero=3, parallelism__algorithms__dp="ring", training__clip_gradients=False)
    result = Simulator(cluster(4, gpus=1, nics=1)).run(one, ignore_memory=True)
    [stage] = stages(result.job)
    blocks = [
        (sum(stage.layer_parameters(layer)) * n, sum(stage.layer_frozen(layer)) * n)
        for layer, n in stage.layers
        if layer.name == "block"
    ]
    trained, frozen = (sum(one) for one in zip(*blocks, strict=True))
    root = sum(stage.frozen) - frozen
    per = result.job.microbatches
    total_bytes = per * (2 * (2 * (trained + frozen) + root) + 4 * trained)
    assert sent(result) == pytest.approx(3 / 4 * total_bytes, rel=1e-9)
    held = at_rest(result.job, [stage])
    assert held.parameters == pytest.approx((4 * trained + 2 * sum(stage.frozen)) / 4, rel=1e-9)


def test_adapters_exchange_their_narrow_outputs_over_tensor_parallel_ranks():
    """A·x of a column-parallel linear is gathered, of a row-parallel one summed; B·A·x of that is exchanged for tokens."""
    one = llama()
    found = {op.name: op for op in operators(one)}
    narrow = 2.0 * 8192 * 16
    column, row = (
        [(step.op, step.size) for step in found[name + ADAPTER].forward if isinstance(step, Collective)]
        for name in ("qkv", "projection")
    )
    assert column == [("all_gather", narrow)]
    assert row == [("all_reduce", narrow), ("all_to_all", 2.0 * 8192 * 2048)]
    gathered = {op.name: op for op in operators(llama(training__lora__a2a=False))}["projection" + ADAPTER]
    assert ("all_gather", 2.0 * 8192 * 8192) in [(s.op, s.size) for s in gathered.forward if isinstance(s, Collective)]


def test_a_frozen_linear_keeps_no_input_but_what_attention_reads_again():
    plain = {op.name: op for op in operators(llama(parallelism__tp=1))}
    tokens = 8192
    assert plain["fc1"].saved == plain["fc2"].saved == 0
    assert plain["projection"].saved == 2 * tokens * 8192
    assert plain["qkv"].saved == 2 * tokens * 10240
    masked = plain["qkv" + ADAPTER].saved
    assert masked == 3 * tokens * 8192 + 2 * tokens * 16
    bare = {op.name: op for op in operators(llama(parallelism__tp=1, training__lora__dropout=0))}
    assert bare["qkv" + ADAPTER].saved == 2 * tokens * (8192 + 16)
    assert bare["projection" + ADAPTER].saved == 2 * tokens * 16


def test_an_activation_keeps_its_input_in_fp8():
    plain, narrow = (
        {op.name: op for op in operators(llama(parallelism__tp=1, training__fp8_activation_input=on))}["activation"]
        for on in (False, True)
    )
    assert plain.saved == 2 * narrow.saved == 2 * 2 * 28672 * 8192
    cast = 3.0 * 2 * 28672 * 8192  # two bytes are read, one is written; the other way round in the backward pass
    assert [k.bytes for k in (narrow.forward[0], narrow.backward_input[0])] == [cast, cast]
    assert narrow.forward[1:] == plain.forward


@pytest.mark.parametrize("targets", [["linear_qkv"], ALL])
def test_a_recomputed_mlp_keeps_its_input_alone(targets):
    one = llama(parallelism__tp=1, training__recompute="selective", training__lora__targets=targets)
    one = one.changed({"training.recompute_modules": ("mlp",)})
    [stage] = stages(one)
    layer = next(layer for layer, _ in stage.layers if layer.name == "block")
    outside = sum(op.saved for op in layer.operators if not op.name.startswith(("fc", "activation")))
    assert layer.saved == pytest.approx(outside + 2 * 8192 * 8192, rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training__lora": {"rank": 6}}, "training.lora.rank: 6 is not a multiple of tp 4"),
        ({"training__lora__targets": ["linear_qkv", "linear_q"]}, "linear_qkv includes linear_q"),
        ({"training__lora__base": "nf4"}, "nf4 is unpacked to 16 bits, and precision is fp8"),
        ({"training__precision": "bf16"}, "training.lora.base: fp8 weights need GEMMs in fp8"),
        ({"training__optimizer": "muon"}, "training.lora is not modelled with muon"),
        (
            {"model__activation": "gelu", "training__lora__targets": ["linear_fc1_gate"]},
            "no block has a linear_fc1_gate",
        ),
        ({"training__lora__targets": ["q_proj"]}, "training.lora.targets"),
    ],
)
def test_what_cannot_be_adapted_is_named(changes, said):
    with pytest.raises(ConfigError) as caught:
        llama(**changes)
    assert said in str(caught.value)


def test_a_smaller_rank_never_takes_longer():
    found = [Simulator(cluster(1)).run(adapted(rank=rank), ignore_memory=True).record.end for rank in (8, 64, 256)]
    assert found == sorted(found)
    assert math.isfinite(found[-1])


def test_targets_that_nobody_sets_are_those_that_a_mixture_has(tmp_path):
    text = "{name: m, model: {layers: 2, hidden: 256, heads: 4, vocab: 1000, max_positions: 128, experts: 8, topk: 2}"
    text += ", training: {global_batch: 8, seq: 128, lora: {rank: 8}}}"
    (tmp_path / "w.yaml").write_text(text)
    one = load(tmp_path / "w.yaml").place(8, 8)
    assert adapter_parameters(one.model, one.training.lora) == 8 * ((256 + 3 * 256) + (256 + 256))
    (tmp_path / "w.yaml").write_text(text.replace("rank: 8", "rank: 8, targets: [linear_fc1]"))
    with pytest.raises(ConfigError, match="no block has a linear_fc1 with adapters; use linear_qkv"):
        load(tmp_path / "w.yaml").place(8, 8)
