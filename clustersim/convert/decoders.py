"""A decoder from the keys of its config.json: one reader for all families, with a row each for the choices of its code.

Differences between layers are read by rules, each of which returns one mapping per layer: windows, positions, experts, mixers. An
unread key that may change shapes raises an InputError that names it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

from clustersim.convert.hugging_face import Config
from clustersim.convert.table import records, records_of, words
from clustersim.errors import InputError, shown

Shapes = dict[str, object]
"""Keys of a workload's section `model`, or changed keys of one layer, with their values."""
PLAIN, GATED = ({row["name"]: row[kind] for row in records("activations") if row[kind]} for kind in ("plain", "gated"))
"""{hidden_act: activation}, without a gate (PLAIN) and with one (GATED)."""
TYPES = ("full_attention", "sliding_attention", "chunked_attention")
"""Values of `layer_types` for attention layers."""
LINEAR = {"mamba": "mamba2", "linear_attention": "delta", "conv": "conv", "short_conv": "conv"}
"""Value of `layer_types` → mixer, for layers without attention over tokens."""


def names_of(section: str) -> dict[str, tuple[str, ...]]:
    """Return {key of a section: its names in a config.json}."""
    return {row["key"]: tuple(row["names"].split()) for row in records("hugging_face") if row["section"] == section}


def single_names(section: str) -> dict[str, str]:
    """Return {key of a section: its single name in a config.json}."""
    return {key: name for key, (name,) in names_of(section).items()}


KEYS = names_of("model")
"""{key of this project: its names in decoders}"""
WIDTHS = ("moe_intermediate_size", "expert_ffn_hidden_size", *KEYS["ffn"])
"""Names of the width of one expert."""
LATENT = single_names("mla")
"""Keys of latent attention."""
STATE_SPACE = names_of("mamba")
"""Keys of a state space; the inner width is heads times their width."""
INNER = ("mamba_expand", "mamba_d_ssm", "expand")
"""Names of the inner width, or of its ratio to hidden_size."""
FLAGS: dict[str, tuple[str, ...]] = {"qkv_bias": ("attention_bias", "use_qkv_bias", "qkv_bias")}
FLAGS |= {"bias": ("mlp_bias", "use_bias", "bias")}
FLAGS |= {"qk_norm": ("use_qk_norm", "qk_norm", "qk_layernorm", "use_qk_layernorm", "qk_ln")}
"""{boolean key of `model`: its names in decoders}. `bias` follows `qkv_bias`, whose default is the family's value of `bias`."""
NEUTRAL = re.compile(f"_?(?:{'|'.join(words('hugging_face_neutral.txt'))})")
"""Pattern of keys that change no shape: types, tokens, rates, rotary positions, scales, router scores, other inputs."""


class Architecture(NamedTuple):
    """A row of the table of architectures: choices of a family's code that its config does not contain."""

    left_out: tuple[str, ...] = ()
    """Features of the model that a workload cannot express, in words."""
    fixed: Mapping[str, object] = {}
    """Keys of a workload's `model` that all models of the family share."""
    defaults: Mapping[str, object] = {}
    """Default values of keys of a config.json."""
    gate: bool = True
    """Whether a second linear of the MLP gates the first one."""
    rules: tuple[Callable[[Config, int], list[Shapes]], ...] = ()
    """Rules for layers in addition to those of all decoders: functions (config, layers) -> changes of each layer."""
    more: Callable[[Config, Shapes], Shapes] = lambda _, shapes: shapes
    """Function from shapes to those of the whole model that depend on others."""
    experts: str | None = ""
    """Key that a mixture must have; None: no model of the family has experts, and a file with experts is refused."""
    sections: tuple[str, ...] = ()
    """Nested objects whose keys count as keys of the file."""
    ignored: tuple[str, ...] = ()
    """Additional keys that change no shape in this family."""
    reader: Callable[[Config], Shapes] | None = None
    """Reader of the whole file, for models that the reader of decoders does not support."""

    def shapes(self, config: Config) -> Shapes:
        """Return the section `model` of a workload. Raises InputError for invalid keys, and for unread keys of shapes."""
        config = text_model(config, self.sections)
        present = {key: value for key, value in config.keys.items() if value is not None}
        config = config.with_keys({**self.defaults, **present})
        shapes = self.reader(config) if self.reader else decoder(config, self)
        unread(config, self)
        return shapes


def families(module: str) -> dict[str, Architecture]:
    """Return {model_type: architecture} of the table. module: name of another one with its functions."""
    named = globals() | vars(sys.modules[module])

    def read(key: str, value: object) -> object:
        """Return a value of the table with the functions that it names."""
        if isinstance(value, list):
            return tuple(named[str(item)] if key == "rules" else item for item in value)
        return named[str(value)] if key in ("more", "reader") else value

    defaults, table = Architecture._field_defaults, records_of("architectures").items()
    rows = {kind: {**defaults, **{key: read(key, value) for key, value in row.items()}} for kind, row in table}
    return {kind: Architecture._make(row.values()) for kind, row in rows.items()}


def text_model(config: Config, sections: Iterable[str] = ()) -> Config:
    """Return a config with the keys of `text_config` and `sections` at the top. Raises InputError unless these are mappings."""
    keys = dict(config.keys)
    for name in ("text_config", *sections):
        part = keys.pop(name, {})
        if not isinstance(part, dict):
            raise InputError(f"{config.path}: {name} is {shown(part)}; it holds the keys of the text model")
        keys |= part
    return config.with_keys({**keys, "model_type": config.kind})


def unread(config: Config, family: Architecture) -> None:
    """Raise InputError for keys that are set, were not read, and may change shapes: neither NEUTRAL nor ignored by the family."""
    on = [key for key, value in config.keys.items() if value not in (None, False, 0, "", [], {})]
    if left := [key for key in on if key not in {*config.read, *family.ignored} and not NEUTRAL.fullmatch(key)]:
        what = ", ".join(left[:4]) + (f" and {len(left) - 4} more" if len(left) > 4 else "")
        why = f"not read for model_type {config.kind!r}, and may change its shapes"
        raise InputError(
            f"{config.path}: {what}: {why}; write a workload with model.blocks, or remove what has no weights"
        )


def decoder(config: Config, family: Architecture) -> Shapes:
    """Return a decoder's shapes; by default RMSNorm, a gate and rotary positions. Raises InputError for unsupported keys."""
    layers, heads = config.layers(*KEYS["layers"]), config.count(*KEYS["heads"])
    act = [name for name in ("hidden_act", "activation_function", "hidden_activation") if config.get(name)]
    known = GATED if family.gate else {**PLAIN, "xielu": "squared_relu"}
    shapes: Shapes = {"layers": layers, "heads": heads, "norm": "rmsnorm", "positions": "rotary"}
    shapes |= {"hidden": config.count(*KEYS["hidden"]), **attention_shapes(config, heads)}
    shapes |= {"vocab": config.count(*KEYS["vocab"]), **optional(config, "max_positions", *KEYS["max_positions"])}
    default = "silu" if family.gate else "gelu"
    shapes["activation"] = known[config.choice(act[-1] if act else "hidden_act", tuple(known), default)]
    shapes |= family.fixed
    for key, names in FLAGS.items():
        candidates = [name for name in names if name not in family.ignored]
        fallback = shapes.get("bias", False) if key == "qkv_bias" else False
        shapes[key] = config.flag(*candidates, default=bool(shapes.get(key, fallback)))
    if "mla" in shapes:
        del shapes["qk_norm"]
    if shapes["qkv_bias"] == shapes["bias"]:
        del shapes["qkv_bias"]  # the default
    shapes["tied_embeddings"] = config.flag("tie_word_embeddings", "tie_embedding", default=False)
    shapes |= feed_forward(config, family)
    shapes = family.more(config, shapes)
    if "ffn" not in shapes:
        config.count("intermediate_size")
    linear = next((kind for kind in config.listed("layer_types", "words") if kind in LINEAR), None)
    if linear and mixed_layers not in family.rules:
        why = f"layer_types {linear!r} is not supported for model_type {config.kind!r}"
        raise InputError(f"{config.path}: {why}; write a workload with model.blocks")
    rules = (windows, unrotated, sparse_layers, *family.rules)
    each: list[Shapes] = [{} for _ in range(layers)]
    for rule in rules:
        each = [{**layer, **changes} for layer, changes in zip(each, rule(config, layers) or each, strict=True)]
    return by_layer(shapes, each)


def attention_shapes(config: Config, heads: int) -> Shapes:
    """Return the keys of key/value heads and of a head's width, or of latent attention and its indexer. heads: query heads."""
    if config.get("kv_lora_rank") is None:
        key_value = {"kv_heads": config.count(*KEYS["kv_heads"], default=heads)}
        return {**key_value, **optional(config, "head_dim", *KEYS["head_dim"])}
    for name in (*KEYS["kv_heads"], *KEYS["head_dim"], "qk_head_dim"):
        config.get(name)
    config.flag("mla_use_nope", default=False)
    latent = {key: config.count(name) for key, name in LATENT.items() if key != "q_lora_rank"}
    shapes: Shapes = {"mla": {**optional(config, "q_lora_rank", "q_lora_rank"), **latent}}
    if config.get("index_topk") is not None:
        indexer = {"heads": config.count("index_n_heads"), "dim": config.count("index_head_dim")}
        shapes |= {"indexer": indexer, "window": config.count("index_topk")}
    return shapes


def feed_forward(config: Config, family: Architecture) -> Shapes:
    """Return the keys of the feed-forward block: its width, or experts, shared experts, router groups and predicted tokens (MTP).

    Return {} for a config without a width. Raises InputError for experts in a family without them.
    """
    if family.experts:
        config.count(family.experts)
    experts = config.index(*KEYS["experts"], default=0)
    if experts > 1 and family.experts is None:
        name = next(name for name in KEYS["experts"] if config.keys.get(name))
        why = f"{name} is {experts}, and model_type {config.kind!r} has no experts"
        raise InputError(f"{config.path}: {why}; write that of a mixture, such as mixtral, or leave it out")
    if experts < 2:
        config.get("num_experts_per_tok")
        return {"ffn": config.count(*KEYS["ffn"])} if optional(config, "ffn", *KEYS["ffn"]) else {}
    groups = config.index(*KEYS["router_groups"], default=1)
    chosen = config.index(*KEYS["router_group_topk"], default=1)
    wide = config.index(*KEYS["shared_ffn"], default=0)
    shared = config.index(*KEYS["shared_experts"], default=1 if wide else 0)
    further = config.index(*KEYS["mtp_layers"], default=0) * config.count("mtp_transformer_layers", default=1)
    further = further if config.flag("use_mtp", default=True) else 0
    shapes: Shapes = {"router_groups": groups, "router_group_topk": chosen} if groups > 1 else {}
    shapes |= {"experts": config.count(*KEYS["experts"]), "topk": config.count(*KEYS["topk"], default=2)}
    shapes |= {"shared_experts": shared, "mtp_layers": further, **({"shared_ffn": wide} if wide and shared else {})}
    fixed = {key: family.fixed[key] for key in ("shared_experts", "mtp_layers") if key in family.fixed}
    return {**shapes, **fixed, "ffn": config.count(*WIDTHS)}


def by_layer(shapes: Shapes, layers: list[Shapes]) -> Shapes:
    """Return shapes with the changes of each layer: to all layers if equal, to the first dense layers, or as blocks."""
    dense = [layer.get("experts") == 0 for layer in layers]
    first = dense.index(False) if False in dense else len(layers)
    if 0 < first < len(layers) and layers == [layers[0]] * first + [{}] * (len(layers) - first):
        return {**shapes, "dense_layers": first, "dense_ffn": layers[0]["ffn"]}
    if any(dense) or layers != layers[:1] * len(layers):
        return {**shapes, "blocks": runs(layers)} if any(layers) else shapes
    return {**shapes, **layers[0]}


def runs(layers: list[Shapes]) -> list[Shapes]:
    """Return the blocks of a workload for a list of layers: the shortest sequence that repeats, with equal neighbours counted."""
    for length in range(1, len(layers) + 1):
        if layers[length:] == layers[:-length]:
            repeated = [(block, len(list(equal))) for block, equal in groupby(layers[:length])]
            return [{**block, **({"count": count} if count > 1 else {})} for block, count in repeated]
    return []


def optional(config: Config, key: str, *names: str) -> dict[str, int]:
    """Return {key: positive integer} of the first name that a config has, {} without one. Raises InputError for another value."""
    return {key: config.count(*names)} if [name for name in names if config.get(name) is not None] else {}


def windows(config: Config, layers: int) -> list[Shapes]:
    """Return {`window`: tokens} of each layer, {} for full attention. Raises InputError if `layer_types` names other layers."""
    kinds = config.listed("layer_types", "words")
    if kinds and len(kinds) != layers:
        raise InputError(f"{config.path}: layer_types must name each of the {layers} layers; list as many")
    for kind in kinds:
        config.with_keys({"layer_types": kind}).choice("layer_types", (*TYPES, "attention", *LINEAR), TYPES[0])
    patterns = ("sliding_window_pattern", "_sliding_window_pattern", "layer_switch")
    every, width = next(filter(None, map(config.get, patterns)), None), config.index("sliding_window", default=0)
    chunk = config.index("attention_chunk_size", default=0)
    flag = config.flag("use_sliding_window", default=True)
    if not kinds and isinstance(every, str):
        kinds = [TYPES[every[layer % len(every)] == "L"] for layer in range(layers)]
    elif not kinds and every is not None:
        step = config.count(*patterns)
        kinds = [TYPES[bool((layer + 1) % step)] for layer in range(layers)]
    wide = {TYPES[1]: width, TYPES[2]: chunk}
    if not flag or not (width or chunk):
        return [{} for _ in range(layers)]
    widths = [wide.get(str(kind), 0) for kind in kinds or [TYPES[1 if width else 2]] * layers]
    return [{"window": window} if window else {} for window in widths]


def unrotated(config: Config, layers: int) -> list[Shapes]:
    """Return {`positions`: `none`} for layers with 0 in `no_rope_layers`, else {}. Raises InputError if it has another length."""
    marks = config.listed("no_rope_layers", "0 and 1") or [1] * layers
    config.get("no_rope_layer_interval")
    if len(marks) != layers:
        raise InputError(f"{config.path}: no_rope_layers must mark each of the {layers} layers; list as many")
    return [{} if mark else {"positions": "none"} for mark in marks]


def sparse_layers(config: Config, layers: int) -> list[Shapes]:
    """Return the keys of a dense MLP for layers without experts (first, listed, or all but each n-th); {} for others."""
    first = config.index(*KEYS["dense_layers"], "moe_layer_start_index", default=0)
    last = config.index("moe_layer_end_index", default=layers - 1)
    steps = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq", "moe_layer_interval")
    step = config.count(*steps, "moe_layer_frequency", default=1)
    config.listed("moe_layers", "numbers of layers")  # interleave_moe_layer_step says the same (Llama 4)
    listed = config.listed("mlp_only_layers", "numbers of layers")
    listed += [layer for layer, kind in enumerate(config.listed("mlp_layer_types", "words")) if kind == "dense"]
    if config.index(*KEYS["experts"], default=0) < 2:
        return [{} for _ in range(layers)]
    flags = [first <= i <= last and (i + 1) % step == 0 and i not in listed for i in range(layers)]
    wide = optional(config, "ffn", "intermediate_size_mlp") or optional(config, "ffn", *KEYS["ffn"])
    return [{} if flag else {"experts": 0, **wide} for flag in flags]


def state_space(config: Config) -> dict[str, int]:
    """Return the section `mamba` of a model: heads, head_dim and state, and groups, conv and chunk if the config has them."""
    for name in INNER:
        config.get(name)
    config.flag("mamba_proj_bias", "use_bias", default=False)
    config.flag("mamba_conv_bias", "use_conv_bias", default=True)
    config.flag("mamba_rms_norm", "rms_norm", default=True)
    config.flag("mamba_norm_before_gate", "norm_before_gate", default=True)
    needed = {key: config.count(*STATE_SPACE[key]) for key in ("heads", "head_dim", "state")}
    extra = {key: optional(config, key, *STATE_SPACE[key]) for key in ("groups", "conv", "chunk")}
    return needed | {key: value for part in extra.values() for key, value in part.items()}


def mixed_layers(config: Config, layers: int) -> list[Shapes]:
    """Return {`mixer`: name} for each layer, {} for attention: by `layer_types`, else attention at every n-th or listed layer."""
    kinds, every = config.listed("layer_types", "words"), config.count("full_attention_interval", default=layers + 1)
    listed = [*config.listed("full_attn_idxs", "layers"), *config.listed("attn_layer_indices", "layers")]
    other = "delta" if config.get("linear_key_head_dim") else "conv" if config.get("conv_L_cache") else "mamba2"
    mixers = [LINEAR.get(str(kind)) for kind in kinds]
    if not kinds:
        mixers = [None if (i + 1) % every == 0 or i in listed else other for i in range(layers)]
    return [{"mixer": kind} if kind else {} for kind in mixers]
