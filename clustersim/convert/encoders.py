"""Encoders, encoder-decoders, and decoders with learned positions or older key names: BERT, T5, GPT-2, GPT-NeoX, OPT."""

from __future__ import annotations

from clustersim.convert.decoders import PLAIN, Shapes, single_names
from clustersim.convert.hugging_face import Config
from clustersim.errors import InputError

T5_FORWARD = {"relu": "relu", "gated-gelu": "geglu", "gelu": "gelu", "gated-silu": "swiglu"}
"""{feed_forward_proj: activation}"""
OPT_OFFSET = 2
"""Rows of OPT's table of positions beyond `max_position_embeddings` (OPTLearnedPositionalEmbedding)."""
GPT2_NAMES, BERT_NAMES, OPT_NAMES = (single_names(kind) for kind in ("gpt2", "bert", "opt"))
"""{key of this project: key of a config}"""


def gpt_like(config: Config, names: dict[str, str], activation: str, default: str) -> Shapes:
    """Return a model with LayerNorm, biases and no gate.

    names: {key of a workload's model: key of the config}. activation: the config's key of the activation, with its default value.
    """
    shapes: Shapes = {key: config.count(name) for key, name in names.items() if key != "layers"}
    shapes |= {"layers": config.layers(names["layers"])}
    shapes["tied_embeddings"] = config.flag("tie_word_embeddings", default=True)
    return {**shapes, "activation": PLAIN[config.choice(activation, tuple(PLAIN), default)]}


def bert(config: Config) -> Shapes:
    """Return an encoder with a norm after each half, and its head for masked words."""
    shapes = gpt_like(config, BERT_NAMES, "hidden_act", "gelu")
    drops = _drops(config, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    return {**shapes, "norm_position": "post", "causal": False, "head_transform": True, "dropout": drops}


def _drops(config: Config, **defaults: float) -> bool:
    """Return whether one of the dropout rates is above 0; `defaults` has the rates of missing keys."""
    return max(config.rate(name, default) for name, default in defaults.items()) > 0


def gpt2(config: Config) -> Shapes:
    """Return GPT-2's shapes, which are also GPT-3's."""
    shapes = gpt_like(config, GPT2_NAMES, "activation_function", "gelu_new")
    width = config.count("n_inner", default=4 * config.count("n_embd"))
    drops = _drops(config, embd_pdrop=0.1, attn_pdrop=0.1, resid_pdrop=0.1)
    return {**shapes, "ffn": width, "max_positions": config.count("n_positions", "n_ctx"), "dropout": drops}


def gpt_neox(config: Config) -> Shapes:
    """Return GPT-NeoX's shapes; its head has separate weights."""
    shapes = gpt_like(config, BERT_NAMES, "hidden_act", "gelu")
    return {**shapes, "positions": "rotary", "tied_embeddings": config.flag("tie_word_embeddings", default=False)}


def opt(config: Config) -> Shapes:
    """Return OPT's shapes. Raises InputError for OPT-350m, whose embedding is narrower than its blocks."""
    shapes = gpt_like(config, OPT_NAMES, "activation_function", "relu")
    if config.count("word_embed_proj_dim", default=config.count("hidden_size")) != shapes["hidden"]:
        why = "word_embed_proj_dim differs from hidden_size, which is not supported; make them equal"
        raise InputError(f"{config.path}: {why}")
    if not config.flag("do_layer_norm_before", default=True):
        shapes["norm_position"] = "post"
    positions = config.count("max_position_embeddings") + OPT_OFFSET
    return {**shapes, "max_positions": positions, "dropout": _drops(config, dropout=0.1, attention_dropout=0.0)}


def t5(config: Config) -> Shapes:
    """Return an encoder and a decoder without biases. By default the decoder has as many layers as the encoder."""
    encoder = config.layers("num_layers")
    shapes: Shapes = {key: config.count(name) for key, name in single_names("t5").items()}
    shapes |= {"encoder_layers": encoder, "layers": config.count("num_decoder_layers", default=encoder)}
    shapes |= {"norm": "rmsnorm", "positions": "none", "bias": False}
    shapes["activation"] = T5_FORWARD[config.choice("feed_forward_proj", tuple(T5_FORWARD), "relu")]
    return {**shapes, "tied_embeddings": config.flag("tie_word_embeddings", default=True)}


def switch(config: Config) -> Shapes:
    """Return T5 with one of many experts per token in every n-th block. Raises InputError if encoder and decoder differ."""
    step = config.count("encoder_sparse_step", default=2)
    if step != config.count("decoder_sparse_step", default=2):
        raise InputError(f"{config.path}: encoder_sparse_step and decoder_sparse_step differ; make them equal")
    routed = {"experts": config.count("num_experts"), "topk": 1}
    blocks = {"blocks": [{"count": step - 1, "experts": 0}, {}]} if step > 1 else {}
    return {**t5(config), **routed, **blocks, "dropout": _drops(config, dropout_rate=0.1)}
