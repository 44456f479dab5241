"""BERT as transformers runs it with eager attention (modeling_bert.py, 4.31 to 4.35), with the head of its architecture."""

from __future__ import annotations

from clustersim.convert.hugging_face import Config
from clustersim.single_gpu import eager as f
from clustersim.single_gpu.pieces import activation, next_token_loss, tokens
from clustersim.single_gpu.tape import Tape, Value

HEADS = ("BertLMHeadModel", "BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification", "BertModel")


def build(t: Tape, config: Config, batch: int, seq: int) -> None:
    """Record the model that `architectures` names: forward, and with a tape in training its loss too."""
    head = config.head(HEADS)
    vocab = config.count("vocab_size")
    x, table = _embedding(t, config, batch, seq)
    mask = t.data((batch, 1, 1, seq), t.dtype)
    for layer in range(config.layers("num_hidden_layers")):
        x = _block(t, x, mask, config, f"bert.encoder.layer.{layer}")
    pooled = _pooler(t, x) if head in HEADS[2:] else None
    if head in HEADS[:3]:
        _language_head(t, x, pooled, table, config, vocab, shifted=head == HEADS[0])
    elif pooled and head == HEADS[3]:
        _classifier(t, pooled, config)


def _embedding(t: Tape, config: Config, batch: int, seq: int) -> tuple[Value, Value]:
    hidden = config.count("hidden_size")
    t.place = "bert.embeddings"
    table = t.weight(config.count("vocab_size"), hidden)
    kinds = t.weight(config.count("type_vocab_size", default=2), hidden)
    positions = t.weight(config.count("max_position_embeddings", default=seq), hidden)
    x = f.add(t, f.embedding(t, table, tokens(t, batch, seq)), f.embedding(t, kinds, tokens(t, batch, seq)))
    x = f.add(t, x, f.embedding(t, positions, tokens(t, 1, seq)))
    return f.dropout(t, f.layer_norm(t, x), config.rate("hidden_dropout_prob", 0.1)), table


def _block(t: Tape, x: Value, mask: Value, config: Config, place: str) -> Value:
    rate, hidden = config.rate("hidden_dropout_prob", 0.1), x.shape[-1]
    t.place = f"{place}.attention"
    y = f.dropout(t, f.linear(t, _attention(t, x, mask, config), hidden), rate)
    x = f.layer_norm(t, f.add(t, y, x))
    t.place = f"{place}.mlp"
    y = f.linear(t, x, config.count("intermediate_size"))
    y = f.linear(t, activation(t, y, config.choice("hidden_act", ("gelu", "relu", "gelu_new"), "gelu")), hidden)
    return f.layer_norm(t, f.add(t, f.dropout(t, y, rate), x))


def _attention(t: Tape, x: Value, mask: Value, config: Config) -> Value:
    batch, seq, hidden = x.shape
    heads = config.heads(hidden, "num_attention_heads")
    shape = (batch, seq, heads, hidden // heads)
    q, k, v = (f.permute(t, f.view(t, f.linear(t, x, hidden), shape), 0, 2, 1, 3) for _ in range(3))
    scores = f.add(t, f.scale(t, "div", f.matmul(t, q, f.swap(t, k))), mask)
    chances = f.dropout(t, f.softmax(t, scores), config.rate("attention_probs_dropout_prob", 0.1))
    y = f.contiguous(t, f.permute(t, f.matmul(t, chances, v), 0, 2, 1, 3))
    return f.view(t, y, (batch, seq, hidden))


def _pooler(t: Tape, x: Value) -> Value:
    t.place = "bert.pooler"
    first = f.view(t, f.leading(t, x, 1, 1), (x.shape[0], x.shape[2]))
    return f.unary(t, "tanh", f.linear(t, first, x.shape[2]), "tanh_backward")


def _language_head(
    t: Tape, x: Value, pooled: Value | None, table: Value, config: Config, vocab: int, shifted: bool
) -> None:
    t.place = "cls.predictions"
    y = activation(t, f.linear(t, x, x.shape[-1]), config.choice("hidden_act", ("gelu", "relu", "gelu_new"), "gelu"))
    logits = f.linear(t, f.layer_norm(t, y), vocab, weight=table)
    classes = f.linear(t, pooled, 2) if pooled else None
    if shifted:
        next_token_loss(t, logits)
    elif t.training:
        _loss(t, logits, classes)


def _loss(t: Tape, logits: Value, classes: Value | None) -> None:
    t.place = "loss"
    loss = f.cross_entropy(t, f.view(t, logits, (logits.shape[0] * logits.shape[1], logits.shape[2])))
    t.backward(f.add(t, loss, f.cross_entropy(t, classes)) if classes else loss)


def _classifier(t: Tape, pooled: Value, config: Config) -> None:
    t.place = "classifier"
    logits = f.linear(t, f.dropout(t, pooled, config.rate("hidden_dropout_prob", 0.1)), 2)
    if t.training:
        t.backward(f.cross_entropy(t, logits))
