"""OPT as transformers runs it with eager attention (modeling_opt.py, 4.31 to 4.35)."""

from __future__ import annotations

from clustersim.convert.hugging_face import Config
from clustersim.errors import InputError
from clustersim.single_gpu import eager as f
from clustersim.single_gpu.pieces import activation, next_token_loss, tokens
from clustersim.single_gpu.tape import Tape, Value

OFFSET = 2
"""Rows of the position table beyond `max_position_embeddings` (OPTLearnedPositionalEmbedding)."""


def build(t: Tape, config: Config, batch: int, seq: int) -> None:
    """Record OPTForCausalLM: forward, and with a tape in training its loss too."""
    hidden, vocab = config.count("hidden_size"), config.count("vocab_size")
    if config.count("word_embed_proj_dim", default=hidden) != hidden and config.count("num_hidden_layers") > 1:
        raise InputError(
            f"{config.path}: word_embed_proj_dim differs from hidden_size, which is not supported; make them equal"
        )
    t.place = "model.decoder.embedding"
    table = t.weight(vocab, hidden)
    positions = t.weight(config.count("max_position_embeddings", default=seq) + OFFSET, hidden)
    mask = _mask(t, batch, seq)
    x = f.add(t, f.embedding(t, table, tokens(t, batch, seq)), f.embedding(t, positions, tokens(t, batch, seq)))
    for layer in range(config.layers("num_hidden_layers")):
        x = _block(t, x, mask, config, f"model.decoder.layers.{layer}")
    t.place = "model.decoder.final_layer_norm"
    x = f.layer_norm(t, x)
    t.place = "lm_head"
    next_token_loss(t, f.linear(t, x, vocab, bias=False, weight=table))


def _mask(t: Tape, batch: int, seq: int) -> Value:
    """Return the causal mask of (batch, 1, seq, seq) values, made once for all layers: inverted, twice filled."""
    mask = t.data((batch, 1, seq, seq), t.dtype)
    shape = mask.tensor
    flags = t.call("_to_copy", (t.call("rsub", (mask,), shape),), shape._replace(dtype="bool"))
    filled = t.call("masked_fill", (mask, flags), shape)
    again = t.call("_to_copy", (filled,), shape._replace(dtype="bool"))
    return t.call("masked_fill", (filled, again), shape)


def _block(t: Tape, x: Value, mask: Value, config: Config, place: str) -> Value:
    rate = config.rate("dropout", 0.1)
    t.place = f"{place}.self_attn_layer_norm"
    y = f.layer_norm(t, x)
    t.place = f"{place}.self_attn"
    x = f.add(t, x, f.dropout(t, _attention(t, y, mask, config), rate))
    rows = f.view(t, x, (x.shape[0] * x.shape[1], x.shape[2]))
    t.place = f"{place}.final_layer_norm"
    y = f.layer_norm(t, rows)
    t.place = f"{place}.mlp"
    y = f.linear(t, y, config.count("ffn_dim"))
    y = f.linear(t, activation(t, y, config.choice("activation_function", ("relu", "gelu"), "relu")), x.shape[-1])
    return f.view(t, f.add(t, rows, f.dropout(t, y, rate)), x.shape)


def _attention(t: Tape, x: Value, mask: Value, config: Config) -> Value:
    batch, seq, hidden = x.shape
    heads = config.heads(hidden, "num_attention_heads")
    q = f.scale(t, "mul", f.linear(t, x, hidden))
    k, v = (_split_heads(t, f.linear(t, x, hidden), heads) for _ in range(2))
    q, k, v = (f.view(t, one, (batch * heads, seq, hidden // heads)) for one in (_split_heads(t, q, heads), k, v))
    scores = f.view(t, f.mm(t, q, f.swap(t, k)), (batch, heads, seq, seq))
    scores = f.at_least(t, f.add(t, scores, mask))
    chances = f.softmax(t, f.view(t, scores, (batch * heads, seq, seq)))
    y = f.mm(t, f.dropout(t, chances, config.rate("attention_dropout", 0.0)), v)
    y = f.permute(t, f.view(t, y, (batch, heads, seq, hidden // heads)), 0, 2, 1, 3)
    return f.linear(t, f.view(t, y, (batch, seq, hidden)), hidden)


def _split_heads(t: Tape, x: Value, heads: int) -> Value:
    batch, seq, hidden = x.shape
    return f.contiguous(t, f.permute(t, f.view(t, x, (batch, seq, heads, hidden // heads)), 0, 2, 1, 3))
