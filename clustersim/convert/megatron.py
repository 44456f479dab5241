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
    """Return the key and value conversion of an alias, or None if `key` is not an alias."""
    return ALIASES.get(key.replace("-", "_"))


def refused(key: str, value: object) -> str | None:
    """Return the remedy for an argument without a workload key; None if the argument has a key, or its value turns it off."""
    remedy = REMEDIES.get(key)
    return None if remedy is None or value in (None, False, 0) else remedy


def translated(given: Mapping[str, object]) -> dict[str, object]:
    """Return arguments under Megatron's names; other programs' arguments unchanged."""
    found = dict(given)
    if not found.get("deepspeed"):
        return found
    experts, layers = found.get("num_experts", 1), found.get("num_layers")
    if experts in (1, True):
        return {name: value for name, value in found.items() if name not in OF_EXPERTS}
    if "topk" in found:
        found["moe_router_topk"] = found.pop("topk")
    every = found.pop("expert_interval", INTERVAL)
    if isinstance(layers, int) and layers <= LONGEST and isinstance(every, int) and every > 1:
        found["moe_layer_freq"] = [int((layer + 1) % every == 0) for layer in range(layers)]
    hidden = found.get("hidden_size")
    if found.pop("mlp_type", "") == "residual" and isinstance(hidden, int):
        found["moe_shared_expert_intermediate_size"] = found.get("ffn_hidden_size", 4 * hidden)
    if not found.pop("disable_moe_token_dropping", False):
        found.setdefault("moe_train_capacity_factor", 1.0)
    return found


def implied(given: Mapping[str, object], pp: int) -> dict[str, tuple[object, str]]:
    """Return {workload key: (value, reason)} where DeepSpeed differs from Megatron."""
    if not given.get("deepspeed"):
        return {}
    found = dict[str, tuple[object, str]]()
    found["training.attention"] = "unfused", "Megatron-DeepSpeed's without --use-flash-attn"
    if given.get("zero_stage") == 2 and pp == 1:
        found["parallelism.reduce_every_microbatch"] = True, "DeepSpeed's of ZeRO-2"
    if given.get("zero_stage") == 3:
        found["parallelism.zero3"] = {}, "DeepSpeed's buckets, as its zero_optimization has them by default"
    return found


class Ignored(NamedTuple):
    """Ignored arguments of a file, as written there: those without effect on time, and those not modelled."""

    no_effect: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()


NOTHING = Ignored()


def sorted_out(keys: Iterable[object]) -> Ignored:
    """Return the ignored ones among `keys` by reason; hyphens count as underscores."""
    names = {str(key): str(key).rsplit(".", 1)[-1].replace("-", "_") for key in keys}
    return Ignored(*(tuple(key for key, name in names.items() if name in kind) for kind in (NO_EFFECT, NOT_MODELLED)))
