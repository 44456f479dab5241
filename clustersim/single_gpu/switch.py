"""Switch Transformers as transformers runs them (modeling_switch_transformers.py, 4.31 to 4.35): T5 with one expert a token.

The router keeps at most `expert_capacity` tokens an expert. Which tokens it picks depends on values; what is counted is
a full expert, as NeuSight's authors traced it: `expert_capacity` rows each. Router probabilities are taken as given: no
gradient flows back to the router.
"""

from __future__ import annotations

from clustersim.convert.hugging_face import Config
from clustersim.single_gpu import eager as f
from clustersim.single_gpu.pieces import rms_norm, tokens
from clustersim.single_gpu.tape import Tape, Value
from clustersim.single_gpu.tensor import tensor

RATE = "dropout_rate"


def build(t: Tape, config: Config, batch: int, seq: int) -> None:
    """Record SwitchTransformersForConditionalGeneration on `seq` tokens in and out, and in training its loss."""
    t.place = "shared"
    table = t.weight(config.count("vocab_size"), config.count("d_model"))
    memory = _stack(t, config, f.embedding(t, table, tokens(t, batch, seq)), None)
    x = _stack(t, config, f.embedding(t, table, tokens(t, batch, seq)), memory)
    t.place = "lm_head"
    logits = f.linear(t, f.scale(t, "mul", x), config.count("vocab_size"), bias=False, weight=table)
    if t.training:
        t.place = "loss"
        t.backward(f.cross_entropy(t, f.view(t, logits, (batch * seq, logits.shape[2]))))


def _stack(t: Tape, config: Config, x: Value, memory: Value | None) -> Value:
    """Return the encoder's output, or with its `memory` the decoder's."""
    side = "decoder" if memory else "encoder"
    layers = config.layers("num_decoder_layers" if memory else "num_layers")
    step = config.count(f"{side}_sparse_step", default=2)
    t.place = side
    bias = _position_bias(t, config, x)
    mask = t.data((x.shape[0], 1, 1, x.shape[1]), t.dtype)
    x = f.dropout(t, x, config.rate(RATE, 0.1))
    for layer in range(layers):
        t.place = f"{side}.block.{layer}.self_attention"
        x = _attention(t, config, x, None, bias)
        if memory:
            t.place = f"{side}.block.{layer}.cross_attention"
            x = _attention(t, config, x, memory, mask)
        t.place = f"{side}.block.{layer}.mlp"
        x = _mlp(t, config, x, sparse=layer % step == step - 1)
    t.place = f"{side}.final_layer_norm"
    return f.dropout(t, rms_norm(t, x), config.rate(RATE, 0.1))


def _position_bias(t: Tape, config: Config, x: Value) -> Value:
    """Return the learned bias of relative positions with the mask, made once for all layers of a stack."""
    batch, seq, _ = x.shape
    heads = config.count("num_heads")
    table = t.weight(config.count("relative_attention_num_buckets", default=32), heads)
    found = f.permute(t, f.embedding(t, table, tokens(t, seq, seq)), 2, 0, 1)
    whole = f.view(t, found, (1, heads, seq, seq))
    mask = t.data((batch, 1, seq, seq), t.dtype)
    return f.repeat_add(t, whole, mask, batch)


def _attention(t: Tape, config: Config, x: Value, memory: Value | None, bias: Value) -> Value:
    batch, seq, hidden = x.shape
    heads, dim = config.count("num_heads"), config.count("d_kv")
    y = rms_norm(t, x)
    source = memory or y
    shape = (batch, seq, heads, dim)
    q, k, v = (
        f.permute(t, f.view(t, f.linear(t, one, heads * dim, bias=False), shape), 0, 2, 1, 3)
        for one in (y, source, source)
    )
    scores = f.add(t, f.matmul(t, q, f.swap(t, k)), bias)
    chances = f.dropout(t, f.softmax(t, scores), config.rate(RATE, 0.1))
    y = f.contiguous(t, f.permute(t, f.matmul(t, chances, v), 0, 2, 1, 3))
    y = f.linear(t, f.view(t, y, (batch, seq, heads * dim)), hidden, bias=False)
    return f.add(t, x, f.dropout(t, y, config.rate(RATE, 0.1)))


def _mlp(t: Tape, config: Config, x: Value, sparse: bool) -> Value:
    y = rms_norm(t, x)
    y = _experts(t, config, y) if sparse else _feed_forward(t, config, y)
    return f.add(t, x, f.dropout(t, y, config.rate(RATE, 0.1)))


def _feed_forward(t: Tape, config: Config, x: Value) -> Value:
    y = f.unary(t, "relu", f.linear(t, x, config.count("d_ff"), bias=False), "threshold_backward")
    return f.linear(t, f.dropout(t, y, config.rate(RATE, 0.1)), x.shape[-1], bias=False)


def _experts(t: Tape, config: Config, x: Value) -> Value:
    """Return router · experts: each gathers its rows, runs, and scatters them into a copy of the input."""
    experts = config.count("num_experts")
    rows = min(config.count("expert_capacity", default=64), x.shape[0] * x.shape[1])
    chances = f.softmax(t, f.linear(t, x, experts, bias=False))
    small = chances.tensor
    for op in ("argmax", "one_hot", "cumsum", "le", "mul", "max"):
        t.call(op, (chances,), small)
    y = t.call("clone", (x,), x.tensor, lambda g: ((x, g),))
    for _ in range(experts):
        y = f.put(t, y, _feed_forward(t, config, f.pick(t, x, rows)))
    return f.mul(t, y, t.value(tensor((*x.shape[:2], 1), t.dtype), chances.node, False))
