"""Hugging Face models by `model_type`: one row per family with the choices of its code, and the features that workloads lack."""

from __future__ import annotations

from collections.abc import Mapping

from clustersim.convert import decoders
from clustersim.convert.decoders import KEYS, PLAIN, Architecture, Shapes, families, optional, single_names, state_space
from clustersim.convert.hugging_face import Config
from clustersim.errors import InputError, shown, suggest

VISION = "the vision encoder"
NEMOTRON = {"M": "mamba2", "*": "attention", "-": "none", "E": "none"}
"""{letter of Nemotron-H's hybrid_override_pattern: mixer of a block}"""
T5_FORWARD = {"relu": "relu", "gated-gelu": "geglu", "gelu": "gelu", "gated-silu": "swiglu"}
"""{feed_forward_proj: activation}"""
OPT_OFFSET = 2
"""Rows of OPT's table of positions beyond `max_position_embeddings` (OPTLearnedPositionalEmbedding)."""
GPT2_NAMES, BERT_NAMES, OPT_NAMES = (single_names(kind) for kind in ("gpt2", "bert", "opt"))
"""{key of this project: key of a config}"""


def _qwen_windows(config: Config, layers: int) -> list[Shapes]:
    """Return {`window`: 0} for layers before max_window_layers and {} for others; {} for all unless `use_sliding_window`."""
    first, named = config.index("max_window_layers", default=28), config.listed("layer_types", "words")
    slides = config.flag("use_sliding_window", default=False) and not named
    return [{"window": 0} if slides and layer < first else {} for layer in range(layers)]


def _llama4_layers(config: Config, layers: int) -> list[Shapes]:
    """Return no window and no positions for layers with 0 in no_rope_layers, by default each fourth; {} for others."""
    marks = config.listed("no_rope_layers", "0 and 1") or [int((i + 1) % 4 != 0) for i in range(layers)]
    return [{} if mark else {"window": 0, "positions": "none"} for mark in marks]


def _all_attend(config: Config, layers: int) -> list[Shapes]:
    """Return {} for each layer, as all attend. Raises InputError if attn_type_list has lightning attention (0)."""
    kinds = config.listed("attn_type_list", "0 and 1") or [1]
    if kinds != [1] * len(kinds):
        raise InputError(f"{config.path}: attn_type_list names layers of lightning attention, which are not modelled")
    return [{} for _ in range(layers)]


def _gemma4_layers(config: Config, layers: int) -> list[Shapes]:
    """Return the wider heads and fewer key/value heads of each layer with full attention, {} for the others."""
    wide = optional(config, "head_dim", "global_head_dim") | optional(config, "kv_heads", "num_global_key_value_heads")
    kinds = config.listed("layer_types", "words")
    return [dict(wide) if kind == "full_attention" else {} for kind in kinds or [""] * layers]


def _delta(config: Config, shapes: Shapes) -> Shapes:
    """Return the shapes with a gated delta net as a second mixer, and gated attention (Qwen3-Next)."""
    delta = {key: config.count(name) for key, name in single_names("delta").items()}
    return {**shapes, "delta": delta, "output_gate": config.flag("attn_output_gate", default=True)}


def _kimi_section(config: Config) -> Config:
    """Return the section of delta attention in Kimi's configs. Raises InputError if it is missing."""
    section = config.get("linear_attn_config")
    if not isinstance(section, dict):
        raise InputError(f"{config.path}: linear_attn_config is {shown(section)}; it holds the keys of delta attention")
    return config.with_keys(section)


def _kimi(config: Config, shapes: Shapes) -> Shapes:
    """Return the shapes with Kimi Delta Attention, which has gates per channel."""
    section = _kimi_section(config)
    dim = section.count("head_dim")
    conv = section.count("short_conv_kernel_size", default=4)
    delta = {"heads": section.count("num_heads"), "key_dim": dim, "value_dim": dim, "conv": conv}
    return {**shapes, "delta": {**delta, "channel_gates": True}}


def _kimi_layers(config: Config, layers: int) -> list[Shapes]:
    """Return the delta mixer, or attention without rotary positions, for each layer. The config counts layers from 1."""
    full = _kimi_section(config).listed("full_attn_layers", "layers")
    _kimi_section(config).listed("kda_layers", "layers")
    rotary: Shapes = {"positions": "none"}  # mla_use_nope
    return [rotary if i + 1 in full else {"mixer": "delta"} for i in range(layers)]


def _mamba(config: Config, shapes: Shapes) -> Shapes:
    """Return the shapes with the section `mamba`, the state-space mixer."""
    return {**shapes, "mamba": state_space(config)}


def _granite(config: Config, shapes: Shapes) -> Shapes:
    """Return the shapes with a state space. Without a position type, no rotary positions; without experts, one shared MLP."""
    shapes = _mamba(config, shapes)
    rotary = config.choice("position_embedding_type", ("rope", "nope"), "nope") == "rope"
    if "experts" not in shapes:
        shapes |= {"ffn": config.count("shared_intermediate_size")}
    return {**shapes, "positions": "rotary" if rotary else "none"}


def _nemotron_layers(config: Config, layers: int) -> list[Shapes]:
    """Return a mixer, MLP or expert block for each letter of the pattern. Raises InputError for unknown letters."""
    pattern = str(config.get("hybrid_override_pattern") or "")
    if len(pattern) != layers or set(pattern) - set(NEMOTRON):
        raise InputError(f"{config.path}: hybrid_override_pattern must have {layers} letters of {''.join(NEMOTRON)}")
    mixture = "E" in pattern
    blocks = []
    for letter in pattern:
        block: Shapes = {"mixer": NEMOTRON[letter]} if letter != "*" else {}
        if letter in "M*":
            block |= {"feed_forward": False}
        if mixture and letter != "E":
            block |= {"experts": 0}
        blocks.append(block)
    return blocks


def _mamba2(config: Config) -> Shapes:
    """Return the shapes of a model of state spaces without MLPs; its attention heads have no weights."""
    shapes: Shapes = {"layers": config.layers("num_hidden_layers"), "hidden": config.count("hidden_size")}
    shapes |= {"heads": 1, "norm": "rmsnorm", "positions": "none", "bias": False}
    shapes |= {"vocab": config.count("vocab_size"), "mixer": "mamba2", "mamba": state_space(config)}
    return {**shapes, "feed_forward": False, "tied_embeddings": config.flag("tie_word_embeddings", default=True)}


def _lfm2(config: Config, shapes: Shapes) -> Shapes:
    """Return the shapes with short convolutions and, without experts, with `ffn`: the width of the MLP. It is adjusted only with
    `block_auto_adjust_ff_dim`: to two thirds of its value times a factor, rounded up to a multiple (Lfm2MLP)."""
    width = config.count("block_ff_dim", "intermediate_size")
    if config.flag("block_auto_adjust_ff_dim", default=False):
        several, times = config.count("block_multiple_of", default=256), config.get("block_ffn_dim_multiplier")
        width = int(float(str(times or 1.0)) * int(2 * width / 3))
        width = -(-width // several) * several
    config.flag("block_use_swiglu", default=True)
    for name in ("conv_dim", "conv_dim_out", "block_dim"):
        config.count(name, default=config.count("hidden_size"))
    return {**shapes, "conv": config.count("conv_L_cache"), **({} if "experts" in shapes else {"ffn": width})}


def _longcat(config: Config, shapes: Shapes) -> Shapes:
    """Return the shapes with two blocks per layer, experts in addition to the second block's MLP, and no experts without weights.

    Source: LongCat-Flash (arXiv 2509.01322), section 2: two attentions and MLPs per layer; 256 of 768 experts return their input.
    """
    layers, zero = int(str(shapes["layers"])), config.index("zero_expert_num", default=0)
    config.choice("zero_expert_type", ("identity",), "identity")
    config.choice("attention_method", ("MLA",), "MLA")
    real, visited = int(str(shapes["experts"])), int(str(shapes["topk"]))
    dense, topk = config.count("ffn_hidden_size"), max(round(visited * real / (real + zero)), 1)
    shared = {"shared_experts": 1, "shared_ffn": dense, "blocks": [{"experts": 0, "ffn": dense}, {}]}
    return {**shapes, **shared, "layers": 2 * layers, "topk": topk}


def _arctic(config: Config, shapes: Shapes) -> Shapes:
    """Return the shapes with experts in addition to a dense MLP as wide as the model (modeling_arctic.py, residual_mlp)."""
    residual = config.flag("parallel_attn_mlp_res", "use_residual", default=False)
    return {**shapes, "shared_experts": 1, "shared_ffn": shapes["hidden"]} if residual else shapes


def _falcon(config: Config, shapes: Shapes) -> Shapes:
    """Return the shapes with an MLP of four times the width, and one key/value head unless the newer code reads their number."""
    shapes = _wide(config, shapes)
    newer = config.flag("new_decoder_architecture", default=False)
    shared = config.flag("multi_query", default=True)
    return shapes if newer else {**shapes, "kv_heads": 1 if shared else shapes["heads"]}


def _wide(config: Config, shapes: Shapes) -> Shapes:
    """Return the shapes with an MLP of `expansion_ratio`, by default 4, times the model's width."""
    return {**shapes, "ffn": config.count("expansion_ratio", default=4) * config.count(*KEYS["hidden"])}


def _mpt(config: Config, shapes: Shapes) -> Shapes:
    """Return the shapes with an MLP of `expansion_ratio`, with biases unless `no_bias`, and without positions if `alibi`."""
    biased = not config.flag("no_bias", default=True)
    config.flag("learned_pos_emb", default=True)
    places = "none" if config.flag("alibi", default=False) else "learned"
    return {**_wide(config, shapes), "bias": biased, "qkv_bias": biased, "positions": places}


# Encoders, encoder-decoders, and decoders with learned positions or older key names: BERT, T5, GPT-2, GPT-NeoX, OPT.


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


ARCHITECTURES = families(__name__)
"""{model_type: row of the table}"""


def architecture(config: Config) -> Architecture:
    """Return the family of a config or its text model, or a row derived from its keys. Raises InputError without model_type."""
    for kind in (config.kind, config.kind.removesuffix("_text")):
        if kind in ARCHITECTURES:
            return ARCHITECTURES[kind]
    if not config.kind:
        why = f"model_type {shown(config.kind)} is not built in; {suggest('', ARCHITECTURES)}"
        raise InputError(f"{config.path}: {why}")
    keys = decoders.text_model(config).keys
    text, vision = config.keys.get("text_config"), (VISION,) * ("vision_config" in config.keys)
    inner = ARCHITECTURES.get(str(text.get("model_type"))) if isinstance(text, dict) else None
    return inner._replace(left_out=(*inner.left_out, *vision)) if inner else _by_keys(config, keys, vision)


def _by_keys(config: Config, keys: Mapping[str, object], vision: tuple[str, ...]) -> Architecture:
    """Return a row for a decoder whose own code is unknown.

    RMSNorm, a gate and rotary positions with `rms_norm_eps`; else a gate with SiLU, rotary positions if named, a 4·h default MLP.
    """
    rms = keys.get("rms_norm_eps") is not None
    acts = [keys.get(name) for name in ("hidden_act", "activation_function", "hidden_activation")]
    gate = rms or any(act in ("silu", "swish", "swiglu") for act in acts)
    rotary = rms or any("rope" in key or "rotary" in key for key in keys)
    norm = "RMSNorm" if rms else "LayerNorm"
    unknown = f"what the code of {config.kind} does otherwise than a decoder with {norm} before each half"
    fixed: Shapes = {"norm": norm.lower(), "positions": "rotary" if rotary else "learned"}
    fixed |= {"bias": not rms, "qkv_bias": not rms}
    named = any(keys.get(name) is not None for name in (*KEYS["ffn"], "moe_intermediate_size"))
    wide = {} if named or rms else {"intermediate_size": 4 * decoders.text_model(config).count(*KEYS["hidden"])}
    return Architecture((unknown, *vision), fixed, {"tie_word_embeddings": True, **wide}, gate=gate)
