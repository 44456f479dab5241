"""Stages: order, sums, gradients, exchanges, recomputation, and the printed table."""

import json
from collections import Counter
from itertools import accumulate
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.errors import InputError
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Collective
from clustersim.parallel.kernel_table import rows
from clustersim.parallel.layout import balanced, portions, share
from clustersim.parallel.load import load
from clustersim.parallel.stages import stages

FOLDER = Path(__file__).parents[2] / "workloads"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


PLAIN = {"training__recompute_modules": [], "parallelism__overlap__ep": "none"}
"""What goes with any recomputation and any schedule."""


def job(name="gpt3", **overrides):
    one = load(FOLDER / f"{name}.yaml", {key.replace("__", "."): value for key, value in overrides.items()})
    return one.place(4096, 8)


def exchanges(steps):
    return [step for step in steps if isinstance(step, Collective)]


@given(st.integers(1, 200), st.integers(1, 200))
def test_layers_are_shared_as_evenly_as_possible_and_early_stages_get_more(layers, count):
    got = share(layers, count)
    assert sum(got) == layers
    assert max(got) - min(got) <= 1
    assert list(got) == sorted(got, reverse=True)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", NAMES)
def test_split_backward_is_the_whole_backward(name, recompute):
    for stage in stages(job(name, training__recompute=recompute, **PLAIN)):
        split = Counter(stage.backward_input) + Counter(stage.backward_weight)
        assert split == Counter(stage.backward)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_has_its_gradient_once_and_before_the_end(name):
    for stage in stages(job(name)):
        dense, experts = (stage.gradient_ready(expert) for expert in (False, True))
        positions = [position for position, _ in dense]
        assert sum(count for _, count in dense + experts) == stage.parameters
        assert positions == sorted(positions)
        assert positions[-1] == len(stage.backward)
        assert [position for position, _ in experts] == sorted(position for position, _ in experts)


def test_embedding_and_loss_may_count_as_layers():
    """As in Megatron: 126 + 2 layers in 16 × 8 chunks, and with 6 + 2 on 4 stages one less at both ends."""
    assert share(126, 128, first=True, last=True) == (0, *[1] * 126, 0)
    assert share(6, 4, first=True, last=True) == (1, 2, 2, 1)
    assert share(7, 4, last=True) == (2, 2, 2, 1)
    names = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    one = load(FOLDER / "gpt3.yaml", names | {"model.layers": 30, "parallelism.pp": 16, "parallelism.dp": 1})
    found = stages(one.place(128, 8))
    assert [sum(count for layer, count in stage.layers if layer.name == "block") for stage in found] == [
        1,
        *[2] * 14,
        1,
    ]


def test_gpt3_exchanges_two_all_reduces_a_block_each_way():
    size = 2048 * 12288 * 2
    middle = stages(job())[3]
    assert exchanges(middle.forward) == [Collective("tp", "all_reduce", size)] * 12
    assert exchanges(middle.backward) == [Collective("tp", "all_reduce", size)] * 12


def test_first_and_last_stage_add_the_embedding_and_the_loss():
    size, (first, *_, last) = 2048 * 12288 * 2, stages(job())
    assert [e.size for e in exchanges(first.forward)] == [size] * 13
    assert [e.size for e in exchanges(last.forward)] == [size] * 12 + [2048 * 4] * 3
    assert [e.size for e in exchanges(last.backward)] == [size] * 13
    assert (first.input_bytes, first.output_bytes, last.output_bytes) == (0, size, 0)


def test_sequence_parallelism_gathers_and_scatters_the_same_bytes():
    plain, split = (stages(job(parallelism__sequence_parallel=sp))[3] for sp in (False, True))
    size = 2048 * 12288 * 2
    assert Counter(e.op for e in exchanges(split.forward)) == {"all_gather": 12, "reduce_scatter": 12}
    assert Counter(e.op for e in exchanges(split.backward)) == {"all_gather": 24, "reduce_scatter": 12}
    assert {e.size for e in exchanges(split.forward + split.backward)} == {size}
    assert split.output_bytes == plain.output_bytes / 8


def test_a_gathered_input_that_is_kept_is_not_gathered_again():
    forward, backward = (
        Counter(e.op for e in exchanges(steps))
        for one in stages(job(parallelism__sequence_parallel=True, parallelism__keep_gathered=True))[3:4]
        for steps in (one.forward, one.backward)
    )
    assert forward == backward == {"all_gather": 12, "reduce_scatter": 12}


def test_linears_apart_multiply_as_much_as_one():
    whole, apart = (stages(job("llama3_8b", training__fused_projections=fused))[0] for fused in (True, False))
    for steps, others in ((whole.forward, apart.forward), (whole.backward, apart.backward)):
        flops, parted = (
            sum(k.flop for k in one if isinstance(k, Kernel) and k.kind == "linear") for one in (steps, others)
        )
        assert parted == pytest.approx(flops, rel=1e-12)
    assert apart.parameters == whole.parameters


def test_one_rank_exchanges_nothing():
    assert not exchanges(stages(job("gpt2_large"))[0].forward)


def test_tied_embeddings_are_held_by_both_ends_and_shared():
    first, *middle, last = stages(job())
    assert first.shared == last.shared == 51200 * 12288 // 8
    assert all(stage.shared == 0 for stage in middle)
    (whole,) = stages(job("gpt2_large"))
    assert (whole.shared, whole.reused) == (0, 50304 * 1280)
    assert all(stage.shared == 0 for stage in stages(job("llama3_70b")))


def test_full_recompute_runs_the_blocks_again_with_their_exchanges():
    none, full = (stages(job(training__recompute=r))[3] for r in ("none", "full"))
    assert Counter(full.backward) == Counter(none.backward) + Counter(none.forward)
    assert full.backward[: len(full.forward) // 6] == full.forward[: len(full.forward) // 6]


def test_selective_recompute_runs_only_the_core_again():
    none, selective = (stages(job(training__recompute=r))[3] for r in ("none", "selective"))
    extra = Counter(selective.backward) - Counter(none.backward)
    assert {(k.kind, k.op, n) for k, n in extra.items()} == {("flash_attention", "forward", 6)}


def test_weight_gradients_add_into_fp32_when_fused_and_apart_when_eager():
    how = ({}, {"training__kernels": "eager"}, {"training__fused_accumulation": False})
    fused, *others = (stages(job(**keys))[3].backward_weight for keys in how)
    wgrad = next(k for k in fused if k.op == "wgrad")
    m, n, k = wgrad.m, wgrad.n, wgrad.k
    assert wgrad.bytes == 2 * (m * k + k * n) + 8 * m * n
    for kernels in others:
        apart = next(k for k in kernels if k.op == "wgrad")
        assert apart.bytes == 2 * (m * k + k * n + m * n)
        assert any(k.op == "accumulate" and k.bytes == 10 * m * n for k in kernels)


def test_fp8_products_read_one_byte_and_leave_bf16():
    kernels = [k for k in stages(job(training__precision="fp8"))[3].forward if isinstance(k, Kernel)]
    linear = next(k for k in kernels if k.kind == "linear")
    assert linear.dtype == "fp8"
    assert linear.bytes == linear.m * linear.k + linear.k * linear.n + 2 * linear.m * linear.n
    assert {k.dtype for k in kernels if k.kind != "linear" and k.op not in ("amax", "scales")} == {"bf16"}


def test_neusight_shards_every_parameter():
    (stage,) = stages(job("neusight_gpt3_xl"))
    assert stage.parameters * 8 == pytest.approx(2.8796e9, rel=1e-4)
    # a quantum of the published forecast: one gradient over 100 Gb/s counted in GiB, 107.279 ms
    assert 4 * stage.parameters / (12.5 * 2**30) == pytest.approx(107.279e-3, rel=1e-3)


def test_kernels_are_sound():
    for name in NAMES:
        for stage in stages(job(name)):
            for step in (*stage.forward, *stage.backward):
                size = step.bytes if isinstance(step, Kernel) else step.size
                assert size > 0
                if isinstance(step, Kernel) and step.kind in ("linear", "bmm", "grouped_gemm"):
                    assert step.flop > 0


@settings(max_examples=examples(25), deadline=None)
@given(
    st.sampled_from(NAMES), st.sampled_from([1, 2]), st.integers(1, 6), st.sampled_from(["none", "selective", "full"])
)
def test_the_table_has_what_the_stages_run(name, tp, pp, recompute):
    spread = job(name).parallelism.ep > 1
    one = job(
        name,
        parallelism__tp=tp,
        parallelism__pp=pp,
        parallelism__vpp=1,
        parallelism__schedule="1f1b",
        parallelism__layout=None,
        parallelism__last_layers=None,
        parallelism__sequence_parallel=spread and tp > 1,
        training__recompute=recompute,
        training__optimizer="none",
        **PLAIN,
    )
    run = Counter(step for stage in stages(one) for step in (*stage.forward, *stage.backward))
    table: Counter[object] = Counter()
    for row in rows(one):
        table[row.step] += row.launches
    assert table == Counter({step: count * one.microbatches for step, count in run.items()})


def test_printed_table_and_json_agree(capsys):
    from clustersim.cli.kernels import kernels
    from clustersim.cli.options import CommandOutput

    kernels(FOLDER / "gpt3.yaml", output=CommandOutput(as_json=True))
    data = json.loads(capsys.readouterr().out)
    kernels(FOLDER / "gpt3.yaml", output=CommandOutput())
    text = capsys.readouterr().out
    assert "fc1" in text
    assert f"{data['total']['launches']:,} launches" in text
    assert data["kernels"][0]["shape"] == "2048×12288"


def test_a_stage_that_does_not_exist():
    from clustersim.cli.kernels import kernels
    from clustersim.cli.options import CommandOutput

    with pytest.raises(InputError, match=r"--stage 16: the job has 16 stages; use 0 to 15"):
        kernels(FOLDER / "gpt3.yaml", stage=16, output=CommandOutput())


@given(st.lists(st.floats(0.5, 2), min_size=1, max_size=60), st.floats(0, 10), st.data())
def test_stages_cut_by_arithmetic_have_a_block_or_the_logits_each_and_never_a_block_too_many(costs, logits, data):
    count = data.draw(st.integers(1, len(costs) + 1))
    got = balanced(costs, logits, count)
    assert sum(got) == len(costs)
    assert len(got) == count
    assert all(got[:-1])
    ends, fair = list(accumulate(got)), (sum(costs) + logits) / count
    for stage, (blocks, end) in enumerate(zip(got[:-1], ends, strict=False)):
        if blocks > 1:  # what it had before its last block was no more than its share
            assert sum(costs[: end - 1]) <= fair * (stage + 1) + 1e-9


@pytest.mark.parametrize(
    ("pp", "blocks"), [(1, [28]), (2, [16, 12]), (4, [8, 8, 8, 4]), (8, [4] * 7 + [0]), (16, [2] * 13 + [1, 1, 0])]
)
def test_logits_over_a_large_vocabulary_take_blocks_from_the_last_stages(pp, blocks):
    # nanotron's 3.57B Llama: its logits are 3.6 blocks' work
    assert list(balanced([4 * 3072**2 + 3 * 3072 * 8192] * 28, 131072 * 3072, pp)) == blocks


def test_nanotrons_stages_of_llama3_8b():
    # printed in a walk through its code (tj-solergibert, "3D parallelism in nanotron"), whose costs know no grouped queries
    alone = {"parallelism__tp": 1, "parallelism__sequence_parallel": False}
    one = job("llama3_8b", parallelism__pp=8, parallelism__partition="compute", model__kv_heads=32, **alone)
    assert [portion.blocks for portion in portions(one.parallelism, one.model)] == [5, 4, 4, 5, 4, 4, 4, 2]


def test_one_word_cuts_stages():
    with pytest.raises(
        InputError, match=r"parallelism.partition: and parallelism.first_layers exclude each other; keep one of them"
    ):
        job(parallelism__partition="compute", parallelism__first_layers=1)
