"""What DeepSeek-V2, V3 and Kimi K2 have in common: latent attention, first layers without experts, experts for all tokens."""

from __future__ import annotations

from clustersim.convert.architectures._decoder import experts, llama, optional
from clustersim.convert.hugging_face import Config
from clustersim.errors import InputError


def deepseek(config: Config) -> dict[str, object]:
    """Return the shapes from the keys of configuration_deepseek.py."""
    if config.count("moe_layer_freq", default=1) != 1:
        raise InputError(
            f"{config.path}: moe_layer_freq other than 1 is not supported; write the workload with model.blocks"
        )
    found = llama(config)
    for name in ("kv_heads", "head_dim"):
        found.pop(name, None)
    shared, dense = config.index("n_shared_experts", 0), config.index("first_k_dense_replace", 0)
    first = {"dense_layers": dense, "dense_ffn": found["ffn"]} if dense else {}
    groups = config.count("n_group", default=1)
    chosen = {"router_groups": groups, "router_group_topk": config.count("topk_group")} if groups > 1 else {}
    return {
        **found,
        **chosen,
        "mla": latent(config),
        **experts(config, "n_routed_experts"),
        "ffn": config.count("moe_intermediate_size"),
        "shared_experts": shared,
        **first,
    }


def latent(config: Config) -> dict[str, int]:
    """Return the widths of latent attention."""
    return {
        **optional(config, "q_lora_rank", "q_lora_rank"),
        "kv_lora_rank": config.count("kv_lora_rank"),
        "qk_head_dim": config.count("qk_nope_head_dim"),
        "qk_pos_emb_head_dim": config.count("qk_rope_head_dim"),
        "v_head_dim": config.count("v_head_dim"),
    }
