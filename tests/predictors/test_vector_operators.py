"""Vector kernels that operators of a model launch: how many, what they move, and published times of the same operators."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustersim.config.yaml import parse
from clustersim.hardware import gpus
from clustersim.hardware.constants import LAUNCH
from clustersim.model.attention import attention_part, rotary, softmax_backward
from clustersim.model.attention import softmax as softmax_forward
from clustersim.model.elementwise import activation, activation_backward
from clustersim.model.head import parallel_loss
from clustersim.model.kernel import Kernel
from clustersim.model.moe import unpermute
from clustersim.model.norm import norm_kernels
from clustersim.parallel.load import build
from clustersim.predictors.load import get

MODEL = """\
name: small
model: {layers: 2, hidden: 512, heads: 8, ffn: 1024, vocab: 1024, bias: false, activation: gelu, positions: rotary}
training: {global_batch: 4, micro_batch: 4, seq: 2048, precision: bf16}
"""


def shard(**changes):
    return (
        build(parse(MODEL, "w.yaml"), {key.replace("__", "."): value for key, value in changes.items()})
        .place(1, 1)
        .shard
    )


def seconds(steps, gpu):
    found = [step for step in steps if isinstance(step, Kernel)]
    return sum(get("neusight").predict(found, gpus.load(gpu)).tolist())


def moved(kernels, size=1):
    return sum(one.bytes for one in kernels) / size


NORMS = {
    ("rmsnorm", "fused"): (1, 2, 1, 3),
    ("layernorm", "fused"): (1, 2, 1, 3),
    ("rmsnorm", "torch"): (1, 3, 1, 7),
    ("layernorm", "torch"): (1, 3, 1, 7),
    ("layernorm", "eager"): (1, 3, 1, 7),  # torch.nn.LayerNorm is PyTorch's kernel in eager models too
    ("rmsnorm", "eager"): (6, 18, 12, 42),
    ("rmsnorm", "upcast"): (2, 8, 4, 22),  # fp32 input and gradient of it, and the forward pass once more
}


@pytest.mark.parametrize("case", NORMS)
def test_a_norm_moves_what_its_kernels_read_and_write(case):
    # values of 2 bytes an element; Liger-Kernel's traces of Hugging Face's RMSNorm, eager: six kernels forward, twelve backward
    name, whose = case
    both = norm_kernels(shard(model__norm=name, training__norm_kernels=whose), 128, 256)
    found = [(len(some), moved(some, 2 * 128 * 256)) for some in both]
    assert [*found[0], *found[1]] == list(NORMS[case])


def test_kernels_of_norms_and_rotations_go_by_all_others_unless_they_are_named():
    eager, fused = shard(training__kernels="eager", model__norm="rmsnorm"), shard(model__norm="rmsnorm")
    assert (eager.norm_kernels, eager.eager_rope) == ("eager", True)
    assert (fused.norm_kernels, fused.eager_rope) == ("fused", False)
    mixed = shard(training__kernels="eager", training__norm_kernels="fused", training__rope_kernels="fused")
    assert (mixed.norm_kernels, mixed.eager_rope) == ("fused", False)
    assert len(rotary(mixed, 64).forward) == len(rotary(mixed, 64).backward_input) == 1
    assert len(rotary(eager, 64).forward) == 5
    assert len(rotary(eager, 64).backward_input) == 9


def test_a_fused_causal_softmax_reads_half_of_the_scores():
    [forward] = softmax_forward(shard(model__activation="gelu"), 4096, 2048)
    [backward] = softmax_backward(shard(model__activation="gelu"), 4096, 2048)
    assert (forward.bytes, backward.bytes) == (1.5 * 2 * 4096 * 2048, 2 * 2 * 4096 * 2048)


def test_the_loss_over_a_split_vocabulary_moves_38_bytes_a_logit():
    # megatron/core/tensor_parallel/cross_entropy.py: cast, maximum, difference, exponential, sum, quotient
    loss = parallel_loss(shard())
    assert [one.bytes / (one.m * one.n) for one in loss.forward if isinstance(one, Kernel)] == [6, 4, 8, 8, 4, 8]


A100 = "a100-sxm-80gb"
OPERATORS = [
    ("gelu", 2048, 187.0, 249.0),
    ("gelu", 4608, 414.0, 558.6),
    ("gelu", 7680, 683.0, 954.6),
    ("softmax", 16, 1151.0, 1825.4),
    ("softmax", 32, 2239.8, 3641.8),
    ("causal softmax", 8, 307.6, 433.4),
    ("causal softmax", 64, 2374.0, 3387.6),
    ("layernorm", 4608, 148.0, 492.4),
    ("layernorm", 6656, 196.0, 615.6),
    ("layernorm", 7680, 239.0, 772.0),
]
"""Operator, width (of softmax: heads), microseconds forward and backward: fp16, 4 sequences of 2,048 tokens, A100-SXM-80GB
(DebarghaG/estimate-train-time)."""


@pytest.mark.parametrize("case", OPERATORS, ids=lambda case: f"{case[0]}-{case[1]}")
def test_operators_of_training_take_what_was_measured_on_a100(case):
    name, width, forward_us, backward_us = case
    rows, eager = 4 * 2048, shard(training__kernels="eager", training__precision="fp16")
    if name == "gelu":
        forward, backward = activation(eager, rows, 4 * width), activation_backward(eager, rows, 4 * width)
    elif name == "layernorm":
        forward, backward = norm_kernels(eager, rows, width)
    else:
        one = shard(training__precision="fp16") if "causal" in name else eager
        apart = ("softmax", "fused_softmax", "softmax_backward", "fused_softmax_backward", "mul")
        forward, backward = (
            [kernel for kernel in some(one, width * rows, 2048) if kernel.op in apart]
            for some in (softmax_forward, softmax_backward)
        )
    assert seconds(forward, A100) == pytest.approx(forward_us * 1e-6, rel=0.1)
    assert seconds(backward, A100) == pytest.approx(backward_us * 1e-6, rel=0.1)


EAGER_NORMS = [
    ("a100-sxm-80gb", 2048, 8192, 519.0, 1351.6),
    ("a100-sxm-80gb", 2048, 32768, 1919.1, 5014.7),
    ("h100-sxm", 4096, 4096, 305.9, 748.0),
    ("h100-sxm", 8192, 4096, 574.5, 1404.6),
    ("h100-sxm", 2048, 8192, 306.4, 742.0),
]
"""GPU, rows, columns, microseconds forward and backward of Hugging Face's RMSNorm (linkedin/Liger-Kernel, benchmark/data)."""


@pytest.mark.parametrize("case", EAGER_NORMS)
def test_an_eager_rmsnorm_takes_what_was_measured(case):
    gpu, rows, columns, *measured_us = case
    both = norm_kernels(shard(training__kernels="eager", model__norm="rmsnorm"), rows, columns)
    for kernels, us in zip(both, measured_us, strict=True):
        assert seconds(kernels, gpu) == pytest.approx(us * 1e-6, rel=0.12)


EAGER_ROTATIONS = [
    ("a100-sxm-80gb", 8192, 1933.3, 2321.3),
    ("a100-sxm-80gb", 16384, 3817.0, 4557.2),
    ("b200-sxm", 8192, 1156.1, 1072.6),
]
"""GPU, tokens, microseconds forward and backward of Hugging Face's rotation of 10,240 values a token (the same)."""


@pytest.mark.parametrize("case", EAGER_ROTATIONS)
def test_an_eager_rotation_takes_what_was_measured(case):
    gpu, tokens, forward_us, backward_us = case
    one = rotary(shard(training__kernels="eager", training__seq=tokens // 4), 10240)
    assert seconds(one.forward, gpu) == pytest.approx(forward_us * 1e-6, rel=0.15)
    assert seconds(one.backward_input, gpu) == pytest.approx(backward_us * 1e-6, rel=0.15)


@pytest.mark.parametrize(("vocab", "forward_us", "both_us"), [(8192, 1094.5, 1609.2), (32768, 4026.6, 5934.9)])
def test_the_loss_over_a_split_vocabulary_takes_what_was_measured_on_h100(vocab, forward_us, both_us):
    # linkedin/Liger-Kernel, benchmark/data: Megatron-LM's vocab-parallel cross-entropy, unfused, 8,192 tokens in bf16
    loss = parallel_loss(shard(model__vocab=vocab))
    assert seconds(loss.forward, "h100-sxm") == pytest.approx(forward_us * 1e-6, rel=0.1)
    assert seconds((*loss.forward, *loss.backward_input), "h100-sxm") == pytest.approx(both_us * 1e-6, rel=0.1)


def test_nanotron_copies_queries_keys_and_values_into_order():
    # 3 values an element into order, keys and values put together and ordered; backward these together, all three, and once more
    plain = build(parse(MODEL, "w.yaml"), {"model.activation": "swiglu"}).place(1, 1).shard
    nanotron = replace(plain, stacked=True)
    order = next(op for op in attention_part(nanotron) if op.name == "order_heads")
    elements = plain.tokens * plain.model.hidden
    assert moved(order.forward, 2 * elements) == 2 * (3 + 2 + 2)
    assert moved(order.backward_input, 2 * elements) == 2 * (2 + 3 + 3)
    assert not any(op.name == "order_heads" for op in attention_part(plain))
    eager = replace(nanotron, training=nanotron.training.model_copy(update={"kernels": "eager"}))
    assert [one.op for one in activation_backward(eager, 8, 8)][-1] == "concatenate"


def test_a_launch_belongs_to_each_kernel():
    eager, fused = (shard(model__norm="rmsnorm", training__norm_kernels=whose) for whose in ("eager", "fused"))
    least = [seconds(norm_kernels(one, 1, 64)[0], A100) for one in (eager, fused)]
    assert least[0] - least[1] == pytest.approx(5 * LAUNCH, rel=0.3)


@pytest.mark.parametrize(
    ("hidden", "topk", "seqs", "measured"),
    [(2048, 8, 1, 1.11e-3), (2048, 8, 4, 4.40e-3), (4096, 2, 1, 0.69e-3), (4096, 2, 4, 2.27e-3)],
)
def test_rows_of_experts_that_pytorch_adds_with_atomics_take_as_long_as_on_an_h200(hidden, topk, seqs, measured):
    # docs/measured-h200.md: rows weighed in a kernel, a cleared tensor, index_add_, and their gradients
    shape = {"model__hidden": hidden, "model__heads": 32, "model__experts": 16, "model__topk": topk}
    sizes = {"training__micro_batch": seqs, "training__global_batch": seqs, "training__seq": 4096}

    def took(**kernels):
        found = unpermute(shard(**shape, **sizes, **kernels))
        return seconds((*found.forward, *found.backward_input), "h200-sxm")

    assert took(training__kernels="eager") == pytest.approx(measured, rel=0.2)
    assert took() < took(training__permute_kernels="eager") < took(training__kernels="eager")
