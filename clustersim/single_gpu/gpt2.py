"""GPT-2 as transformers runs it with eager attention (modeling_gpt2.py, 4.31 to 4.35): also GPT-3 by its shapes."""

from __future__ import annotations

from clustersim.convert.hugging_face import Config
from clustersim.single_gpu import eager as f
from clustersim.single_gpu.pieces import activation, next_token_loss, tokens
from clustersim.single_gpu.tape import Tape, Value

ACTIVATIONS = ("gelu_new", "gelu", "relu")


def build(t: Tape, config: Config, batch: int, seq: int) -> None:
    """Record GPT2LMHeadModel: forward, and with a tape in training its loss too."""
    hidden, vocab = config.count("n_embd"), config.count("vocab_size")
    drop = {name: config.rate(name, 0.1) for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop")}
    t.place = "transformer.embedding"
    table = t.weight(vocab, hidden)
    positions = t.weight(config.count("n_positions", "n_ctx", default=seq), hidden)
    x = f.add(t, f.embedding(t, table, tokens(t, batch, seq)), f.embedding(t, positions, tokens(t, 1, seq)))
    x = f.dropout(t, x, drop["embd_pdrop"])
    for layer in range(config.layers("n_layer")):
        x = _block(t, x, config, f"transformer.h.{layer}", drop)
    t.place = "transformer.ln_f"
    x = f.layer_norm(t, x)
    t.place = "lm_head"
    next_token_loss(t, f.linear(t, x, vocab, bias=False, weight=table))


def _block(t: Tape, x: Value, config: Config, place: str, drop: dict[str, float]) -> Value:
    t.place = f"{place}.ln_1"
    y = f.layer_norm(t, x)
    t.place = f"{place}.attn"
    x = f.add(t, _attention(t, y, config, drop), x)
    t.place = f"{place}.ln_2"
    y = f.layer_norm(t, x)
    t.place = f"{place}.mlp"
    hidden = x.shape[-1]
    y = f.conv1d(t, y, config.count("n_inner", default=4 * hidden))
    y = f.conv1d(t, activation(t, y, config.choice("activation_function", ACTIVATIONS, "gelu_new")), hidden)
    return f.add(t, x, f.dropout(t, y, drop["resid_pdrop"]))


def _attention(t: Tape, x: Value, config: Config, drop: dict[str, float]) -> Value:
    batch, seq, hidden = x.shape
    heads = config.heads(hidden, "n_head")
    parts = f.split(t, f.conv1d(t, x, 3 * hidden), 3)
    q, k, v = (_split_heads(t, one, heads) for one in parts)
    scores = f.scale(t, "div", f.matmul(t, q, f.swap(t, k)))
    scores = f.where(t, t.data((1, 1, seq, seq), "bool"), scores)
    y = f.matmul(t, f.dropout(t, f.softmax(t, scores), drop["attn_pdrop"]), v)
    y = f.view(t, f.contiguous(t, f.permute(t, y, 0, 2, 1, 3)), (batch, seq, hidden))
    return f.dropout(t, f.conv1d(t, y, hidden), drop["resid_pdrop"])


def _split_heads(t: Tape, x: Value, heads: int) -> Value:
    batch, seq, hidden = x.shape
    return f.permute(t, f.view(t, x, (batch, seq, heads, hidden // heads)), 0, 2, 1, 3)
