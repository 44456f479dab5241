"""Hugging Face models by `model_type`: the shapes that a config.json says, and what of the model a workload cannot say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import NamedTuple

from clustersim.convert.hugging_face import Config
from clustersim.errors import InputError, shown, suggest

Shapes = dict[str, object]

GATED = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "gelu_new": "geglu", "gelu_pytorch_tanh": "geglu"}
PLAIN = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_fast": "gelu",
    "relu": "relu",
    "relu2": "squared_relu",
}
"""hidden_act → activation, with a gate beside the first linear and without."""
T5_FORWARD = {"relu": "relu", "gated-gelu": "geglu", "gelu": "gelu", "gated-silu": "swiglu"}
"""feed_forward_proj → activation."""
TYPES = ("full_attention", "sliding_attention")
"""What `layer_types` calls layers."""
MIXERS = re.compile(
    r"mamba|ssm_|state_size|rwkv|linear_(?:conv|key|num|value)_|hybrid_override|attn_type_list|layers_block_type"
)
"""Keys of layers that neither attend nor have an MLP alone: state spaces, linear attention."""
OPT_OFFSET = 2
"""Rows of OPT's table of positions beyond `max_position_embeddings` (OPTLearnedPositionalEmbedding)."""
GPT2_NAMES = {"layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "vocab": "vocab_size"}
BERT_NAMES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
    "ffn": "intermediate_size",
    "max_positions": "max_position_embeddings",
}
OPT_NAMES = {**{key: BERT_NAMES[key] for key in ("layers", "hidden", "heads", "vocab")}, "ffn": "ffn_dim"}
"""This project's keys → those of a config."""


def runs(layers: list[Shapes]) -> list[Shapes]:
    """Return blocks of a workload for a list of layers: the shortest ones that repeat to all, equal neighbours counted."""
    for length in range(1, len(layers) + 1):
        if layers[length:] == layers[:-length]:
            found = [(block, len(list(several))) for block, several in groupby(layers[:length])]
            return [{**block, **({"count": count} if count > 1 else {})} for block, count in found]
    return []


def optional(config: Config, key: str, name: str) -> dict[str, int]:
    """Return {key: number} where a config has it."""
    return {} if config.keys.get(name) is None else {key: config.count(name)}


def llama_like(config: Config) -> Shapes:
    """Return a decoder with RMSNorm, SwiGLU, rotary positions and no biases, from Llama's keys."""
    heads = config.count("num_attention_heads")
    return {
        "layers": config.layers("num_hidden_layers"),
        "hidden": config.count("hidden_size"),
        "heads": heads,
        "kv_heads": config.count("num_key_value_heads", default=heads),
        **optional(config, "head_dim", "head_dim"),
        "ffn": config.count("intermediate_size"),
        "vocab": config.count("vocab_size"),
        **optional(config, "max_positions", "max_position_embeddings"),
        "norm": "rmsnorm",
        "activation": GATED[config.choice("hidden_act", tuple(GATED), "silu")],
        "positions": "rotary",
        "bias": False,
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def gpt_like(config: Config, names: dict[str, str], activation: str, default: str) -> Shapes:
    """Return a model with LayerNorm, biases and no gate; names: keys → those of the config; activation: the key of its name."""
    return {
        **{key: config.count(name) for key, name in names.items() if key != "layers"},
        "layers": config.layers(names["layers"]),
        "activation": PLAIN[config.choice(activation, tuple(PLAIN), default)],
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def experts(config: Config, *names: str) -> dict[str, int]:
    """Return experts and how many of them a token visits."""
    return {"experts": config.count(*names), "topk": config.count("num_experts_per_tok", default=2)}


def sliding(config: Config) -> Shapes:
    """Return the windows of layers: `layer_types` says which slide, else all do where sliding_window is set."""
    layers, kinds = config.layers("num_hidden_layers"), config.keys.get("layer_types")
    if config.keys.get("sliding_window") is None or not config.flag("use_sliding_window", True):
        return {}
    width = config.count("sliding_window")
    if kinds is None:
        return {"window": width}
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise InputError(f"{config.path}: layer_types must name each of the {layers} layers; list as many")
    flags = [config.of({"layer_types": kind}).choice("layer_types", TYPES, TYPES[0]) == TYPES[1] for kind in kinds]
    return {"blocks": runs([{"window": width} if flag else {} for flag in flags])} if any(flags) else {}


def text_model(config: Config) -> Config:
    """Return the keys of the text model of a config that has others beside it. Raises InputError."""
    text = config.keys.get("text_config", config.keys)
    if not isinstance(text, dict):
        raise InputError(f"{config.path}: text_config is {shown(text)}; it holds the keys of the text model")
    return config.of({**text, "model_type": config.kind})


def alternating(config: Config, every: int) -> Shapes:
    """Return the windows of layers of which each `every`-th sees all tokens where `layer_types` says nothing else."""
    layers = config.layers("num_hidden_layers")
    kinds = config.keys.get("layer_types") or [TYPES[bool((layer + 1) % every)] for layer in range(layers)]
    return sliding(config.of({**config.keys, "layer_types": kinds}))


def _llama(config: Config) -> Shapes:
    """`attention_bias` and `mlp_bias` stand for all linears."""
    biases = {"bias": config.flag("mlp_bias", False), "qkv_bias": config.flag("attention_bias", False)}
    return {**llama_like(config), **biases}


def _llama4(config: Config) -> Shapes:
    """Some layers have experts.

    Chunks of attention_chunk_size tokens count as a window of as many; the layers that no_rope_layers marks with 0 see all
    tokens, without rotary positions.
    """
    config = text_model(config)
    layers, step = config.layers("num_hidden_layers"), config.count("interleave_moe_layer_step", default=1)
    marks = config.keys.get("no_rope_layers") or [int((i + 1) % 4 != 0) for i in range(layers)]
    if not isinstance(marks, list) or len(marks) != layers:
        raise InputError(f"{config.path}: no_rope_layers must mark each of the {layers} layers; list as many")
    window = {"window": config.count("attention_chunk_size", default=8192)}
    dense = {"experts": 0, "ffn": config.count("intermediate_size_mlp", default=16384)}
    each = [
        {**({} if (i + 1) % step == 0 else dense), **(window if marks[i] else {"positions": "none"})}
        for i in range(layers)
    ]
    routed = experts(config.of({"num_experts_per_tok": 1, **config.keys}), "num_local_experts")
    return {**llama_like(config), **routed, "shared_experts": 1, "blocks": runs(each)}


def _mistral(config: Config) -> Shapes:
    """The first releases slide."""
    return {**llama_like(config), **sliding(config)}


def _mixtral(config: Config) -> Shapes:
    return {**llama_like(config), **experts(config, "num_local_experts"), **sliding(config)}


def _nemotron(config: Config) -> Shapes:
    """LayerNorm, squared ReLU without a gate."""
    activation = PLAIN[config.choice("hidden_act", tuple(PLAIN), "relu2")]
    found = llama_like(config.of({**config.keys, "hidden_act": "silu"}))
    return {**found, "norm": "layernorm", "activation": activation}


def _grok(config: Config) -> Shapes:
    """Norms before and after each half, GeGLU."""
    found = {**llama_like(config.of({"hidden_act": "gelu", **config.keys})), **experts(config, "num_experts")}
    return {**found, "norm_position": "both", "tied_embeddings": config.flag("tie_word_embeddings", True)}


def _gpt_oss(config: Config) -> Shapes:
    """Experts and biases; without layer_types the even layers slide."""
    found = {"head_dim": 64, **llama_like(config), **experts(config, "num_local_experts"), **alternating(config, 2)}
    return {
        **found,
        "bias": config.flag("attention_bias", True),
        "activation_clamp": config.keys.get("swiglu_limit", 7.0),
    }


def _gemma(config: Config) -> Shapes:
    """GeGLU, heads of 256, and the embedding's weights in the head; what a config leaves out is that of the family's smallest."""
    config = text_model(config)
    said = config.keys.get("hidden_activation") or config.keys.get("hidden_act") or "gelu_pytorch_tanh"
    usual = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262208, "tie_word_embeddings": True}
    return {"head_dim": 256, **llama_like(config.of({**usual, **config.keys, "hidden_act": said}))}


def _gemma2(config: Config) -> Shapes:
    """Norms before and after each half; every other layer slides."""
    windows = alternating(config.of({"sliding_window": 4096, **config.keys}), 2)
    return {**_gemma(config), "norm_position": "both", **windows}


def _gemma3(config: Config) -> Shapes:
    """As Gemma 2, with queries and keys normed, and five of six layers sliding."""
    text = text_model(config)
    windows = alternating(
        text.of({"sliding_window": 4096, **text.keys}), text.count("sliding_window_pattern", default=6)
    )
    return {**_gemma(config), "norm_position": "both", "qk_norm": True, **windows}


def _glm(config: Config) -> Shapes:
    return {**llama_like(config), "qkv_bias": config.flag("attention_bias", False)}


def _glm4(config: Config) -> Shapes:
    """Norms before and after each half."""
    return {**_glm(config), "norm_position": "both"}


def _glm4_moe(config: Config) -> Shapes:
    """First layers without experts, experts for all tokens, further predictions (GLM-4.5)."""
    extra = {"qk_norm": config.flag("use_qk_norm", False), "mtp_layers": config.index("num_nextn_predict_layers", 0)}
    return {**_glm(config), **_routed(config), **extra}


def _qwen2(config: Config) -> Shapes:
    """Biases of queries, keys and values; with use_sliding_window layers from max_window_layers on slide."""
    config = text_model(config)
    found = {**llama_like(config), "qkv_bias": True}
    layers, first = config.layers("num_hidden_layers"), config.count("max_window_layers", default=28)
    if not config.flag("use_sliding_window", False):
        return found
    windows = sliding(config)
    if "window" in windows:
        windows = {"blocks": [{"count": first}, {"count": layers - first, **windows}]} if first < layers else {}
    return {**found, **windows}


def _qwen2_moe(config: Config) -> Shapes:
    """Experts, and one for all tokens."""
    shared = {"shared_experts": 1, "shared_ffn": config.count("shared_expert_intermediate_size")}
    return {**llama_like(config), "qkv_bias": True, **_qwen_experts(config), **shared}


def _qwen_experts(config: Config) -> Shapes:
    """Return the experts of every decoder_sparse_step-th layer that mlp_only_layers does not name; the others have one MLP."""
    layers, step = config.layers("num_hidden_layers"), config.count("decoder_sparse_step", default=1)
    dense = config.keys.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(one, int) for one in dense):
        raise InputError(f"{config.path}: mlp_only_layers is {shown(dense)}; it is a list of numbers of layers")
    flags = [(layer + 1) % step == 0 and layer not in dense for layer in range(layers)]
    wide: Shapes = {"experts": 0, "ffn": config.count("intermediate_size")}
    blocks = {} if all(flags) else {"blocks": runs([{} if flag else wide for flag in flags])}
    return {**experts(config, "num_experts"), "ffn": config.count("moe_intermediate_size"), **blocks}


def _qwen3(config: Config) -> Shapes:
    """Queries and keys are normed head by head, no biases; heads are 128 wide by default."""
    config = text_model(config)
    biases = config.flag("attention_bias", False)
    return {"head_dim": 128, **llama_like(config), "qkv_bias": biases, "qk_norm": True}


def _qwen3_moe(config: Config) -> Shapes:
    return {**_qwen3(config), **_qwen_experts(text_model(config))}


def _deepseek(config: Config) -> Shapes:
    """Latent attention, first layers without experts, experts for all tokens (configuration_deepseek.py)."""
    if config.count("moe_layer_freq", default=1) != 1:
        raise InputError(
            f"{config.path}: moe_layer_freq other than 1 is not supported; write the workload with model.blocks"
        )
    found = {key: value for key, value in llama_like(config).items() if key not in ("kv_heads", "head_dim")}
    latent = {
        **optional(config, "q_lora_rank", "q_lora_rank"),
        "kv_lora_rank": config.count("kv_lora_rank"),
        "qk_head_dim": config.count("qk_nope_head_dim"),
        "qk_pos_emb_head_dim": config.count("qk_rope_head_dim"),
        "v_head_dim": config.count("v_head_dim"),
    }
    return {**found, "mla": latent, **_routed(config)}


def _routed(config: Config) -> Shapes:
    """Return experts after first layers without, chosen by groups, and those for all tokens, by DeepSeek's keys."""
    dense, groups = config.index("first_k_dense_replace", 0), config.count("n_group", default=1)
    return {
        **({"router_groups": groups, "router_group_topk": config.count("topk_group")} if groups > 1 else {}),
        **experts(config, "n_routed_experts", "num_local_experts", "num_experts"),
        "ffn": config.count("moe_intermediate_size", "intermediate_size"),
        "shared_experts": config.index("n_shared_experts", 0),
        **({"dense_layers": dense, "dense_ffn": config.count("intermediate_size")} if dense else {}),
    }


def _deepseek_v3(config: Config) -> Shapes:
    """With the further predictions that num_nextn_predict_layers counts."""
    return {**_deepseek(config), "mtp_layers": config.index("num_nextn_predict_layers", 0)}


def _bert(config: Config) -> Shapes:
    """An encoder with norms after each half, and its head for masked words."""
    found = gpt_like(config, BERT_NAMES, "hidden_act", "gelu")
    drops = _drops(config, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    return {**found, "norm_position": "post", "causal": False, "head_transform": True, "dropout": drops}


def _drops(config: Config, **defaults: float) -> bool:
    return max(config.rate(name, default) for name, default in defaults.items()) > 0


def _gpt2(config: Config) -> Shapes:
    """GPT-3 too, by its shapes."""
    found = gpt_like(config, GPT2_NAMES, "activation_function", "gelu_new")
    width = config.count("n_inner", default=4 * config.count("n_embd"))
    drops = _drops(config, embd_pdrop=0.1, attn_pdrop=0.1, resid_pdrop=0.1)
    return {**found, "ffn": width, "max_positions": config.count("n_positions", "n_ctx"), "dropout": drops}


def _gpt_neox(config: Config) -> Shapes:
    """The head has weights of its own."""
    found = gpt_like(config, BERT_NAMES, "hidden_act", "gelu")
    return {**found, "positions": "rotary", "tied_embeddings": config.flag("tie_word_embeddings", False)}


def _opt(config: Config) -> Shapes:
    """Raises InputError for OPT-350m, whose embedding is narrower than its blocks."""
    found = gpt_like(config, OPT_NAMES, "activation_function", "relu")
    if config.count("word_embed_proj_dim", default=config.count("hidden_size")) != found["hidden"]:
        raise InputError(
            f"{config.path}: word_embed_proj_dim differs from hidden_size, which is not supported; make them equal"
        )
    if not config.flag("do_layer_norm_before", True):
        found["norm_position"] = "post"
    positions = config.count("max_position_embeddings") + OPT_OFFSET
    return {**found, "max_positions": positions, "dropout": _drops(config, dropout=0.1, attention_dropout=0.0)}


def _t5(config: Config) -> Shapes:
    """An encoder and a decoder without biases; without num_decoder_layers both have as many layers."""
    encoder = config.layers("num_layers")
    return {
        "layers": config.count("num_decoder_layers", default=encoder),
        "encoder_layers": encoder,
        "hidden": config.count("d_model"),
        "heads": config.count("num_heads"),
        "head_dim": config.count("d_kv"),
        "ffn": config.count("d_ff"),
        "vocab": config.count("vocab_size"),
        "norm": "rmsnorm",
        "activation": T5_FORWARD[config.choice("feed_forward_proj", tuple(T5_FORWARD), "relu")],
        "positions": "none",
        "bias": False,
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def _switch(config: Config) -> Shapes:
    """T5 with one of many experts for a token in every n-th block, the same in encoder and decoder (else InputError)."""
    step = config.count("encoder_sparse_step", default=2)
    if step != config.count("decoder_sparse_step", default=2):
        raise InputError(f"{config.path}: encoder_sparse_step and decoder_sparse_step differ; make them equal")
    routed = {"experts": config.count("num_experts"), "topk": 1}
    blocks = {"blocks": [{"count": step - 1, "experts": 0}, {}]} if step > 1 else {}
    return {**_t5(config), **routed, **blocks, "dropout": _drops(config, dropout_rate=0.1)}


SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "d_model", "dim"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("n_kv_heads", "num_kv_heads", "multi_query_group_num"),
    "intermediate_size": ("ffn_dim", "ffn_hidden_size", "n_inner"),
    "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length"),
    "hidden_act": ("activation_function", "hidden_activation"),
}
"""Llama's keys → what other decoders call them."""


def _by_keys(config: Config) -> Shapes:
    """Return a decoder whose own code is unknown, by its keys.

    RMSNorm where the keys have its epsilon, a gate with it or with SiLU, rotary positions with it or where a key says so, an MLP
    four times as wide where none does. Raises InputError for layers that are no attention.
    """
    if mixer := next((key for key in text_model(config).keys if MIXERS.search(key)), None):
        what = f"{config.kind} has layers of state spaces or linear attention ({mixer}), which are not modelled"
        raise InputError(f"{config.path}: {what}; write a workload with model.blocks for those that attend")
    config = spelled(config)
    rms, act = "rms_norm_eps" in config.keys, str(config.keys.get("hidden_act", "silu"))
    biases = config.flag("use_bias", config.flag("bias", not rms)), config.flag("attention_bias", not rms)
    gated = rms or act in ("silu", "swish")
    plain = PLAIN[config.choice("hidden_act", tuple(PLAIN), act)] if not gated else ""
    found = llama_like(config if gated else config.of({**config.keys, "hidden_act": "silu"}))
    mixture = any(config.index(name, 0) > 1 for name in ("n_routed_experts", "num_local_experts", "num_experts"))
    normed = any(config.keys.get(key) is True for key in ("use_qk_norm", "qk_layernorm", "use_qk_layernorm"))
    rotary = rms or any("rope" in key or "rotary" in key for key in config.keys)
    return {
        **(_deepseek(config) if "kv_lora_rank" in config.keys else found),
        "positions": "rotary" if rotary else "learned",
        "norm": "rmsnorm" if rms else "layernorm",
        **({"activation": plain} if plain else {}),
        "bias": biases[0],
        "qkv_bias": biases[1],
        "qk_norm": normed,
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        **(_routed(config) if mixture else {}),
        **sliding(config),
    }


def spelled(config: Config) -> Config:
    """Return the keys of a text model as Llama spells them."""
    keys = dict(text_model(config).keys)
    for name, others in SPELLINGS.items():
        if keys.get(name) is None:
            keys |= next(({name: keys[other]} for other in others if keys.get(other) is not None), {})
    if keys.get("intermediate_size") is None and "rms_norm_eps" not in keys:
        keys["intermediate_size"] = 4 * config.of(keys).count("hidden_size")
    return config.of(keys)


class Architecture(NamedTuple):
    """A family of models."""

    shapes: Callable[[Config], Shapes]
    """The section `model` of a workload. Raises InputError."""
    left_out: tuple[str, ...] = ()
    """What of the model a workload cannot say, in words."""


PARTLY_ROTARY = "rotary positions of a part of each head"
ARCHITECTURES = {  # transformers, models/<model_type>/configuration_<model_type>.py, where nothing else is said
    "bert": Architecture(_bert, ("the embedding of segments", "the pooler")),
    "deepseek_v2": Architecture(_deepseek),  # deepseek-ai/DeepSeek-V2
    "deepseek_v3": Architecture(_deepseek_v3),  # and R1
    "gemma": Architecture(_gemma),
    "gemma2": Architecture(_gemma2, ("caps of the logits of attention and head",)),
    "gemma3": Architecture(_gemma3, ("the vision encoder",)),
    "gemma3_text": Architecture(_gemma3),
    "glm": Architecture(_glm, (PARTLY_ROTARY,)),  # GLM-4 9B
    "glm4": Architecture(_glm4, (PARTLY_ROTARY,)),  # GLM-4-0414
    "glm4_moe": Architecture(_glm4_moe, (PARTLY_ROTARY,)),  # GLM-4.5
    "gpt2": Architecture(_gpt2),
    "gpt_neox": Architecture(  # and Pythia
        _gpt_neox,
        (
            "parallel residuals: both halves of a block run one after the other",
            PARTLY_ROTARY,
        ),
    ),
    "gpt_oss": Architecture(_gpt_oss, ("attention sinks, one number a head", "biases of experts")),
    "grok-1": Architecture(_grok),  # xai-org/grok-1, run.py; hpcai-tech/grok-1, configuration_grok_1.py
    "kimi_k2": Architecture(_deepseek),  # moonshotai/Kimi-K2-Base
    "llama": Architecture(_llama),  # 1 to 3
    "llama4": Architecture(_llama4, ("the vision encoder", "norms of queries and keys, which have no weights")),
    "llama4_text": Architecture(_llama4, ("the vision encoder", "norms of queries and keys, which have no weights")),
    "mistral": Architecture(_mistral),
    "mixtral": Architecture(_mixtral),
    "nemotron": Architecture(_nemotron),  # Nemotron-4 and Minitron
    "opt": Architecture(_opt),
    "phi3": Architecture(_mistral),  # and Phi-4
    "qwen2": Architecture(_qwen2),  # and Qwen2.5
    "qwen2_5_vl": Architecture(_qwen2, ("the vision encoder",)),
    "qwen2_moe": Architecture(_qwen2_moe, ("the gate of the shared expert, one weight a channel",)),  # and Qwen1.5-MoE
    "qwen3": Architecture(_qwen3),
    "qwen3_moe": Architecture(_qwen3_moe),
    "qwen3_vl": Architecture(_qwen3, ("the vision encoder",)),
    "qwen3_vl_moe": Architecture(_qwen3_moe, ("the vision encoder",)),
    "switch_transformers": Architecture(_switch, ("relative positions",)),
    "t5": Architecture(_t5, ("relative positions",)),  # and T5 v1.1
}
"""By `model_type`."""


def architecture(config: Config) -> Architecture:
    """Return the family of a config; of one that is not built in the decoder that its keys describe. Raises InputError."""
    if config.kind in ARCHITECTURES:
        return ARCHITECTURES[config.kind]
    if not config.kind:
        raise InputError(
            f"{config.path}: model_type {shown(config.kind)} is not built in; {suggest('', ARCHITECTURES)}"
        )
    norm = "RMSNorm" if "rms_norm_eps" in text_model(config).keys else "LayerNorm"
    own = f"what the code of {config.kind} does otherwise than a decoder with {norm} before each half"
    return Architecture(_by_keys, (own, *["the vision encoder"] * ("vision_config" in config.keys)))
