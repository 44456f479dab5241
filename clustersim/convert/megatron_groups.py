"""Megatron's arguments that say something only together: latent attention, which layers have experts or stay in bf16, and
Megatron-FSDP.

Sources: megatron/training/arguments.py (`moe_freq_type`, `data_parallel_sharding_strategy`),
megatron/core/models/gpt/gpt_layer_specs.py (`moe_layer_pattern`), megatron/core/transformer/transformer_config.py
(MLATransformerConfig).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import NamedTuple

from clustersim.config.yaml import Loc
from clustersim.convert.architectures import runs
from clustersim.errors import InputError, shown

LATENT: Mapping[str, int | None] = {
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
}
"""Widths of latent attention and their defaults; without `multi_latent_attention` they say nothing."""
STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""What Megatron-FSDP shards by its data_parallel_sharding_strategy, of which the last is the default, as parallelism.zero."""
IN_PLACE = {"copy_out": False, "copy_in": False}
"""Megatron-FSDP gathers into the parameters' own buffers, and reduces those of gradients (core/distributed/fsdp, README)."""
SHARDED = frozenset({"use_megatron_fsdp", "use_custom_fsdp"})
"""Megatron-FSDP by its names."""
ENDS = {"num_layers_at_start_in_bf16": "bf16_first_layers", "num_layers_at_end_in_bf16": "bf16_last_layers"}
"""How many layers stay in bf16, and as what they are known here; 1 by default, 0 without `first_last_layers_bf16`."""
GROUPED = frozenset(
    {
        *LATENT,
        *SHARDED,
        *ENDS,
        "first_last_layers_bf16",
        "multi_latent_attention",
        "moe_layer_freq",
        "data_parallel_sharding_strategy",
        "fsdp_double_buffer",
    }
)
UNDER_LATENT = frozenset({"kv_channels", "qk_layernorm", "num_query_groups"})
"""Arguments that latent attention has no use for: it has widths and norms of its own."""
LONGEST = 10_000
"""Layers of a pattern at most."""


class GroupError(InputError):
    """What is wrong with one of the arguments; name: which, by which errors find the place."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} {why}")
        self.name = name


class Joined(NamedTuple):
    """What arguments say together: the name of one of them, by which errors find the place, a key of a workload, its value."""

    name: str
    key: Loc
    value: object


def silent(name: str, given: Mapping[str, object]) -> bool:
    """Return whether an argument says nothing beside the others: those of groups, and those of attention that is not there."""
    return name in GROUPED or (name in UNDER_LATENT and bool(given.get("multi_latent_attention")))


def joined(given: Mapping[str, object]) -> list[Joined]:
    """Return the keys that those of `given`, by name with underscores, mean. Raises GroupError for one that cannot be."""
    return [*_latent(given), *_experts(given), *_sharded(given), *_ends(given)]


def _ends(given: Mapping[str, object]) -> list[Joined]:
    if not given.get("first_last_layers_bf16"):
        return []
    return [Joined("first_last_layers_bf16", ("training", key), given.get(name, 1)) for name, key in ENDS.items()]


def _latent(given: Mapping[str, object]) -> list[Joined]:
    if not given.get("multi_latent_attention"):
        return []
    widths = {name: given.get(name, default) for name, default in LATENT.items()}
    return [Joined("multi_latent_attention", ("model", "mla"), widths)]


def _sharded(given: Mapping[str, object]) -> list[Joined]:
    """Return the tensors that Megatron-FSDP shards; with two buffers one block is gathered while another runs."""
    name = next((one for one in sorted(SHARDED) if given.get(one)), None)
    if name is None:
        return []
    said = given.get("data_parallel_sharding_strategy", "optim_grads_params")
    if not isinstance(said, str) or said not in STRATEGIES:
        raise GroupError("data_parallel_sharding_strategy", f"{shown(said)} is none; write {', '.join(STRATEGIES)}")
    found = [Joined(name, ("parallelism", "zero"), STRATEGIES[said])]
    if said == "optim_grads_params":
        ahead = {"forward_prefetch": 1} if given.get("fsdp_double_buffer") else {}
        found.append(Joined(name, ("parallelism", "fsdp"), {**IN_PLACE, **ahead}))
    return found


def _experts(given: Mapping[str, object]) -> list[Joined]:
    """Return which layers have experts: every n-th from the first, or those of a pattern such as `([0]*3+[1]*58)`."""
    said, layers = given.get("moe_layer_freq"), given.get("num_layers")
    if said in (None, False, 0, 1, "1") or not isinstance(layers, int) or not 0 < layers <= LONGEST:
        return []  # what is wrong with the number of layers is said where that is validated
    flags = frequency(said, layers)
    width = given.get("ffn_hidden_size")
    if flags == sorted(flags) and len(set(flags)) == 2:
        more = [Joined("moe_layer_freq", ("model", "dense_ffn"), width)] if width else []
        return [Joined("moe_layer_freq", ("model", "dense_layers"), flags.count(0)), *more]
    kinds: tuple[dict[str, object], ...] = ({"experts": 0, **({"ffn": width} if width else {})}, {})
    return [Joined("moe_layer_freq", ("model", "blocks"), runs([kinds[flag] for flag in flags]))]


def frequency(said: object, layers: int) -> list[int]:
    """Return for each layer 1 where it has experts, else 0. Raises GroupError."""
    number = int(said) if isinstance(said, str) and said.strip().isdecimal() else said
    if isinstance(number, int) and not isinstance(number, bool) and number > 0:
        return [int(layer % number == 0) for layer in range(layers)]
    try:
        flags = list(said) if isinstance(said, list) else _value(ast.parse(str(said).strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise GroupError("moe_layer_freq", f"{shown(said)} is no pattern; write a number or ([0]*3+[1]*58)") from error
    if not isinstance(flags, list) or len(flags) != layers or any(flag not in (0, 1) for flag in flags):
        raise GroupError("moe_layer_freq", f"{shown(said)} is no list of {layers} zeros and ones, one for each layer")
    return [int(flag) for flag in flags]


def _value(node: ast.expr) -> object:
    """Return the value of lists of numbers, their sums and repetitions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.List):
        return [_value(one) for one in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        part, times = (left, right) if isinstance(left, list) else (right, left)
        if (
            isinstance(node.op, ast.Mult)
            and isinstance(part, list)
            and isinstance(times, int)
            and len(part) * times <= LONGEST
        ):
            return part * times
    raise ValueError(ast.dump(node)[:100])
