"""Graphs of whole models: counts in closed form, gradients as autograd records them, fusion, and time on a GPU."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from math import prod

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.convert.hugging_face import Config
from clustersim.errors import InputError
from clustersim.hardware import gpus
from clustersim.predictors.load import get
from clustersim.single_gpu import exported, loading
from clustersim.single_gpu.exported import price
from clustersim.single_gpu.prices import Tensor
from clustersim.single_gpu.total import fuse, total

GPT2_LARGE = {"n_embd": 1280, "n_head": 20, "n_layer": 36, "n_positions": 1024, "vocab_size": 50257}
BERT_LARGE = {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 24, "vocab_size": 30522}
BERT_LARGE |= {"intermediate_size": 4096, "max_position_embeddings": 512}
OPT_1_3B = {"hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": 24, "vocab_size": 50272}
OPT_1_3B |= {"ffn_dim": 8192, "max_position_embeddings": 2048}


def config(kind, **keys):
    return Config("config.json", {"model_type": kind, **keys})


def tensor(shape, dtype):
    return Tensor(shape, tuple(prod(shape[i + 1 :]) for i in range(len(shape))), dtype)


# Published counts of Hugging Face checkpoints: gpt2-large, bert-large-uncased with its language head but without the two
# vectors of segments, facebook/opt-1.3b.
@pytest.mark.parametrize(
    ("kind", "keys", "parameters"),
    [("gpt2", GPT2_LARGE, 774_030_080), ("bert", BERT_LARGE, 335_174_458 - 2 * 1024), ("opt", OPT_1_3B, 1_315_758_080)],
)
def test_parameters_are_those_of_the_published_checkpoints(kind, keys, parameters):
    assert loading.build(config(kind, **keys), 1, 8).parameters == parameters


shapes = st.tuples(*(st.integers(1, 4) for _ in range(5)))


@settings(max_examples=examples(30), deadline=None)
@given(shapes, st.booleans())
def test_flop_of_a_gpt_are_the_closed_form(sizes, training):
    layers, heads, dim, batch, seq = sizes
    hidden, vocab, seq = 8 * heads * dim, 97, 8 * seq
    keys = {"n_embd": hidden, "n_head": heads, "n_layer": layers, "n_positions": seq, "vocab_size": vocab}
    graph = loading.build(config("gpt2", **keys), batch, seq, "fp32", training)
    tokens = batch * seq
    forward = 2 * tokens * (12 * layers * hidden**2 + hidden * vocab) + 4 * tokens * seq * hidden * layers
    assert graph.flop == forward * (3 if training else 1)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("kind", "keys"), [("bert", BERT_LARGE), ("opt", OPT_1_3B)])
def test_flop_of_bert_and_opt_are_the_closed_form(kind, keys, training):
    hidden, layers, vocab = keys["hidden_size"], keys["num_hidden_layers"], keys["vocab_size"]
    graph = loading.build(config(kind, **keys), 2, 128, "fp32", training)
    tokens, extra = 256, hidden**2 if kind == "bert" else 0  # the transform of BERT's language head
    forward = 2 * tokens * (12 * layers * hidden**2 + hidden * vocab + extra) + 4 * tokens * 128 * hidden * layers
    assert graph.flop == forward * (3 if training else 1)


@pytest.mark.parametrize("training", [False, True])
def test_flop_of_a_mixture_of_experts_are_the_closed_form(training):
    hidden, ffn, inner, vocab, seq, capacity, experts = 64, 256, 4 * 32, 512, 96, 16, 4
    keys = {"d_model": hidden, "d_ff": ffn, "d_kv": 32, "num_heads": 4, "vocab_size": vocab}
    keys |= {"num_layers": 4, "num_decoder_layers": 2, "num_experts": experts, "expert_capacity": capacity}
    graph = loading.build(config("switch_transformers", **keys), 1, seq, "fp32", training)
    attentions, dense, sparse = 4 + 2 + 2, 3, 3
    forward = attentions * (8 * seq * hidden * inner + 4 * seq**2 * inner) + dense * 4 * seq * hidden * ffn
    forward += sparse * (experts * 4 * capacity * hidden * ffn + 2 * seq * hidden * experts) + 2 * seq * hidden * vocab
    assert graph.flop == (3 * forward if training else forward)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("training", [False, True])
def test_blocks_of_a_gpt_launch_what_pytorch_does(batch, training):
    """Products one by one, some transposed; the bytes of norms; of softmaxes but for a token less in the loss; and of all other
    kernels but for masks and embeddings, and for the order of heads, which a batch of one has already."""
    torch = pytest.importorskip("torch")
    from models import gpt

    keys = {
        "n_embd": gpt.HIDDEN,
        "n_head": gpt.HEADS,
        "n_layer": gpt.LAYERS,
        "vocab_size": gpt.VOCAB,
        "n_positions": 32,
    }
    with torch.device("meta"):
        module, inputs = gpt.small(batch, 32)
    traced = exported.build("gpt", module, inputs, training=training)
    ours = loading.build(config("gpt2", **keys), batch, 32, "fp32", training)
    assert traced.unknown == ()
    assert traced.parameters == ours.parameters
    assert products(traced) == products(ours)
    theirs, blocks = moved(traced), moved(ours)
    assert blocks["layernorm"] == theirs["layernorm"]
    assert blocks["softmax"] == pytest.approx(theirs["softmax"], rel=0.02)
    assert blocks["vector"] == pytest.approx(theirs["vector"], rel=0.03 if batch > 1 else 0.07)


def products(graph):
    """Return how often each product is launched, whichever of its factors is transposed."""
    return Counter((k.kind, k.batch, *sorted((k.m, k.n, k.k))) for k in graph.kernels if k.k)


def test_a_large_mask_is_read_for_every_head_and_a_small_one_once():
    scores, small, large = (tensor(s, "fp32") for s in ((8, 16, 64, 64), (8, 1, 1, 64), (8, 1, 2048, 2048)))
    [once] = price("add", [scores, small], [scores])
    assert once.bytes == 2 * scores.bytes + small.bytes
    wide = tensor((8, 16, 2048, 2048), "fp32")
    [each] = price("add", [wide, large], [wide])
    assert each.bytes == 3 * wide.bytes


def moved(graph):
    """Return the bytes of forward and backward passes by kind, element-wise kernels and copies together."""
    found = Counter()
    for node in graph.nodes:
        for kernel in node.kernels if node.phase != "accumulate" else ():
            found["vector" if kernel.kind in ("elementwise", "memory") else kernel.kind] += kernel.bytes
    return found


def test_an_unknown_operator_moves_its_operands_and_is_named():
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.cross(x, x)

    graph = exported.build("cross", Module(), (torch.empty(5, 3),))
    assert graph.unknown == ("linalg_cross",)
    assert [k.bytes for k in graph.kernels] == [3 * 60]


def test_fused_attention_of_pytorch_is_one_kernel():
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.x = torch.nn.Parameter(torch.empty(2, 4, 128, 64))

        def forward(self):
            return torch.nn.functional.scaled_dot_product_attention(self.x, self.x, self.x, is_causal=True)

    for dtype in ("fp32", "bf16"):
        with torch.device("meta"):
            graph = exported.build("attention", Module(), (), dtype, training=True)
        found = [k for k in graph.kernels if k.kind == "flash_attention"]
        assert [(k.op, k.dtype, k.heads, k.causal) for k in found] == [
            ("forward", dtype, 4, True),
            ("backward", dtype, 4, True),
        ]
        assert found[0].flop == 2 * 2 * 4 * 128 * 128 * 64


def test_the_layers_of_pytorch_use_fused_attention_and_dropout():
    torch = pytest.importorskip("torch")

    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, device="meta")
    graph = exported.build("layer", layer, (torch.empty(2, 32, 64),), training=True)
    assert graph.unknown == ()
    assert [k.op for k in graph.kernels if k.kind == "flash_attention"] == ["forward", "backward"]
    assert sum(k.op == "dropout" for k in graph.kernels) == 3
    assert torch.nn.functional.dropout.__module__ == "torch.nn.functional"


def test_shared_key_heads_and_inputs_by_name():
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):
        def forward(self, query, shared):
            return torch.nn.functional.scaled_dot_product_attention(query, shared, shared, enable_gqa=True)

    inputs = {"shared": torch.empty(2, 2, 32, 16), "query": torch.empty(2, 8, 32, 16)}
    [wide] = [k for k in exported.build("gqa", Module(), inputs).kernels if k.kind == "flash_attention"]
    [narrow] = [k for k in exported.build("gqa", Module(), inputs, "bf16").kernels if k.kind == "flash_attention"]
    assert (wide.heads, wide.kv_heads, narrow.heads, narrow.kv_heads) == (8, 8, 8, 2)


@pytest.mark.parametrize("groups", [1, 4])
def test_a_convolution_counts_its_multiplications(groups):
    torch = pytest.importorskip("torch")

    layer = torch.nn.Conv2d(16, 32, 3, padding=1, groups=groups, bias=False, device="meta").requires_grad_(True)
    graph = exported.build("layer", layer, (torch.empty(2, 16, 8, 8),), training=True)
    assert graph.flop == 2 * (2 * 2 * 8 * 8 * 32 * 16 // groups * 9)  # forward and the gradient of the filters


def small(kind="gpt2", batch=2, seq=64, training=False):
    keys = {"n_embd": 256, "n_head": 4, "n_layer": 3, "n_positions": seq, "vocab_size": 512}
    return loading.build(config(kind, **keys), batch, seq, "fp32", training)


def test_fusion_keeps_products_and_moves_no_byte_more():
    eagerly = small()
    fused = fuse(eagerly)
    assert fused.flop == eagerly.flop
    assert len(fused.kernels) < 0.6 * len(eagerly.kernels)
    assert sum(k.bytes for k in fused.kernels) < sum(k.bytes for k in eagerly.kernels)


def test_fused_attention_scores_are_read_and_written_once():
    scores = 4.0 * 2 * 4 * 64 * 64
    [kernel] = {k for k in fuse(small()).kernels if k.kind == "softmax"}
    assert kernel.bytes == 2 * scores


def test_a_fused_norm_reads_both_branches_and_writes_sum_and_norm():
    hidden = 4.0 * 2 * 64 * 256
    found = [k for k in fuse(small()).kernels if k.kind == "layernorm"]
    weights = 2 * 4 * 256
    assert found[1].bytes == pytest.approx(4 * hidden, rel=0.001, abs=weights)
    assert found[-1].bytes == pytest.approx(3 * hidden, rel=0.001, abs=weights)  # nothing reads the sum after the last


def test_gelu_fuses_to_one_kernel_that_reads_and_writes_once():
    wide = 4.0 * 2 * 64 * 1024
    assert [k.bytes for k in fuse(small()).kernels if k.kind == "elementwise"] == [2 * wide] * 3


def test_a_model_takes_the_sum_of_its_kernels_where_they_are_large():
    graph = loading.build(config("gpt2", **{**GPT2_LARGE, "n_layer": 2}), 8, 1024)
    predictor, gpu = get("roofline"), gpus.load("h100")
    found = total(graph, predictor, gpu)
    alone = sum(predictor.predict(graph.kernels, gpu))
    assert found.seconds == pytest.approx(alone, rel=0.02)
    assert found.seconds >= alone


def test_a_model_takes_the_calls_of_the_cpu_where_kernels_are_small():
    graph, predictor, gpu = small(batch=1, seq=8), get("roofline"), gpus.load("h100")
    found = total(graph, predictor, gpu)
    assert found.seconds == pytest.approx(sum(part.cpu for part in found.parts), rel=0.05)
    assert total(graph, predictor, gpu, eager=False).seconds < found.seconds / 5


@pytest.mark.parametrize(("layers", "least"), [(1, 3), (4, 3)])
def test_training_takes_longer_than_inference(layers, least):
    keys = {**GPT2_LARGE, "n_layer": layers}
    inference, training = (loading.build(config("gpt2", **keys), 2, 512, "fp32", mode) for mode in (False, True))
    predictor, gpu = get("roofline"), gpus.load("a100")
    assert total(training, predictor, gpu).seconds > least * total(inference, predictor, gpu).seconds


KNOWN = "did you mean 'gelu_new'? known: gelu, gelu_fast, gelu_new, gelu_pytorch_tanh, relu, relu2"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (None, ": lacks n_embd; a config.json of model_type 'gpt2' has it"),
        ({"n_head": 7}, ":1:1: n_head: 7 does not divide hidden 1280; use a divisor of it or set model.head_dim"),
        ({"n_layer": 0}, ": n_layer is 0; it must be a whole number of at least 1"),
        ({"attn_pdrop": 1}, ": attn_pdrop is 1; a rate is a number from 0 to below 1"),
        (
            {"activation_function": "gelu_mew"},
            f": activation_function 'gelu_mew' is not supported; {KNOWN}",
        ),
        ({"n_layer": 10**9}, ": n_layer is 1000000000; at most 10000 layers are built"),
        ({"architectures": 3}, ": architectures is 3; it is a list with one name"),
        (
            {"architectures": ["BertModel"]},
            ": has no loss to train on; name one with a head in architectures, or predict inference",
        ),
    ],
)
def test_a_config_that_makes_no_sense_is_one_sentence(keys, message):
    kind, whole = ("bert", BERT_LARGE) if keys and "architectures" in keys else ("gpt2", GPT2_LARGE)
    with pytest.raises(InputError, match=f"^config.json{re.escape(message)}$"):
        loading.build(config(kind, **({} if keys is None else whole | keys)), 1, 8, training=True)


def test_strided_tensors_count_their_elements_once():
    one = Tensor((4, 6), (0, 1), "fp32")
    assert (one.elements, one.bytes) == (24, 96)
    [kernel] = price("clone", [one], [tensor((4, 6), "fp32")])
    assert kernel.bytes == 24 + 96
    assert replace(small()).parameters == small().parameters


def test_a_classifier_ends_with_its_last_norm_and_has_no_logits():
    words, classes = (
        loading.build(config("gpt2", **GPT2_LARGE, architectures=[f"GPT2{end}"]), 1, 64)
        for end in ("LMHeadModel", "ForSequenceClassification")
    )
    assert words.flop - classes.flop == 2 * 64 * 1280 * 50257
    assert words.parameters == classes.parameters  # the table of words is the embedding's
    assert classes.nodes[-1].kernels[0].kind == "layernorm"


def test_a_switch_transformer_launches_its_experts_one_by_one():
    keys = {
        "d_model": 64,
        "d_ff": 256,
        "d_kv": 16,
        "num_heads": 4,
        "num_layers": 2,
        "num_experts": 8,
        "vocab_size": 512,
    }
    graph = loading.build(config("switch_transformers", **keys, expert_capacity=32), 1, 128)
    first = [k for k in graph.kernels if (k.kind, k.m, k.n, k.k) == ("linear", 32, 256, 64)]
    assert len(first) == 2 * 8  # every second block of encoder and decoder
