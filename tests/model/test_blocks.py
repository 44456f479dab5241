"""Blocks of all kinds and mixers, and models as lists of them: parameters, FLOP and traffic against closed forms."""

import math

import pytest

from clustersim.config.yaml import parse
from clustersim.errors import ConfigError
from clustersim.model.kernel import Kernel, attention
from clustersim.model.operator import Collective
from clustersim.model.parameters import block as block_parameters
from clustersim.model.parameters import kinds, parameters
from clustersim.model.scans import delta_scan, state_space_scan
from clustersim.model.transformer import block
from clustersim.parallel.flops import attention_flop, linear_flop
from clustersim.parallel.load import build
from clustersim.parallel.stages import stages

PLAIN = """\
name: plain
model:
  layers: 8
  hidden: 512
  heads: 8
  ffn: 1024
  vocab: 1024
  norm: rmsnorm
  activation: swiglu
  positions: rotary
  bias: false
  tied_embeddings: false
training: {global_batch: 8, micro_batch: 2, seq: 256}
"""
MLA = {"q_lora_rank": 96, "kv_lora_rank": 64, "qk_head_dim": 32, "qk_pos_emb_head_dim": 16, "v_head_dim": 24}
EXPERTS = {"model.experts": 8, "model.topk": 2}
KINDS = {
    "plain": {},
    "grouped queries": {"model.kv_heads": 2, "model.head_dim": 32},
    "biases of queries, keys and values": {"model.qkv_bias": True},
    "biases": {"model.bias": True, "model.norm": "layernorm"},
    "norms of queries and keys": {"model.qk_norm": True, "model.kv_heads": 4},
    "squared ReLU": {"model.activation": "squared_relu"},
    "GeGLU and two norms": {"model.activation": "geglu", "model.norm_position": "both"},
    "latent attention": {"model.mla": MLA},
    "latent attention without a latent of queries": {"model.mla": {**MLA, "q_lora_rank": None}},
    "experts": EXPERTS,
    "experts that all tokens visit": {**EXPERTS, "model.shared_experts": 2, "model.shared_ffn": 256},
}

MAMBA = {"model.mamba": {"heads": 16, "head_dim": 64, "state": 32, "groups": 2, "chunk": 64}}
DELTA = {"heads": 8, "key_heads": 4, "key_dim": 32, "value_dim": 64}
MIXERS = {
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
EVERY = {**KINDS, **MIXERS}


def job(**overrides):
    return build(parse(PLAIN, "w.yaml"), overrides)


def kernels(layer, direction="forward"):
    steps = (step for op in layer.operators for step in getattr(op, direction))
    return [step for step in steps if isinstance(step, Kernel)]


@pytest.mark.parametrize("kind", EVERY)
def test_parameters_of_a_block_are_those_of_its_operators(kind):
    made = job(**EVERY[kind]).place(1, 1)
    layer = block(made.shard.with_model(kinds(made.model)[0]))
    assert sum(op.parameters for op in layer.operators) == block_parameters(made.model)
    assert len(set(map(id, kinds(made.model)))) == 1


@pytest.mark.parametrize("kind", EVERY)
def test_flop_of_a_block_are_those_of_its_products(kind):
    made = job(**EVERY[kind]).place(1, 1)
    layer = block(made.shard.with_model(kinds(made.model)[0]))
    microbatches, layers = made.microbatches, made.model.layers
    products = math.fsum(k.flop for k in kernels(layer) if k.kind in ("linear", "grouped_gemm", "bmm"))
    core = math.fsum(k.flop for k in kernels(layer) if k.kind == "flash_attention")
    closed = linear_flop(made) + attention_flop(made)
    assert microbatches * layers * (products + core) == pytest.approx(closed, rel=1e-12)
    if kind in KINDS:
        assert microbatches * layers * core == pytest.approx(attention_flop(made), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_backward_products_cost_twice_the_forward_ones(kind):
    made = job(**KINDS[kind]).place(1, 1)
    layer = block(made.shard.with_model(kinds(made.model)[0]))
    backward = [*kernels(layer, "backward_input"), *kernels(layer, "backward_weight")]
    one, two = (
        math.fsum(k.flop for k in part if k.kind in ("linear", "grouped_gemm")) for part in (kernels(layer), backward)
    )
    assert two == pytest.approx(2 * one, rel=1e-12)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("kind", EVERY)
def test_tensor_parallel_ranks_share_what_is_not_replicated(kind, sequence_parallel):
    split = {"parallelism.tp": 2, "parallelism.sequence_parallel": sequence_parallel, "parallelism.dp": 1}
    whole, made = job(**EVERY[kind]).place(1, 1), job(**EVERY[kind], **split).place(2, 2)
    own = block(made.shard.with_model(kinds(made.model)[0]))
    held = sum(2 * (op.parameters - op.replicated) + op.replicated for op in own.operators)
    assert held == block_parameters(whole.model)


def test_latent_attention_gathers_latents_under_sequence_parallelism():
    split = {"parallelism.tp": 4, "parallelism.sequence_parallel": True, "parallelism.dp": 1}
    made = job(**{"model.mla": MLA}, **split).place(4, 4)
    layer = block(made.shard.with_model(made.model))
    tokens = 2 * 256
    gathered = {
        op.name: s.size for op in layer.operators for s in op.forward if isinstance(s, Collective) and "gather" in s.op
    }
    wide = {"fc1": 512 * tokens * 2.0}
    assert gathered == {"q_up": 96 * tokens * 2.0, "kv_up": 64 * tokens * 2.0, "keys": 16 * tokens * 2.0, **wide}


def test_latent_attention_keeps_queries_keys_values_and_latents():
    made = job(**{"model.mla": MLA}).place(1, 1)
    tokens, z, heads = 2 * 256, 2, 8
    saved = {op.name: op.saved for op in block(made.shard.with_model(made.model)).operators}
    assert (saved["q_up"], saved["kv_up"], saved["kv_down"]) == (z * tokens * 96, z * tokens * 64, 0)
    assert saved["attention"] == z * tokens * heads * (2 * 48 + 24) + 4 * tokens * heads  # the core's statistics
    assert saved["projection"] == z * tokens * heads * 24


@pytest.mark.parametrize("window", [1, 64, 1000, 2048, 4096])
def test_a_window_costs_the_pairs_that_it_shows(window):
    one = attention("forward", "bf16", 1, 1, 1, 2048, 2048, 64, True, window=window)
    pairs = sum(min(i + 0.5, window) for i in range(2048))
    assert one.flop == pytest.approx(4 * 64 * pairs, rel=1e-3)
    assert one.bytes == attention("forward", "bf16", 1, 1, 1, 2048, 2048, 64, True).bytes


def test_a_window_as_long_as_the_sequence_is_none():
    args = ("backward", "bf16", 2, 8, 2, 2048, 2048, 128, True)
    assert attention(*args, window=2048) == attention(*args, window=5000) == attention(*args)


def test_queries_and_values_of_different_widths_cost_their_mean():
    wide, narrow = (attention("forward", "bf16", 2, 8, 8, 512, 512, d, True) for d in (192, 128))
    both = attention("forward", "bf16", 2, 8, 8, 512, 512, 192, True, value_dim=128)
    assert both.flop == (wide.flop + narrow.flop) / 2
    assert both.bytes == (wide.bytes + narrow.bytes) / 2


def pattern(blocks, **overrides):
    return job(**{"model.blocks": blocks}, **overrides)


def test_blocks_repeat_until_all_layers_have_one():
    made = pattern([{"count": 2, "window": 64}, {}], **{"model.layers": 8})
    assert [kind.window for kind in kinds(made.model)] == [64, 64, 0, 64, 64, 0, 64, 64]
    assert len(set(map(id, kinds(made.model)))) == 2


def test_dense_layers_are_a_short_word_for_blocks():
    word = job(**EXPERTS, **{"model.dense_layers": 3, "model.dense_ffn": 2048}).place(1, 1)
    blocks = [{"count": 3, "experts": 0, "ffn": 2048}, {"count": 5}]
    long = pattern(blocks, **EXPERTS).place(1, 1)
    assert stages(word)[0].backward == stages(long)[0].backward
    assert parameters(word.model) == parameters(long.model)


def test_flop_of_different_blocks_are_those_of_their_kernels():
    made = pattern(
        [{"experts": 0, "ffn": 2048, "window": 32}, {"kv_heads": 2}], **EXPERTS, **{"model.mtp_layers": 2}
    ).place(1, 1)
    [stage] = stages(made)
    products = math.fsum(
        s.flop for s in stage.forward if isinstance(s, Kernel) and s.kind in ("linear", "grouped_gemm")
    )
    logits = 3 * 2.0 * 512 * 512 * 1024
    assert made.microbatches * (products - logits) == pytest.approx(linear_flop(made), rel=1e-12)
    assert stage.parameters == parameters(made.model, mtp=True)


def test_a_further_prediction_holds_the_table_once_more_on_the_last_stage():
    made = job(**{"model.mtp_layers": 1, "parallelism.pp": 4, "parallelism.dp": 1}).place(4, 4)
    found, table = stages(made), 1024 * 512
    assert sum(stage.parameters for stage in found) == parameters(made.model, mtp=True) + table
    assert [stage.shared for stage in found] == [table, 0, 0, table]


LAYOUT = {"model.mtp_layers": 1, "parallelism.pp": 4, "parallelism.dp": 1}


def test_a_layout_says_what_each_stage_has():
    made = job(**LAYOUT, **{"parallelism.layout": "Et*3|t*4|tm|L"}).place(4, 4)
    names = [[(layer.name, count) for layer, count in stage.layers] for stage in stages(made)]
    last = [("head", 1), ("mtp_head", 1)]
    assert names == [[("embedding", 1), ("block", 3)], [("block", 4)], [("block", 1), ("mtp", 1)], last]
    hidden = 2 * 2 * 256 * 512
    assert [stage.output_bytes for stage in stages(made)] == [hidden, hidden, 2 * hidden, 0]
    assert [stage.input_bytes for stage in stages(made)] == [0, hidden, hidden, 2 * hidden]


def test_ends_may_have_fewer_blocks():
    made = job(
        **{"parallelism.pp": 4, "parallelism.dp": 1, "parallelism.first_layers": 1, "parallelism.last_layers": 1}
    )
    counts = [sum(n for layer, n in stage.layers if layer.name == "block") for stage in stages(made.place(4, 4))]
    assert counts == [1, 3, 3, 1]


BROKEN = {
    "no stages": ({"parallelism.layout": "tttt"}, "parallelism.layout: 'tttt' has 1 stages, not pp 4 × vpp 1"),
    "no embedding": ({"parallelism.layout": "t|t*6|t|L"}, "does not begin with its one embedding; begin with E"),
    "too few blocks": ({"parallelism.layout": "Et|t|t|L"}, "has 3 blocks and the model 8; make them equal"),
    "a letter": ({"parallelism.layout": "Ex|t|t|L"}, "has 'x'; write E (embedding), t (block)"),
    "an empty stage": ({"parallelism.layout": "Et*8||L|"}, "has a stage without a layer; give it one"),
    "a long one": ({"parallelism.layout": "Et*999999999|t|t|L"}, "is too long; name at most 100000 layers"),
    "chunks": (
        {"parallelism.layout": "Et|t|t|t|t|t|t|tL", "parallelism.vpp": 1},
        "has 8 stages, not pp 4 × vpp 1; write vpp 2",
    ),
    "two ways": (
        {"parallelism.layout": "Et*5|t|t|tL", "parallelism.last_layers": 1},
        "parallelism.last_layers: and parallelism.layout exclude each other; keep one of them",
    ),
    "ends that leave nothing": (
        {"parallelism.first_layers": 5, "parallelism.last_layers": 4},
        "5 and 4 of 8 layers leave -1 for 2 pipeline ranks of 1 chunks; give other numbers",
    ),
    "a window that looks ahead": ({"model.window": 64, "model.causal": False}, "a window looks back; leave it out"),
    "experts of a block": (
        {"model.blocks": [{"experts": 4}]},
        "a block has experts and the model none; set model.experts",
    ),
    "heads of latent attention": ({"model.mla": MLA, "model.kv_heads": 4}, "exclude each other; leave it out"),
    "an unknown key of a block": ({"model.blocks": [{"width": 4}]}, "unknown key 'width'"),
    "heads of a block": ({"model.blocks": [{"heads": 7}]}, "model.blocks.0.heads: 7 does not divide hidden 512"),
    "top-k of a block": ({"model.blocks": [{"topk": 2}]}, "has topk or shared_experts and no experts; leave them out"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_contradicts_gets_one_sentence(case):
    overrides, message = BROKEN[case]
    with pytest.raises(ConfigError) as caught:
        job(**{"parallelism.pp": 4, "parallelism.dp": 1, **overrides})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tp", [1, 4])
def test_a_compiled_loss_moves_less_than_a_plain_one_and_more_than_one_in_place(tp):
    """`native` has two all-reduces of three, all of them over tensor-parallel ranks."""

    def loss(kind):
        of = {"parallelism.tp": tp, "training.cross_entropy": kind}
        head = stages(job(**of))[-1].layers[-1][0]
        [last] = [one for one in head.operators if one.name == "cross_entropy"]
        return (*last.forward, *last.backward_input)

    moved = [
        sum(one.bytes for one in loss(kind) if isinstance(one, Kernel)) for kind in ("fused", "native", "parallel")
    ]
    assert moved == sorted(moved)
    calls = [sum(isinstance(one, Collective) for one in loss(kind)) for kind in ("native", "parallel")]
    assert calls == ([2, 3] if tp > 1 else [0, 0])


def test_gradients_of_a_scan_take_twice_its_forward_products():
    """Backward without what runs again; the inverse of a triangle is a third of a product and its gradient two products."""
    made = job(**MIXERS["mamba2"]).model.mamba
    scan = state_space_scan(made, made.heads, made.groups)
    forward, backward = (sum(p.copies * p.m * p.n * p.k for p in some) for some in (scan.forward, scan.backward[2:]))
    assert backward == 2 * forward
    delta = job(**MIXERS["delta"]).model.delta
    scan, cube = delta_scan(delta, delta.heads), delta.heads * delta.chunk**3
    forward, backward = (sum(p.copies * p.m * p.n * p.k for p in some) for some in (scan.forward, scan.backward[3:]))
    assert backward - 2 * cube == pytest.approx(2 * (forward - cube / 6), rel=0.01)


def test_mamba2_has_the_parameters_of_its_paper():
    """Mamba-2 2.7B: 64 blocks of width 2560, state 128, 80 heads of 64 (arXiv 2405.21060, table 9 and its released weights)."""
    shapes = {"heads": 80, "head_dim": 64, "state": 128}
    made = job(**{**MIXERS["mamba2 alone"], "model.hidden": 2560, "model.mamba": shapes, "model.heads": 8})
    inner, channels = 5120, 5120 + 2 * 128
    own = 2560 * (inner + channels + 80) + channels * 5 + 3 * 80 + inner + inner * 2560
    assert block_parameters(made.model) == own + 2560


def test_a_scan_grows_with_the_tokens_and_attention_with_their_square():
    for kind, factor in (("mamba2", 2), ("delta", 2), ("short convolution", 2)):
        short, long = (linear_flop(job(**MIXERS[kind], **{"training.seq": seq})) for seq in (256, 512))
        assert long == factor * short
        assert attention_flop(job(**MIXERS[kind])) == 0
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
        (
            {**MIXERS["delta"], "parallelism.tp": 8},
            "8 does not divide the 4 heads or channels of mixer delta; lower it",
        ),
        ({**MIXERS["mamba2"], "parallelism.cp": 2}, "2 cuts the sequence of mixer mamba2, not supported; write 1"),
        (
            {"model.indexer": {"heads": 4, "dim": 32}},
            "model.indexer: needs model.mla, model.window as the number of keys",
        ),
    ],
)
def test_what_does_not_fit_is_said(changes, sentence):
    with pytest.raises(ConfigError, match=sentence.replace(".", r"\.")):
        job(**changes)


@pytest.mark.parametrize("kind", MIXERS)
def test_norms_and_mlps_can_run_again_in_every_kind_of_block(kind):
    """At least the input of the linears that read the first norm is dropped, and made again."""
    again = {"training.recompute": "selective", "training.recompute_modules": ["layernorm", "mlp"]}
    found = stages(job(**MIXERS[kind], **again).place(1, 1))[0]
    [layer] = [layer for layer, _ in found.layers if layer.name == "block"]
    assert math.fsum(rerun.dropped for rerun in layer.recomputations) >= 2 * 2 * 256 * 512
