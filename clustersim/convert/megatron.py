"""Megatron's names of arguments, how their values read here (`tables/megatron.csv`), and which of them are ignored.

An alias may stand at the top level or in any section, with hyphens or underscores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from clustersim.convert.conversions import rows
from clustersim.convert.megatron_groups import LONGEST
from clustersim.convert.table import Alias, records, words

ALIASES: Mapping[str, Alias] = rows("megatron")
"""Names of arguments, each with the key of a workload that it sets."""

REMEDIES = {row["argument"]: row["remedy"] for row in records("megatron_remedies")}
"""Names that have no counterpart, and what to write instead."""

YIELDS = {name: frozenset(row.columns["unless"].split()) for name, row in ALIASES.items() if row.columns["unless"]}
"""Names that Megatron takes together with a more precise one, which decides."""
NEEDS = {name: frozenset(row.columns["with"].split()) for name, row in ALIASES.items() if row.columns["with"]}
"""Names that say nothing without one of these."""


def find(key: str) -> Alias | None:
    """Return where an alias belongs and how its value converts, or None when `key` is no alias."""
    return ALIASES.get(key.replace("-", "_"))


def refused(key: str, value: object) -> str | None:
    """Return the key to write instead of a name that has no counterpart; None for other names, and where it is off."""
    remedy = REMEDIES.get(key)
    return None if remedy is None or value in (None, False, 0) else remedy


INTERVAL = 2
"""Every second layer has experts by default."""
OF_EXPERTS = words("megatron_deepspeed_experts.txt")
"""Arguments that say nothing without experts."""


def translated(given: Mapping[str, object]) -> dict[str, object]:
    """Return arguments as Megatron would be given them; those of other programs as they are."""
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
    """Return the keys of a workload that DeepSpeed has otherwise than Megatron, each with its value and why."""
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
    """Arguments of a file that were left out, as written there: those without effect on time, and those not modelled."""

    no_effect: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()


NOTHING = Ignored()


def sorted_out(keys: Iterable[object]) -> Ignored:
    """Return which of some keys are ignored, and why; hyphens count as underscores."""
    names = {str(key): str(key).rsplit(".", 1)[-1].replace("-", "_") for key in keys}
    return Ignored(*(tuple(key for key, name in names.items() if name in kind) for kind in (NO_EFFECT, NOT_MODELLED)))


NO_EFFECT = frozenset(words("megatron_no_effect.txt"))
"""Learning rates, data, tokenizers, checkpoints, logs, numerics, what other arguments say in full: a step takes as long with them
as without."""

NOT_MODELLED = frozenset(words("megatron_not_modelled.txt"))
"""Fusions, CUDA graphs and overlaps that change a step somewhat, and that clustersim does not tell apart."""
