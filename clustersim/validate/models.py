"""What a model's name says of its blocks: norm, activation, positions, biases, tied embeddings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clustersim.validate.runs import Run

_PRENORM: Mapping[str, Any] = {"norm": "layernorm", "activation": "gelu", "positions": "learned", "bias": True}
_LLAMA: Mapping[str, Any] = {"norm": "rmsnorm", "activation": "swiglu", "positions": "rotary", "bias": False}


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """A line of models. words: how their names begin, in small letters; shapes: keys of `model:` in a workload."""

    name: str
    words: tuple[str, ...]
    shapes: Mapping[str, Any]
    tied: bool
    dropout: bool
    source: str
    refused: str = ""


FAMILIES = (
    ModelFamily(
        "gpt", ("gpt-oss",), {}, False, False, "", "layers of different kinds (sliding windows) are not modelled"
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
        {"norm": "layernorm", "activation": "relu", "positions": "rotary", "bias": False},
        False,
        False,
        "Nemotron-4 (arXiv 2402.16819): squared ReLU, as many bytes and about as many FLOP as ReLU; untied, no biases",
    ),
    ModelFamily(
        "qwen",
        ("qwen2", "qwen-2", "qwen1"),
        {**_LLAMA},
        False,
        False,
        "Qwen2.5 (arXiv 2412.15115); biases of queries, keys and values left out",
    ),
    ModelFamily(
        "qwen3", ("qwen3",), _LLAMA, False, False, "Qwen3 (arXiv 2505.09388); norms of queries and keys left out"
    ),
    ModelFamily("deepseek", ("deepseek", "kimi"), {}, False, False, "", "multi-latent attention (MLA) is not modelled"),
    ModelFamily(
        "llama4", ("llama4", "llama-4"), {}, False, False, "", "dense and expert layers in turn are not modelled"
    ),
)


def family(name: str) -> ModelFamily | None:
    """Return the family whose words a model's name begins with, the longest first; None when there is none."""
    text = name.lower().replace("_", "-").removeprefix("meta-").removeprefix("megatron-")
    hits = [(len(word), one) for one in FAMILIES for word in one.words if text.startswith(word)]
    return max(hits, key=lambda hit: hit[0])[1] if hits else None


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
