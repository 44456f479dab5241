"""Megatron's arguments that have an effect only together: latent attention, layers with experts or in bf16, groups of
microbatches, and Megatron-FSDP.

Sources: megatron/training/arguments.py (`moe_freq_type`, `data_parallel_sharding_strategy`),
megatron/core/models/gpt/gpt_layer_specs.py (`moe_layer_pattern`), megatron/core/transformer/transformer_config.py
(MLATransformerConfig).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from clustersim.config.yaml import Loc
from clustersim.convert.arithmetic import UNREADABLE, evaluated
from clustersim.convert.decoders import runs, single_names
from clustersim.convert.layout_text import stages_of
from clustersim.convert.table import words
from clustersim.errors import InputError, shown

LATENT: dict[str, int | None] = {"q_lora_rank": None, "kv_lora_rank": 32, "qk_head_dim": 128}
LATENT |= {"qk_pos_emb_head_dim": 64, "v_head_dim": 128}
"""Widths of latent attention with their defaults; they have no effect without `multi_latent_attention`."""
STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""{data_parallel_sharding_strategy of Megatron-FSDP: parallelism.zero}; the last one is the default."""
IN_PLACE = {"copy_out": False, "copy_in": False}
"""Keys for Megatron-FSDP, which gathers and reduces in the tensors' own buffers (core/distributed/fsdp, README)."""
SHARDED = frozenset({"use_megatron_fsdp", "use_custom_fsdp"})
"""Names of the argument that selects Megatron-FSDP."""
ENDS = {"num_layers_at_start_in_bf16": "bf16_first_layers", "num_layers_at_end_in_bf16": "bf16_last_layers"}
"""{argument for the number of layers that stay in bf16: our key}; 1 by default, 0 without `first_last_layers_bf16`."""
ROUNDS = ("microbatch_group_size_per_vp_stage", "microbatch_group_size_per_virtual_pipeline_stage")
"""Names of the number of microbatches per chunk of an interleaved schedule, in config and arguments."""
CHUNKED = {"vpp", "virtual_pipeline_model_parallel_size"}
CHUNKED |= {f"num_{name}" for name in ("virtual_stages_per_pipeline_rank", "layers_per_virtual_pipeline_stage")}
"""Names that give a pipeline rank several chunks; without one, groups of microbatches have no effect."""
OFFLOADED = ("optimizer_cpu_offload", "cpu_optimizer")
"""Names that move the optimizer to the host; other offload arguments have no effect without one."""
HYBRID = ("hybrid_layer_pattern", "hybrid_override_pattern")
"""Names of the layer pattern, such as `M-M*-`, where `|` ends a stage (core/models/hybrid/hybrid_layer_allocation.py)."""
MAMBA = {"mamba_head_dim": 64, "mamba_state_dim": 128, "mamba_num_groups": 8, "mamba_num_heads": None}
"""Shapes of a Mamba-2 layer with their defaults; heads follow from twice the width, chunks are 128 (ssm/mamba_mixer.py)."""
DELTA = {name: key for key, name in single_names("delta").items()}
"""{Megatron's argument: key of `model.delta`}"""
GROUPED = frozenset(words("megatron_grouped.txt"))
UNDER_LATENT = frozenset({"kv_channels", "qk_layernorm", "num_query_groups"})
"""Arguments that do not apply to latent attention, which has its own widths and norms."""
PATTERNS = {"moe_layer_freq": (0, 1), "no_rope_freq": (1, 1)}
PATTERNS |= dict.fromkeys(("window_attn_skip_freq", "linear_attention_freq"), (1, 0))
"""{argument that differs by layer: (first layer index, 0 or 1; flag of each n-th layer)}"""
WINDOW = re.compile(r"\(?\s*(-?[0-9]{1,9})\s*(,|\)|$)")
LONGEST = 10_000
"""Largest number of layers of a pattern."""


class GroupError(InputError):
    """Error in one of the arguments, with its name, by which callers find the position."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} {why}")
        self.name, self.why = name, why


class GroupedKey(NamedTuple):
    """A workload key that a group of arguments sets, and its value. `name` is one of them, for the position of errors."""

    name: str
    key: Loc
    value: object


def silent(name: str, options: Mapping[str, object]) -> bool:
    """Return whether argument `name` among `options` sets no key by itself: its group does, or another argument overrides it."""
    if name == "schedule":
        return options.get(name) == "interleaved" and any(_rounds(options))
    if name in ("moe_token_dispatcher_type", "moe_flex_dispatcher_backend"):  # the latter has an effect with flex alone
        flex = options.get("moe_token_dispatcher_type") == "flex" and "moe_flex_dispatcher_backend" in options
        return flex == (name == "moe_token_dispatcher_type")
    if name == "no_position_embedding":  # others are not learned, so that there is nothing to leave out
        return bool({"position_embedding_type", "use_rotary_position_embeddings"} & options.keys())
    return name in GROUPED or (name in UNDER_LATENT and bool(options.get("multi_latent_attention")))


def grouped_keys(options: Mapping[str, object]) -> list[GroupedKey]:
    """Return the workload keys that groups of arguments, {name: value}, set. Raises GroupError for an invalid value."""
    groups = (_encoder, _latent, _hybrid, _layers, _sharded, _ends, _rounds, _offloaded)
    return [key for group in groups for key in group(options)]


def _offloaded(options: Mapping[str, object]) -> Iterator[GroupedKey]:
    """Yield the keys of `training.offload`: share of the optimizer on the host, and layers whose activations are there."""
    offload = "training", "offload"
    if name := next((candidate for candidate in OFFLOADED if options.get(candidate) is True), None):
        yield GroupedKey(name, (*offload, "optimizer_states"), options.get("optimizer_offload_fraction", 1.0))
        yield GroupedKey(name, (*offload, "overlap"), options.get("overlap_cpu_optimizer_d2h_h2d", False))
    if options.get("cpu_offloading"):
        layers, moved = options.get("num_layers") or options.get("layers"), options.get("cpu_offloading_num_layers")
        known = isinstance(layers, int) and isinstance(moved, int) and 0 <= moved <= layers
        yield GroupedKey("cpu_offloading", (*offload, "activations"), moved / layers if known else 1.0)  # type: ignore[operator]


def _rounds(options: Mapping[str, object]) -> Iterator[GroupedKey]:
    """Yield the schedule with the size of its microbatch groups; nothing without such a size, or for one chunk per rank."""
    name = next((candidate for candidate in ROUNDS if options.get(candidate) is not None), None)
    layout = options.get("layout") or options.get("pipeline_model_parallel_layout")
    stages = options.get("pp") or options.get("pipeline_model_parallel_size")
    chunked = any(options.get(candidate) not in (None, 1) for candidate in CHUNKED)
    if isinstance(layout, str) and isinstance(stages, int):
        with suppress(InputError):  # which is told where the layout is checked
            chunked = stages_of(layout) > stages
    if name and chunked:
        yield GroupedKey(name, ("parallelism", "schedule"), f"interleaved/{options[name]}")


def _ends(options: Mapping[str, object]) -> Iterator[GroupedKey]:
    """Yield the numbers of first and last layers that stay in bf16; nothing without `first_last_layers_bf16`."""
    for name, key in ENDS.items() if options.get("first_last_layers_bf16") else ():
        yield GroupedKey("first_last_layers_bf16", ("training", key), options.get(name, 1))


def _latent(options: Mapping[str, object]) -> Iterator[GroupedKey]:
    """Yield the widths of latent attention; nothing without `multi_latent_attention`."""
    if options.get("multi_latent_attention"):
        widths = {name: options.get(name, default) for name, default in LATENT.items()}
        yield GroupedKey("multi_latent_attention", ("model", "mla"), widths)


def _sharded(options: Mapping[str, object]) -> Iterator[GroupedKey]:
    """Yield the keys of Megatron-FSDP's sharding, nothing without it. Raises GroupError for an unknown strategy."""
    name = next((candidate for candidate in sorted(SHARDED) if options.get(candidate)), None)
    if name is None:
        return
    strategy = options.get("data_parallel_sharding_strategy", "optim_grads_params")
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        why = f"{shown(strategy)} is not a strategy; write {', '.join(STRATEGIES)}"
        raise GroupError("data_parallel_sharding_strategy", why)
    yield GroupedKey(name, ("parallelism", "zero"), STRATEGIES[strategy])
    if strategy == "optim_grads_params":
        two_buffers = options.get("fsdp_double_buffer")
        ahead = {"forward_prefetch": 1} if two_buffers else {}  # one block is gathered while another runs
        yield GroupedKey(name, ("parallelism", "fsdp"), {**IN_PLACE, **ahead})


def _encoder(options: Mapping[str, object]) -> Iterator[GroupedKey]:
    """Yield the layers and tokens of the encoder of an encoder-decoder (T5); nothing for other models."""
    keys = {"encoder_num_layers": ("model", "encoder_layers"), "encoder_seq_length": ("training", "encoder_seq")}
    for name in keys if "decoder_num_layers" in options else ():
        if name in options:
            yield GroupedKey(name, keys[name], options[name])


def _hybrid(options: Mapping[str, object]) -> Iterator[GroupedKey]:
    """Yield the keys of a pattern, with a block for each letter; nothing without one. Raises GroupError for unknown letters."""
    name = next((candidate for candidate in HYBRID if options.get(candidate)), None)
    if name is None:
        return
    stages, width = str(options[name]).split("|"), options.get("hidden_size")
    dense = {"experts": 0} if options.get("num_experts") else {}
    attention: dict[str, object] = {"feed_forward": False}
    kinds = {"M": {"mixer": "mamba2", **attention}, "*": attention}
    kinds |= {"-": {"mixer": "none", **dense}, "E": {"mixer": "none"}}
    letters = "".join(stages)
    if wrong := sorted(set(letters) - kinds.keys()):
        raise GroupError(name, f"{shown(options[name])} has {wrong[0]!r}; layers are {' '.join(kinds)}, | ends a stage")
    yield GroupedKey(name, ("model", "layers"), len(letters))
    yield GroupedKey(name, ("model", "blocks"), runs([kinds[letter] for letter in letters]))
    if "M" in letters and isinstance(width, int):
        head, state, groups, heads = (options.get(key, default) for key, default in MAMBA.items())
        heads = heads or 2 * width // int(str(head))
        shapes = {"heads": heads, "head_dim": head, "state": state, "groups": groups, "chunk": 128}
        yield GroupedKey(name, ("model", "mamba"), shapes)
    if len(stages) > 1:
        layout = "|".join("t" * len(stage) for stage in stages)
        yield GroupedKey(name, ("parallelism", "layout"), f"E{layout}L")


def _layers(options: Mapping[str, object]) -> Iterator[GroupedKey]:
    """Yield the layers with experts (moe_layer_freq, every n-th from the first), with full attention instead of a window
    (window_attn_skip_freq, every n-th) and without rotary positions (no_rope_freq, every n-th), or by patterns such as
    `([0]*3+[1]*58)` (megatron/core/transformer/utils.py, is_layer_window_attention)."""
    window, layers = _window(options.get("window_size")), options.get("num_layers") or options.get("layers")
    names = [name for name in PATTERNS if options.get(name) not in (None, False, 0)]
    names = [name for name in names if name != "moe_layer_freq" or options[name] not in (1, "1")]
    names = [name for name in names if name != "window_attn_skip_freq" or window]
    if window and "window_attn_skip_freq" not in names:
        yield GroupedKey("window_size", ("model", "window"), window)
    if not names or not isinstance(layers, int) or not 0 < layers <= LONGEST:
        return  # the validation of the number of layers reports its error
    flags = {name: frequency(name, options[name], layers) for name in names}
    width = options.get("ffn_hidden_size")
    dense = {"experts": 0, **({"ffn": width} if width else {})}
    experts = flags.get("moe_layer_freq", [])
    if names == ["moe_layer_freq"] and experts == sorted(experts) and len(set(experts)) == 2:
        yield GroupedKey(names[0], ("model", "dense_layers"), experts.count(0))
        if width:
            yield GroupedKey(names[0], ("model", "dense_ffn"), width)
        return
    kinds: dict[str, tuple[dict[str, object], ...]] = {"moe_layer_freq": (dense, {})}
    kinds |= {"window_attn_skip_freq": ({}, {"window": window}), "no_rope_freq": ({}, {"positions": "none"})}
    kinds["linear_attention_freq"] = ({}, {"mixer": "delta"})
    if "linear_attention_freq" in names:
        if options.get("experimental_attention_variant") != "gated_delta_net":
            why = "is understood with experimental_attention_variant gated_delta_net alone"
            raise GroupError("linear_attention_freq", why)
        delta = {ours: options[name] for name, ours in DELTA.items() if name in options}
        yield GroupedKey(names[0], ("model", "delta"), delta)
    chosen = ([kinds[name][flags[name][at]] for name in names] for at in range(layers))
    merged = [{key: value for kind in layer for key, value in kind.items()} for layer in chosen]
    yield GroupedKey(names[0], ("model", "blocks"), runs(merged))


def _window(window: object) -> int:
    """Return the number of keys that a query sees, including itself, from widths on both sides such as `127,0`; 0 for all.

    Raises GroupError for an invalid or unsupported window.
    """
    if window in (None, True, False):
        return 0
    match = WINDOW.match(",".join(map(str, window)) if isinstance(window, list | tuple) else str(window))
    if match is None:
        raise GroupError("window_size", f"{shown(window)} is not a window; write two widths, such as 128,0")
    return max(int(match[1]) + 1, 0)


def frequency(name: str, value: object, layers: int) -> list[int]:
    """Return the flag, 0 or 1, of each layer for argument `name`: a number or a pattern. Raises GroupError if it is invalid."""
    number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if isinstance(number, int) and not isinstance(number, bool) and number > 0:
        first, hit = PATTERNS[name]
        return [hit if (layer + first) % number == 0 else 1 - hit for layer in range(layers)]
    try:
        flags = list(value) if isinstance(value, list) else evaluated(str(value).strip())
    except UNREADABLE as error:
        raise GroupError(name, f"{shown(value)} is not a layer pattern; write a number or ([0]*3+[1]*58)") from error
    if not isinstance(flags, list) or len(flags) != layers or any(flag not in (0, 1) for flag in flags):
        raise GroupError(name, f"{shown(value)} is not a list of {layers} zeros and ones, one for each layer")
    return [int(flag == 1) for flag in flags]
