"""Megatron's arguments: names, conversion of values (`tables/megatron.csv`), and ignored ones.

An alias may stand at the top level or in any section, with hyphens or underscores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from clustersim.convert.conversions import rows
from clustersim.convert.megatron_groups import LONGEST
from clustersim.convert.table import Alias, records, words

ALIASES: Mapping[str, Alias] = rows("megatron")
"""{argument: the workload key that it sets}"""
REMEDIES = {row["argument"]: row["remedy"] for row in records("megatron_remedies")}
"""{argument without counterpart: what to write instead}"""
YIELDS = {name: frozenset(row.columns["unless"].split()) for name, row in ALIASES.items() if row.columns["unless"]}
"""{argument: more precise arguments that override it}"""
NEEDS = {name: frozenset(row.columns["with"].split()) for name, row in ALIASES.items() if row.columns["with"]}
"""{argument: arguments without which it has no effect}"""
INTERVAL = 2
"""Default interval of layers with experts: every second layer."""
OF_EXPERTS = words("megatron_deepspeed_experts.txt")
"""Arguments that have no effect without experts."""
NO_EFFECT = frozenset(words("megatron_no_effect.txt"))
"""Arguments that do not change a step's time: learning rates, data, tokenizers, checkpoints, logs, numerics, redundant ones."""
NOT_MODELLED = frozenset(words("megatron_not_modelled.txt"))
"""Arguments of fusions, CUDA graphs and overlaps that change a step slightly, and are not modelled."""


def find(key: str) -> Alias | None:
    """Return the row of an argument, in underscores or hyphens; None if no workload key corresponds to it."""
    return ALIASES.get(key.replace("-", "_"))


def refused(key: str, value: object) -> str | None:
    """Return the remedy for an argument that is refused, as no workload key expresses it. key: its name with underscores.
    None for all others, also unknown ones and those of NOT_MODELLED, and if `value` (None, False or 0) turns it off."""
    remedy = REMEDIES.get(key)
    return None if remedy is None or value in (None, False, 0) else remedy


def translated(options: Mapping[str, object]) -> dict[str, object]:
    """Return {argument: value} in Megatron's terms. Arguments of Megatron-DeepSpeed are converted, all others are unchanged."""
    result = dict(options)
    if not result.get("deepspeed"):
        return result
    experts, layers = result.get("num_experts", 1), result.get("num_layers")
    if experts in (1, True):
        return {name: value for name, value in result.items() if name not in OF_EXPERTS}
    if "topk" in result:
        result["moe_router_topk"] = result.pop("topk")
    every = result.pop("expert_interval", INTERVAL)
    if isinstance(layers, int) and layers <= LONGEST and isinstance(every, int) and every > 1:
        result["moe_layer_freq"] = [int((layer + 1) % every == 0) for layer in range(layers)]
    hidden = result.get("hidden_size")
    if result.pop("mlp_type", "") == "residual" and isinstance(hidden, int):
        result["moe_shared_expert_intermediate_size"] = result.get("ffn_hidden_size", 4 * hidden)
    if not result.pop("disable_moe_token_dropping", False):
        result.setdefault("moe_train_capacity_factor", 1.0)
    return result


def implied(options: Mapping[str, object], pp: int) -> dict[str, tuple[object, str]]:
    """Return {workload key: (value, reason)} of DeepSpeed's own defaults, for `pp` stages; {} without `deepspeed`."""
    if not options.get("deepspeed"):
        return {}
    keys = dict[str, tuple[object, str]]()
    keys["training.attention"] = "unfused", "Megatron-DeepSpeed's without --use-flash-attn"
    if options.get("zero_stage") == 2 and pp == 1:
        keys["parallelism.reduce_every_microbatch"] = True, "DeepSpeed's of ZeRO-2"
    if options.get("zero_stage") == 3:
        keys["parallelism.zero3"] = {}, "DeepSpeed's buckets, as its zero_optimization has them by default"
    return keys


class Ignored(NamedTuple):
    """Ignored arguments of a file, as written there: those without effect on time, and those not modelled."""

    no_effect: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()


NOTHING = Ignored()
"""No ignored arguments."""


def sorted_out(keys: Iterable[object]) -> Ignored:
    """Return the `keys` that are ignored arguments, by reason. Hyphens count as underscores; sections do not count."""
    names = {str(key): str(key).rsplit(".", 1)[-1].replace("-", "_") for key in keys}
    return Ignored(*(tuple(key for key, name in names.items() if name in kind) for kind in (NO_EFFECT, NOT_MODELLED)))
