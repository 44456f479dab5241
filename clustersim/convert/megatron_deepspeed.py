"""Arguments of Megatron-DeepSpeed in Megatron's words.

Sources: microsoft/Megatron-DeepSpeed megatron/arguments.py and megatron/model/transformer.py (`expert_interval`), DeepSpeed
runtime/engine.py (ZeRO-2 reduces in every microbatch, ZeRO-3 has no pipeline).
"""

from __future__ import annotations

from collections.abc import Mapping

from clustersim.convert.megatron_groups import LONGEST

INTERVAL = 2
"""Every second layer has experts where nobody says otherwise."""
OF_EXPERTS = (
    "num_experts",
    "topk",
    "expert_interval",
    "mlp_type",
    "moe_train_capacity_factor",
    "disable_moe_token_dropping",
)
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
    found: dict[str, tuple[object, str]] = {
        "training.attention": ("unfused", "Megatron-DeepSpeed's without --use-flash-attn")
    }
    if given.get("zero_stage") == 2 and pp == 1:
        found["parallelism.reduce_every_microbatch"] = True, "DeepSpeed's of ZeRO-2"
    if given.get("zero_stage") == 3:
        found["parallelism.zero3"] = {}, "DeepSpeed's buckets, as its zero_optimization has them by default"
    return found
