"""Memory by kind against Korthikanti et al. 2022 (arXiv 2205.05198) and the 18 bytes a parameter of 16-bit Adam."""

from pathlib import Path

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.engine.memory import memory_by_rank, moments, of_lanes, peaks
from clustersim.model.transformer import block
from clustersim.parallel import memory as bytes_held
from clustersim.parallel.load import load
from clustersim.parallel.memory import at_rest
from clustersim.parallel.optimizer import state_bytes, update
from clustersim.parallel.stages import stages
from clustersim.schedules.action import Action
from clustersim.schedules.check import in_flight, peak_microbatches
from clustersim.schedules.check import load as schedule

FOLDER = Path(__file__).parents[2] / "workloads"


def job(name="gpt3", **overrides):
    one = load(FOLDER / f"{name}.yaml", {key.replace("__", "."): value for key, value in overrides.items()})
    return one.place(4096, 8)


def rank_memory(one, own, row):
    return of_lanes(one, [own], moments((row,), every=True))[0]


def memory(one, own, kept):
    """The peak of a rank that forwards kept[i] microbatches on stage i and then begins its backward passes."""
    return rank_memory(
        one, own, tuple(Action(s, x, i) for x in "FB" for s, n in enumerate(kept) for i in range(n))
    ).peak


def saved(one):
    return sum(op.saved for op in block(one.shard).operators)


DEEP = {"parallelism__tp": 8, "parallelism__pp": 16, "model__layers": 96, "training__global_batch": 64}
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


@pytest.mark.parametrize(
    ("heads", "micro_batch", "fused"), [(32, 1, True), (16, 1, False), (16, 2, True), (8, 2, False)]
)
def test_scores_that_megatrons_kernel_does_not_take_are_normalized_in_fp32(heads, micro_batch, fused):
    """fused_softmax.py: scores of a multiple of four heads and sequences; else cast, scale, mask, softmax, cast and back."""
    sizes = {"model__heads": heads, "parallelism__tp": 8, "training__micro_batch": micro_batch}
    one = job(**sizes, **UNFUSED)
    core = next(op for op in block(one.shard).operators if op.name == "attention")
    apart = ["to_fp32", "scale", "mask", "softmax", "from_fp32"]
    assert [kernel.op for kernel in core.forward[1:-2]] == (["fused_softmax"] if fused else apart)
    scores = micro_batch * heads / 8 * 2048**2
    assert core.saved == (5 if fused else 7) * scores


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


@pytest.mark.parametrize("dp", [2, 4, 8])
@pytest.mark.parametrize(("zero", "whole", "shared"), [(0, 16, 0), (1, 4, 12), (2, 2, 14), (3, 0, 16)])
def test_states_of_the_model_under_zero_figure_1(zero, whole, shared, dp):
    """(2 + 2 + K)Ψ bytes, of which ZeRO-1, 2 and 3 share K, 2 + K and all (Rajbhandari et al. 2020, section 5; K = 12)."""
    overlap = {"grad_reduce": zero in (1, 2)}
    split = {"parallelism__zero": zero, "parallelism__dp": dp, "parallelism__tp": 1, "parallelism__overlap": overlap}
    one = job("gpt2_large", **split, training__precision="bf16", training__gradients="bf16", training__global_batch=64)
    [stage] = stages(one)
    rest = at_rest(one, [stage])
    assert rest.parameters + rest.gradients + rest.optimizer == pytest.approx(
        stage.parameters * (whole + shared / dp), rel=1e-12
    )


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
    found = memory(one, [stage], [13])
    assert sum(found[:3]) == total * stage.parameters
    assert found.activations == 13 * stage.saved_bytes
    assert found.total == sum(found)


@pytest.mark.parametrize(("moments", "each"), [("fp32", 4), ("bf16", 2), ("fp8", 1)])
@pytest.mark.parametrize(("optimizer", "count"), [("adam", 2), ("sgd", 1)])
def test_moments_in_fewer_bytes_are_smaller_and_move_less(moments, each, optimizer, count):
    one = job(training__moments=moments, training__optimizer=optimizer)
    [kernel] = [kernel for kernel in update(one, 1000) if kernel.op == optimizer]
    assert state_bytes(one) == 4 + count * each
    assert kernel.bytes == 1000 * (12 + 2 * count * each)


def test_adam_in_fp32_moves_28_bytes_a_parameter():
    one = job("gpt2_large", training__precision="fp32", training__clip_gradients=False)
    assert {k.op: k.bytes / 1000 for k in update(one, 1000)} == {"adam": 28, "zero_gradients": 4}


def test_mixed_precision_update_moves_46_bytes_a_parameter_and_clears_the_gradients():
    one = job()
    traffic = {k.op: k.bytes / 1000 for k in update(one, 1000)}
    assert traffic == {"gradient_norm": 4, "gradient_scale": 8, "adam": 28, "weights_from_fp32": 6, "zero_gradients": 4}


def test_zero_2_frees_the_gradients_of_other_ranks_once_their_bucket_is_reduced():
    """DeepSpeed, stage_1_and_2.py, clear_grad_attribute: two buckets in addition to the rank's share."""
    split = {
        "parallelism__dp": 8,
        "parallelism__tp": 1,
        "parallelism__pp": 1,
        "parallelism__zero": 2,
        "parallelism__bucket": 1_000_000,
    }
    under = {"parallelism__overlap": {"grad_reduce": True}, "training__gradients": "bf16"}
    often = job("gpt2_large", **split, **under, parallelism__reduce_every_microbatch=True)
    summed = job("gpt2_large", **split, **under)
    [stage] = stages(often)
    assert bytes_held.gradients(often, stage) == pytest.approx((stage.parameters * 2 / 8, 2 * 1e6 * 2))
    assert bytes_held.gradients(summed, stage) == pytest.approx(
        (stage.parameters * 2 / 8, stage.parameters * 2 * 7 / 8)
    )


def test_zero_2_holds_the_gradients_of_the_stages_that_are_not_reduced_yet():
    """All forwards first: the backward passes of a stage follow each other, and so does the reduction of its gradients."""
    chunks = {"parallelism__vpp": 3, "parallelism__schedule": "interleaved", "parallelism__dp": 4}
    both = DEEP | chunks | {"parallelism__overlap": {"grad_reduce": True}}
    one, other = job(**both, parallelism__zero=2), job(**both, parallelism__zero=1)
    own = stages(one)[1::16]
    row = schedule("interleaved", 16, 16, 3)[1]
    found = rank_memory(one, own, row)
    whole = [4.0 * stage.parameters for stage in own]
    assert found.rest.gradients == pytest.approx(sum(whole) / 4)
    backward = [i for i, action in enumerate(row) if action.letter == "B"]
    first = [next(i for i in backward if row[i].stage == stage) for stage in (1, 17, 33)]
    last = [max(i for i in backward if row[i].stage == stage) for stage in (1, 17, 33)]
    for i, gradients in enumerate(found.gradients):
        alive = sum(0.75 * size for size, a, b in zip(whole, first, last, strict=True) if a <= i <= b + 1)
        assert gradients == pytest.approx(found.rest.gradients + alive, rel=1e-12)
    before = rank_memory(other, own, row)
    assert set(before.gradients) == {sum(whole)}
    assert found.peak.gradients == pytest.approx(
        before.peak.gradients * (1 / 4 + 3 / 4 / 3)
    )  # a share, and one chunk of three


def test_llama3_405b_fits_into_80_gb_as_its_authors_split_it():
    """16 GPUs of 8, dp 128; the first chunk of rank 0 has the embedding alone, the last of rank 15 the head alone."""
    one = load(FOLDER / "llama3_405b.yaml").place(16384, 8)
    own, split = stages(one), one.parallelism
    layers = [[(layer.name, count) for layer, count in stage.layers] for stage in own]
    assert layers == [[("embedding", 1)], *[[("block", 1)]] * 126, [("head", 1)]]
    assert (split.tp, split.pp, one.dp, one.microbatches, one.training.recompute) == (8, 16, 128, 16, "none")
    found = memory_by_rank(one, [own], schedule(split.schedule, split.pp, one.microbatches, split.vpp))
    block = saved(one)
    assert [round(each.peak.activations / block) for each in found[1:8]] == [128] * 7  # all 16 sequences of 8 layers
    assert max(found[0].activations) < max(found[1].activations)
    assert max(found[15].activations) == pytest.approx(112 * block + own[-1].saved_bytes, rel=1e-12)
    assert max(each.peak.total for each in found) < 0.97 * 81559 * 2**20


PEAKS = [
    ("llama3_70b", 12, 2, 1, 4, 60.68),
    ("llama3_70b", 12, 4, 1, 2, 39.07),
    ("llama3_70b", 12, 8, 1, 1, 28.29),
    ("llama3_70b", 12, 1, 2, 4, 66.55),
    ("llama3_405b", 4, 2, 1, 4, 81.59),
    ("llama3_405b", 4, 1, 2, 4, 87.08),
]
"""Layers, tp, pp, dp and GiB allocated, Megatron-LM on 8×B200, MooreThreads/SimuMax docs/b200 release v1.2 (Apache-2.0)."""


@pytest.mark.parametrize("name, layers, tp, pp, dp, allocated", PEAKS)
def test_measured_peaks_of_megatron(name, layers, tp, pp, dp, allocated):
    split = {"tp": tp, "pp": pp, "dp": dp, "zero": 1, "sequence_parallel": tp > 1, "vpp": 1, "schedule": "1f1b"}
    split |= {"layout": None, "cp": 1, "first_layers": None, "last_layers": None}
    split |= {"account_for_embedding": False, "account_for_loss": False}
    changes = {"model.layers": layers, "model.kv_heads": 8 if layers == 12 else 16}
    changes |= {"training.seq": 4096, "training.global_batch": 4 * dp}
    changes |= {"training.framework": "megatron-core", "training.cross_entropy": "fused", "training.recompute": "none"}
    one = load(FOLDER / f"{name}.yaml", changes | {f"parallelism.{key}": value for key, value in split.items()})
    one = one.place(8, 8)
    found = memory_by_rank(one, [stages(one)], schedule("1f1b", pp, one.microbatches, 1))
    most = max(each.peak.total - each.peak.framework for each in found)
    assert most / 2**30 == pytest.approx(allocated, rel=0.002)


def test_a_framework_keeps_a_gradient_that_nobody_reads_for_each_shape_of_weight():
    """Transformer Engine's get_dummy_wgrad: those of two blocks are the same tensors."""
    both = {"training__framework": "megatron-core", "parallelism__tp": 8}
    h, v = 12288, 51200
    own = {layers: stages(job(**both, model__layers=layers))[1] for layers in (32, 64)}
    shapes = 2 * (3 * h * h + h * h + 4 * h * h + 4 * h * h) / 8
    for stage in own.values():
        assert memory(job(**both), [stage], [1]).buffers == shapes + 2**26
    last = stages(job(**both))[-1]
    assert memory(job(**both), [last], [1]).buffers == shapes + 2 * h * v / 8 + 2**26
    assert memory(job(parallelism__tp=8), [last], [1]).buffers == 0


def test_nanotron_keeps_buckets_of_its_replicas_and_copies_of_keys_and_values():
    named = {"training__framework": "nanotron", "training__precision": "bf16", "training__recompute": "none"}
    one, plain = job(**named, parallelism__tp=8), job(parallelism__tp=8, training__precision="bf16")
    stage = stages(one)[1]
    assert memory(one, [stage], [1]).buffers == 2 * stage.parameters + 2**25
    sharded = job(
        **named, parallelism__tp=8, parallelism__zero=1
    )  # gathers through one flat tensor in place of the buckets
    assert memory(sharded, [stage], [1]).buffers == 2 * stage.parameters + 2**25
    assert saved(one) - saved(plain) == 2 * 2048 * 2 * 12288 / 8
    alone = job(**named, parallelism__tp=8, parallelism__dp=1, training__global_batch=16)
    assert memory(alone, [stage], [1]).buffers == 2**25


def test_metrics_of_training_take_time_and_no_memory_that_the_loss_has_not_freed():
    """Composer's cross-entropy and perplexity follow the backward pass: a cast to fp32 and a log-softmax each."""
    fused, metered = (
        next(op for layer, _ in stages(one)[-1].layers for op in layer.operators if op.name == "cross_entropy")
        for one in (job(parallelism__tp=1, training__cross_entropy=kind) for kind in ("fused", "metered"))
    )
    assert metered._replace(backward_input=()) == fused._replace(backward_input=())
    more = metered.backward_input[len(fused.backward_input) :]
    assert [kernel.op for kernel in more] == 2 * ["cast", "log_softmax"]


def by_ranks(**overrides):
    one = job(parallelism__dp=1, **DEEP, **overrides)
    split, own = one.parallelism, stages(one)
    rows = schedule(split.schedule, split.pp, one.microbatches, split.vpp)
    return own, rows, memory_by_rank(one, [own], rows)


@settings(max_examples=examples(40), deadline=None)
@given(
    kind=st.sampled_from([("1f1b", 1), ("gpipe", 1), ("zero_bubble", 1), ("interleaved", 2), ("zero_bubble", 3)]),
    pp=st.sampled_from([1, 2, 4]),
    zero=st.sampled_from([0, 1, 2]),
    recompute=st.sampled_from(["none", "full"]),
)
def test_the_fullest_moment_is_found_without_looking_at_every_pass(kind, pp, zero, recompute):
    schedule_, vpp = kind if pp > 1 else ("1f1b", 1)
    for batch, ends in ((4 * pp, False), (4 * 6 * pp, True)):
        one = job(
            parallelism__pp=pp,
            parallelism__vpp=vpp,
            parallelism__schedule=schedule_,
            parallelism__zero=zero,
            parallelism__overlap={"grad_reduce": True},
            parallelism__account_for_embedding=ends,
            model__dropout=True,
            training__recompute=recompute,
            training__global_batch=batch,
            parallelism__dp=4,
        )
        parts, split = [stages(one)], one.parallelism
        rows = schedule(split.schedule, pp, one.microbatches, vpp)
        enough = peak_microbatches(split.schedule, pp, one.microbatches, vpp)
        found = peaks(one, parts, moments(schedule(split.schedule, pp, enough, vpp)))
        assert found == [each.peak for each in memory_by_rank(one, parts, rows)]


def test_chunks_whose_peaks_do_not_coincide_are_not_added():
    """pp 16 with 3 chunks: 2 (15 - r) + 2 × 16 forwards before the first backward, and the one that it follows."""
    own, _, found = by_ranks(parallelism__vpp=3, parallelism__schedule="interleaved", model__dropout=True)
    block, first = own[17].saved_bytes, own[0].saved_bytes
    assert own[16].saved_bytes == block == own[32].saved_bytes
    kept = [one.peak.activations for one in found]
    assert kept[0] == pytest.approx(
        32 * first + 31 * block, rel=1e-12
    )  # 63 chunks, two rounds of the one with embedding
    assert kept[1:15] == pytest.approx([(63 - 2 * rank) * block for rank in range(1, 15)], rel=1e-12)
    assert kept[15] == pytest.approx(32 * block + own[47].saved_bytes, rel=1e-12)


CASES = [("1f1b", 1), ("gpipe", 1), ("zero_bubble", 1), ("interleaved", 2), ("interleaved", 3), ("zero_bubble", 2)]


@pytest.mark.parametrize("name, vpp", CASES)
def test_ranks_keep_as_many_chunks_as_show_draws(name, vpp):
    """On ranks without embedding or loss, whose chunks are alike; `show --schedule` prints these counts."""
    from clustersim.schedules.draw import schedule_text

    own, rows, found = by_ranks(parallelism__vpp=vpp, parallelism__schedule=name)
    [line] = [one for one in schedule_text(name, 16, 64, vpp).splitlines() if one.startswith("microbatches in flight")]
    drawn = [int(count) for count in line.partition(": ")[2].split(", ")]
    assert drawn == [in_flight(row) for row in rows]
    for rank in range(1, 15):
        assert found[rank].peak.activations == pytest.approx(drawn[rank] * own[rank].saved_bytes, rel=1e-12)


@pytest.mark.parametrize("name, vpp", [("gpipe", 1), ("zero_bubble", 2), ("interleaved", 3)])
def test_what_a_row_keeps_is_the_running_sum_and_ends_at_nothing(name, vpp):
    own, rows, found = by_ranks(parallelism__vpp=vpp, parallelism__schedule=name, training__recompute="full")
    for rank in (0, 7, 15):
        assert found[rank].row == rows[rank]
        kept = 0.0
        for action, during in zip(found[rank].row, found[rank].activations, strict=True):
            stage = own[action.stage]
            kept += stage.saved_bytes if action.letter == "F" else 0.0
            again = 0.0 if action.letter == "F" else max(layer.recomputed for layer, _ in stage.layers)
            loss = sum(layer.saved for layer, _ in stage.layers if layer.name == "head")
            # the loss is over when the block before it runs again
            assert during == pytest.approx(kept + again - (loss if again else 0.0), rel=1e-9)
            kept -= stage.saved_bytes if action.letter in "BW" else 0.0
        assert kept == pytest.approx(0, abs=1)


def test_logits_are_workspace_only_while_the_stage_of_the_loss_runs():
    rows = {"model__vocab": 512_000, "model__vocab_multiple": 128}
    _, _, found = by_ranks(parallelism__vpp=2, parallelism__schedule="interleaved", **rows)
    logits = 2048 * 512_000 / 8 * 2  # in bf16, beside the fp32 softmax that is kept
    for action, space in zip(found[15].row, found[15].workspace, strict=True):
        assert (space >= logits) == (action.stage == 31)
