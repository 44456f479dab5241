"""Memory by kind against Korthikanti et al. 2022 (arXiv 2205.05198) and the 18 bytes a parameter of 16-bit Adam."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.workload.load import load
from clustersim.workload.memory import memory
from clustersim.workload.optimizer import update
from clustersim.workload.stages import stages
from clustersim.workload.transformer import block

FOLDER = Path(__file__).parents[1] / "workloads"


def job(name="gpt3", **overrides):
    one = load(FOLDER / f"{name}.yaml", {key.replace("__", "."): value for key, value in overrides.items()})
    return one.place(4096, 8)


def saved(one):
    return sum(op.saved for op in block(one.rank).operators)


UNFUSED = {"training__attention": "unfused", "model__dropout": True}


@pytest.mark.parametrize("t", [1, 2, 4, 8])
@pytest.mark.parametrize("b", [1, 4])
def test_activations_under_tensor_parallelism_table_2(t, b):
    one = job(parallelism__tp=t, training__micro_batch=b, **UNFUSED)
    s, h, a = 2048, 12288, 96
    assert saved(one) == pytest.approx(s * b * h * (10 + 24 / t + 5 * a * s / (h * t)), rel=1e-12)


@pytest.mark.parametrize("t", [2, 4, 8])
def test_activations_under_sequence_parallelism_table_2(t):
    one = job(parallelism__tp=t, parallelism__sequence_parallel=True, **UNFUSED)
    s, h, a = 2048, 12288, 96
    assert saved(one) == pytest.approx(s * h / t * (34 + 5 * a * s / h), rel=1e-12)


def test_selective_recompute_drops_the_square_term_and_full_keeps_the_input():
    kept = {
        kind: stages(job(training__recompute=kind, parallelism__tp=8, **UNFUSED))[1].saved_bytes / 6
        for kind in ("none", "selective", "full")
    }
    s, h, a = 2048, 12288, 96
    assert kept["selective"] == pytest.approx(s * h * (10 + 24 / 8), rel=1e-12)
    assert kept["none"] - kept["selective"] == pytest.approx(5 * a * s * s / 8, rel=1e-12)
    assert kept["full"] == 2 * s * h


def test_flash_attention_keeps_what_selective_recompute_keeps_and_its_statistics():
    one = job(model__dropout=True)
    s, h, a = 2048, 12288, 96
    assert saved(one) == pytest.approx(s * h * (10 + 24 / 8) + 4 * a * s / 8, rel=1e-12)


def test_16_bit_adam_needs_eighteen_bytes_a_parameter():
    one = job()
    stage = stages(one)[3]
    m = memory(one, [stage], [13])
    assert (m.parameters + m.gradients + m.optimizer) / stage.parameters == 18
    assert m.activations == 13 * stage.saved_bytes
    assert m.total == sum(m)


def test_the_distributed_optimizer_divides_the_state_only():
    plain, sharded = job(), job(parallelism__zero=1)
    one, other = (memory(j, [stages(j)[1]], [1]) for j in (plain, sharded))
    assert other.optimizer == one.optimizer / plain.dp
    assert other[:2] == one[:2]


@pytest.mark.parametrize(
    "precision, gradients, optimizer, total",
    [
        ("bf16", "fp32", "adam", 18),
        ("bf16", "bf16", "adam", 16),
        ("fp32", "fp32", "adam", 16),
        ("fp32", "fp32", "none", 8),
        ("bf16", "fp32", "sgd", 14),
        ("fp8", "fp32", "adam", 18),
    ],
)
def test_bytes_a_parameter(precision, gradients, optimizer, total):
    one = job(training__precision=precision, training__gradients=gradients, training__optimizer=optimizer)
    stage = stages(one)[1]
    assert sum(memory(one, [stage], [0])[:3]) == total * stage.parameters


def test_adam_in_fp32_moves_28_bytes_a_parameter():
    one = job("gpt2_large", training__precision="fp32", training__clip_gradients=False)
    assert {k.op: k.bytes / 1000 for k in update(one, 1000)} == {"adam": 28, "zero_gradients": 4}


def test_mixed_precision_update_moves_46_bytes_a_parameter_and_clears_the_gradients():
    one = job()
    traffic = {k.op: k.bytes / 1000 for k in update(one, 1000)}
    assert traffic == {
        "gradient_norm": 4,
        "gradient_scale": 8,
        "adam": 28,
        "weights_from_fp32": 6,
        "zero_gradients": 4,
    }


def test_full_recompute_brings_one_block_back():
    one = job(training__recompute="full")
    stage = stages(one)[1]
    m = memory(one, [stage], [16])
    assert m.activations == 16 * stage.saved_bytes + saved(one) - 2 * 2048 * 12288


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 4), st.sampled_from(["none", "selective", "full"]))
def test_memory_falls_with_tp_and_rises_with_microbatches(tp, in_flight, recompute):
    def total(t, n):
        one = job(parallelism__tp=t, training__recompute=recompute)
        return memory(one, [stages(one)[1]], [n]).total

    assert total(tp, in_flight) < total(tp, in_flight + 1)
    assert tp == 1 or total(tp, in_flight) < total(tp // 2, in_flight)


@pytest.mark.parametrize("tp, dp, allocated", [(2, 4, 60.68), (4, 2, 39.07), (8, 1, 28.29)])
def test_measured_peaks_of_a_twelve_layer_llama3_70b(tp, dp, allocated):
    # GiB allocated, Megatron-LM on 8×B200, MooreThreads/SimuMax docs/b200 release v1.2 (Apache-2.0)
    one = load(
        FOLDER / "llama3_70b.yaml",
        {
            "model.layers": 12,
            "training.seq": 4096,
            "training.global_batch": 4 * dp,
            "parallelism.tp": tp,
            "parallelism.pp": 1,
            "parallelism.dp": dp,
        },
    ).place(8, 8)
    m = memory(one, stages(one), [1])
    assert (m.total - m.framework) / 2**30 == pytest.approx(allocated, rel=0.01)
