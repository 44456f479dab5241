"""What a model's name says of its blocks: norm, activation, positions, biases, tied embeddings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from clustersim.validate.runs import Run

_PRENORM: Mapping[str, Any] = {"norm": "layernorm", "activation": "gelu", "positions": "learned", "bias": True}
_LLAMA: Mapping[str, Any] = {"norm": "rmsnorm", "activation": "swiglu", "positions": "rotary", "bias": False}


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """A line of models."""

    name: str
    words: tuple[str, ...]
    """How their names begin, in small letters."""
    shapes: Mapping[str, Any]
    """Keys of `model:` in a workload."""
    tied: bool
    dropout: bool
    source: str
    layers: Callable[[Run], Mapping[str, Any]] | None = None
    """Keys of `model:` that follow from the shapes of a run: which of its layers are of which kind."""


_V2 = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128}
"""Latents of DeepSeek-V2 and V3, and of Kimi K2 (their config.json)."""
_DENSE = {"deepseek-v2": (1, 12288), "deepseek-v3": (3, 18432), "deepseek-r1": (3, 18432), "kimi": (1, 18432)}
"""First layers without experts, and their width (config.json: first_k_dense_replace, intermediate_size)."""


def _latent(run: Run) -> Mapping[str, Any]:
    """Return latent attention and the first layers without experts: one in a model that was cut short, as SimuMax's is."""
    count, width = next((found for word, found in _DENSE.items() if _spelled(run.model).startswith(word)), (1, 0))
    dense = count if (run.layers or 0) > 8 * count else 1
    latents = _V2 if (run.hidden or 0) > 2048 else {**_V2, "q_lora_rank": None}  # V2-Lite has none of the queries
    return {"mla": latents, "dense_layers": dense, "dense_ffn": width or 10944}


def _every_other(run: Run) -> Mapping[str, Any]:
    """Return Llama 4's blocks: three of four in windows; with 128 experts every other layer has some, with 16 all."""
    window, dense = {"window": 8192}, {"experts": 0, "ffn": 16384}
    if (run.experts or 0) < 128:
        return {"head_dim": 128, "blocks": [{"count": 3, **window}, {"positions": "none"}]}
    return {"head_dim": 128, "blocks": [{**dense, **window}, window, {**dense, **window}, {"positions": "none"}]}


FAMILIES = (
    ModelFamily(
        "gpt-oss",
        ("gpt-oss",),
        {**_LLAMA, "bias": True, "head_dim": 64, "blocks": [{"window": 128}, {}]},
        False,
        False,
        "GPT-OSS (arXiv 2508.10925, section 2)",
    ),
    ModelFamily("gpt", ("gpt", "opt"), _PRENORM, True, True, "Radford et al. 2019; Megatron-LM pretrain_gpt.py"),
    ModelFamily(
        "mpt",
        ("mpt",),
        {"norm": "layernorm", "activation": "gelu", "positions": "none", "bias": False},
        True,
        False,
        "llm-foundry scripts/train/yamls/pretrain/mpt-*.yaml: ALiBi, no biases",
    ),
    ModelFamily("llama", ("llama", "mistral", "codellama", "yi-"), _LLAMA, False, False, "Touvron et al. 2023"),
    ModelFamily("mixtral", ("mixtral",), _LLAMA, False, False, "Jiang et al. 2024"),
    ModelFamily(
        "nemotron",
        ("nemotron4", "nemotron-4", "nemotron3", "nemotron-3", "nemotron-8b", "nemotron-22b"),
        {"norm": "layernorm", "activation": "squared_relu", "positions": "rotary", "bias": False},
        False,
        False,
        "Nemotron-4 (arXiv 2402.16819): squared ReLU; untied, no biases",
    ),
    ModelFamily(
        "qwen",
        ("qwen2", "qwen-2", "qwen1"),
        {**_LLAMA, "qkv_bias": True},
        False,
        False,
        "Qwen2.5 (arXiv 2412.15115): biases of queries, keys and values",
    ),
    ModelFamily(
        "qwen3",
        ("qwen3",),
        {**_LLAMA, "qk_norm": True, "head_dim": 128},
        False,
        False,
        "Qwen3 (arXiv 2505.09388): norms of queries and keys",
    ),
    ModelFamily("deepseek", ("deepseek", "kimi"), _LLAMA, False, False, "DeepSeek-V2 (arXiv 2405.04434), V3", _latent),
    ModelFamily("llama4", ("llama4", "llama-4"), _LLAMA, False, False, "Llama 4, config.json", _every_other),
)


def family(name: str) -> ModelFamily | None:
    """Return the family whose words a model's name begins with, the longest first; None when there is none."""
    text = _spelled(name)
    hits = [(len(word), one) for one in FAMILIES for word in one.words if text.startswith(word)]
    return max(hits, key=lambda hit: hit[0])[1] if hits else None


def _spelled(name: str) -> str:
    """Return a name as words of families are written."""
    return name.lower().replace("_", "-").removeprefix("meta-").removeprefix("megatron-")


def tied(run: Run, found: ModelFamily) -> tuple[bool, str]:
    """Return whether embedding and head share weights, and why: the family's habit unless the size in the name says otherwise.

    A size such as `3.57B` decides when the habit misses it by more than 3 % and the opposite meets it within 1 %.
    """
    size = re.search(r"(\d+(?:\.\d+)?)\s*b(?:\b|illion)", run.model.lower())
    if size:
        wanted = float(size[1]) * 1e9
        habit, other = (abs(parameters(run, found, tie) / wanted - 1) for tie in (found.tied, not found.tied))
        if habit > 0.03 and other < 0.01:
            return not found.tied, f"{size[1]}B parameters in the model's name"
    return found.tied, f"model family {found.name}"


def parameters(run: Run, found: ModelFamily, tie: bool) -> float:
    """Return the parameters of a run's model without norms and biases; every count of the run must be known."""
    hidden, heads = run.hidden or 0, run.heads or 1
    kv = run.kv_heads if isinstance(run.kv_heads, int) else heads
    ffn = run.ffn_hidden or 4 * hidden
    attention = 2 * hidden * hidden * (1 + kv / heads)
    mlp = (3 if found.shapes.get("activation") == "swiglu" else 2) * hidden * ffn
    mlp *= (run.experts or 1) + (run.shared_experts or 0) * bool(run.experts)
    return (run.layers or 0) * (attention + mlp) + (1 if tie else 2) * (run.vocab or 0) * hidden
