"""State spaces, gated delta nets, short convolutions and sparse attention: parameters, FLOP and sharding in closed form."""

import math

import pytest
from test_blocks import MLA, job, kernels, pattern

from clustersim.errors import ConfigError
from clustersim.model.parameters import block as block_parameters
from clustersim.model.parameters import kinds
from clustersim.model.scans import delta_scan, state_space_scan
from clustersim.model.transformer import block
from clustersim.parallel.flops import attention_flop, linear_flop
from clustersim.parallel.stages import stages

MAMBA = {"model.mamba": {"heads": 16, "head_dim": 64, "state": 32, "groups": 2, "chunk": 64}}
DELTA = {"heads": 8, "key_heads": 4, "key_dim": 32, "value_dim": 64}
KINDS = {
    "mamba2": {"model.mixer": "mamba2", **MAMBA},
    "mamba2 alone": {"model.mixer": "mamba2", "model.feed_forward": False, **MAMBA},
    "attention beside mamba2": {"model.mixer": "attention+mamba2", **MAMBA},
    "delta": {"model.mixer": "delta", "model.delta": DELTA},
    "delta with gates by channel": {"model.mixer": "delta", "model.delta": {**DELTA, "channel_gates": True}},
    "short convolution": {"model.mixer": "conv", "model.conv": 3},
    "an MLP alone": {"model.mixer": "none"},
    "gated attention": {"model.output_gate": True, "model.kv_heads": 2},
    "sparse attention": {"model.mla": MLA, "model.window": 64, "model.indexer": {"heads": 4, "dim": 32}},
}


def layer_of(made):
    return block(made.shard.of(kinds(made.model)[0]))


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_of_a_block_are_those_of_its_operators_on_one_rank_and_on_two(kind):
    whole = job(**KINDS[kind]).place(1, 1)
    assert sum(op.parameters for op in layer_of(whole).operators) == block_parameters(whole.model)
    split = layer_of(job(**KINDS[kind], **{"parallelism.tp": 2, "parallelism.dp": 1}).place(2, 2))
    held = sum(2 * (op.parameters - op.replicated) + op.replicated for op in split.operators)
    assert held == block_parameters(whole.model)


@pytest.mark.parametrize("kind", KINDS)
def test_flop_of_a_block_are_those_of_its_forward_kernels(kind):
    made = job(**KINDS[kind]).place(1, 1)
    runs = [k for op in layer_of(made).operators for k in op.forward if k in kernels(layer_of(made))]
    found = math.fsum(k.flop for k in runs if k.kind in ("linear", "bmm", "flash_attention"))
    closed = linear_flop(made) + attention_flop(made)
    assert made.microbatches * made.model.layers * found == pytest.approx(closed, rel=1e-12)


def test_gradients_of_a_scan_take_twice_its_forward_products():
    """Backward without what runs again; the inverse of a triangle is a third of a product and its gradient two products."""
    made = job(**KINDS["mamba2"]).model.mamba
    scan = state_space_scan(made, made.heads, made.groups)
    forward, backward = (sum(p.copies * p.m * p.n * p.k for p in some) for some in (scan.forward, scan.backward[2:]))
    assert backward == 2 * forward
    delta = job(**KINDS["delta"]).model.delta
    scan, cube = delta_scan(delta, delta.heads), delta.heads * delta.chunk**3
    forward, backward = (sum(p.copies * p.m * p.n * p.k for p in some) for some in (scan.forward, scan.backward[3:]))
    assert backward - 2 * cube == pytest.approx(2 * (forward - cube / 6), rel=0.01)


def test_mamba2_has_the_parameters_of_its_paper():
    """Mamba-2 2.7B: 64 blocks of width 2560, state 128, 80 heads of 64 (arXiv 2405.21060, table 9 and its released weights)."""
    shapes = {"heads": 80, "head_dim": 64, "state": 128}
    made = job(**{**KINDS["mamba2 alone"], "model.hidden": 2560, "model.mamba": shapes, "model.heads": 8})
    inner, channels = 5120, 5120 + 2 * 128
    own = 2560 * (inner + channels + 80) + channels * 5 + 3 * 80 + inner + inner * 2560
    assert block_parameters(made.model) == own + 2560


def test_a_scan_grows_with_the_tokens_and_attention_with_their_square():
    for kind, factor in (("mamba2", 2), ("delta", 2), ("short convolution", 2)):
        short, long = (linear_flop(job(**KINDS[kind], **{"training.seq": seq})) for seq in (256, 512))
        assert long == factor * short
        assert attention_flop(job(**KINDS[kind])) == 0
    short, long = (attention_flop(job(**{"training.seq": seq})) for seq in (256, 512))
    assert long == 4 * short


def test_hybrids_mix_in_one_model():
    blocks = [{"mixer": "mamba2"}, {"mixer": "none"}, {"feed_forward": False}]
    made = pattern(blocks, **MAMBA)
    assert [kind.mixer for kind in kinds(made.model)[:4]] == ["mamba2", "none", "attention", "mamba2"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model.mixer": "mamba2"}, "model.mixer: mamba2 needs its shapes; set model.mamba"),
        ({**KINDS["delta"], "parallelism.tp": 8}, "8 does not divide the 4 heads or channels of mixer delta; lower it"),
        ({**KINDS["mamba2"], "parallelism.cp": 2}, "2 cuts the sequence of mixer mamba2, not supported; write 1"),
        (
            {"model.indexer": {"heads": 4, "dim": 32}},
            "model.indexer: needs model.mla, model.window as the number of keys",
        ),
    ],
)
def test_what_does_not_fit_is_said(changes, sentence):
    with pytest.raises(ConfigError, match=sentence.replace(".", r"\.")):
        job(**changes)


@pytest.mark.parametrize("kind", KINDS)
def test_norms_and_mlps_can_run_again_in_every_kind_of_block(kind):
    """At least the input of the linears that read the first norm is dropped, and made again."""
    again = {"training.recompute": "selective", "training.recompute_modules": ["layernorm", "mlp"]}
    found = stages(job(**KINDS[kind], **again).place(1, 1))[0]
    [layer] = [layer for layer, _ in found.layers if layer.name == "block"]
    assert math.fsum(rerun.dropped for rerun in layer.reruns) >= 2 * 2 * 256 * 512
