"""Block properties implied by a model's name: norm, activation, positions, biases, tied embeddings.

A model family only gives defaults: an unknown name is a decoder, gated or not depending on its shapes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from clustersim.frameworks import Framework
from clustersim.validate.runs import Run

_PRENORM: Mapping[str, Any] = {"norm": "layernorm", "activation": "gelu", "positions": "learned", "bias": True}
_LLAMA: Mapping[str, Any] = {"norm": "rmsnorm", "activation": "swiglu", "positions": "rotary", "bias": False}


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """A family of models."""

    name: str
    words: tuple[str, ...]
    """Beginnings of their names, in lower case."""
    shapes: Mapping[str, Any]
    """Keys of `model:` in a workload."""
    tied: bool
    dropout: bool
    source: str
    layers: Callable[[Run], Mapping[str, Any]] | None = None
    """Function from a run to keys of `model:` that depend on its shapes, such as the kind of each layer."""
    vocab: int = 50_257
    """Vocabulary of its usual tokenizer; by default GPT-2's."""
    alibi: bool = False
    """Attention adds biases that grow with distance."""


_V2 = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128}
"""Latents of DeepSeek-V2 and V3, and of Kimi K2 (their config.json)."""
_DENSE = {"deepseek-v2": (1, 12288), "deepseek-v3": (3, 18432), "deepseek-r1": (3, 18432), "kimi": (1, 18432)}
"""First layers without experts, and their width (config.json: first_k_dense_replace, intermediate_size)."""


def _latent(run: Run) -> Mapping[str, Any]:
    """Return latent attention and the number of first layers without experts: one in a shortened model, as in SimuMax."""
    latents = _V2 if (run.hidden or 0) > 2048 else {**_V2, "q_lora_rank": None}  # V2-Lite has none of the queries
    if not run.experts:
        return {"mla": latents}
    count, width = next((found for word, found in _DENSE.items() if _spelled(run.model).startswith(word)), (1, 0))
    dense = count if (run.layers or 0) > 8 * count else 1
    return {"mla": latents, "dense_layers": dense, "dense_ffn": width or 10944}


def _every_other(run: Run) -> Mapping[str, Any]:
    """Return Llama 4's blocks: three of four with windows; experts in every second layer with 128 experts, in all with 16."""
    window, dense = {"window": 8192}, {"experts": 0, "ffn": 16384}
    if (run.experts or 0) < 128:
        return {"head_dim": 128, "blocks": [{"count": 3, **window}, {"positions": "none"}]}
    return {"head_dim": 128, "blocks": [{**dense, **window}, window, {**dense, **window}, {"positions": "none"}]}


FAMILIES = (
    ModelFamily(
        "gpt-oss",
        ("gpt-oss",),
        {**_LLAMA, "bias": True, "activation_clamp": 7.0, "head_dim": 64, "blocks": [{"window": 128}, {}]},
        False,
        False,
        "GPT-OSS (arXiv 2508.10925, section 2)",
        vocab=201_088,
    ),
    ModelFamily("gpt", ("gpt", "opt"), _PRENORM, True, True, "Radford et al. 2019; Megatron-LM pretrain_gpt.py"),
    ModelFamily(
        "mpt",
        ("mpt",),
        {"norm": "layernorm", "activation": "gelu", "positions": "none", "bias": False},
        True,
        False,
        "llm-foundry scripts/train/yamls/pretrain/mpt-*.yaml: ALiBi, no biases",
        alibi=True,
    ),
    ModelFamily(
        "bloom",
        ("bloom",),
        {"norm": "layernorm", "activation": "gelu", "positions": "none", "bias": True},
        True,
        True,
        "BLOOM (arXiv 2211.05100, section 3.2): ALiBi, whose biases attention adds",
        vocab=250_680,
        alibi=True,
    ),
    ModelFamily(
        "grok",
        ("grok",),
        {**_LLAMA, "activation": "geglu", "norm_position": "both", "head_dim": 128},
        True,
        False,
        "xai-org/grok-1, model.py: GeGLU, norms before and after each half, the embedding's weights in the head",
        vocab=131_072,
    ),
    ModelFamily("llama", ("llama", "codellama", "yi-"), _LLAMA, False, False, "Touvron et al. 2023", vocab=32_000),
    ModelFamily("llama3", ("llama3", "llama-3"), _LLAMA, False, False, "Llama 3 (arXiv 2407.21783)", vocab=128_256),
    ModelFamily("mistral", ("mistral", "mixtral"), _LLAMA, False, False, "Jiang et al. 2023 and 2024", vocab=32_000),
    ModelFamily(
        "internlm", ("internlm",), _LLAMA, False, False, "InternLM/InternEvo, model/modeling_internlm.py", vocab=103_168
    ),
    ModelFamily(
        "gemma", ("gemma",), {**_LLAMA, "activation": "geglu"}, True, False, "Gemma (arXiv 2403.08295)", vocab=256_000
    ),
    ModelFamily(
        "nemotron",
        ("nemotron4", "nemotron-4", "nemotron3", "nemotron-3", "nemotron-8b", "nemotron-22b"),
        {"norm": "layernorm", "activation": "squared_relu", "positions": "rotary", "bias": False},
        False,
        False,
        "Nemotron-4 (arXiv 2402.16819): squared ReLU; untied, no biases",
        vocab=256_000,
    ),
    ModelFamily(
        "qwen",
        ("qwen2", "qwen-2", "qwen1"),
        {**_LLAMA, "qkv_bias": True},
        False,
        False,
        "Qwen2.5 (arXiv 2412.15115): biases of queries, keys and values",
        vocab=151_936,
    ),
    ModelFamily(
        "qwen3",
        ("qwen3",),
        {**_LLAMA, "qk_norm": True, "head_dim": 128},
        False,
        False,
        "Qwen3 (arXiv 2505.09388): norms of queries and keys",
        vocab=151_936,
    ),
    ModelFamily(
        "deepseek", ("deepseek", "kimi"), _LLAMA, False, False, "DeepSeek-V2 (arXiv 2405.04434), V3", _latent, 129_280
    ),
    ModelFamily("llama4", ("llama4", "llama-4"), _LLAMA, False, False, "Llama 4, config.json", _every_other, 202_048),
)


def family(run: Run, framework: Framework) -> ModelFamily:
    """Return the family of a run's model: the longest beginning that matches its name, else a decoder.

    A decoder is gated (SwiGLU, RMS norm, rotary positions) if the size in its name implies it; else if its MLP is not four times
    as wide as the model; else if its heads share keys and values; else if models of that framework are. Otherwise it is a GPT.
    """
    text = _spelled(run.model)
    hits = [(len(word), one) for one in FAMILIES for word in one.words if text.startswith(word)]
    found = max(hits, key=lambda hit: hit[0])[1] if hits else None
    dense = not run.experts and not isinstance(run.kv_heads, str) and not text.startswith(tuple(_DENSE))
    if found is not None and found.layers is _latent and dense:
        return replace(found, layers=None)  # DeepSeek LLM and Coder: Llama's blocks
    if found is not None and (found.layers is _latent or not isinstance(run.kv_heads, str)):
        return found
    if isinstance(run.kv_heads, str):
        return ModelFamily("decoder", (), _LLAMA, False, False, "latent attention as DeepSeek-V2's", _latent)
    gated, why = _gated(run, framework)
    if gated:
        return ModelFamily("decoder", (), _LLAMA, False, False, f"gated: {why}", vocab=32_000)
    return ModelFamily("decoder", (), _PRENORM, True, bool(framework.value("model.dropout")), f"GPT: {why}")


def _gated(run: Run, framework: Framework) -> tuple[bool, str]:
    """Return whether the MLP of an unknown model is gated, and why."""
    if (size := _size(run)) is not None:
        kinds = {
            activation: ModelFamily("", (), {"activation": activation}, False, False, "")
            for activation in ("swiglu", "gelu")
        }
        off = {
            name: min(abs(parameters(run, kind, tie) / size - 1) for tie in (True, False))
            for name, kind in kinds.items()
        }
        near, far = sorted(off, key=off.__getitem__)
        if off[near] < 0.05 and off[far] > 0.1:
            return near == "swiglu", f"{size / 1e9:g}B parameters in its name"
    if run.ffn_hidden and run.hidden:
        return run.ffn_hidden != 4 * run.hidden, f"ffn_hidden {run.ffn_hidden}"
    if run.kv_heads and run.kv_heads != run.heads:
        return True, f"kv_heads {run.kv_heads}"
    return not framework.value("model.dropout"), f"as models of {framework.name}"


def _spelled(name: str) -> str:
    """Return a name in the spelling of family words."""
    return re.sub(r"[_ ]", "-", name.lower()).removeprefix("meta-").removeprefix("megatron-")


def tied(run: Run, found: ModelFamily) -> tuple[bool, str]:
    """Return whether embedding and head share weights, and why: as usual in the family, unless the size in the name contradicts.

    A size such as `3.57B` decides if the usual choice misses it by more than 3 % and the opposite matches within 1 %.
    """
    if (wanted := _size(run)) is not None:
        habit, other = (abs(parameters(run, found, tie) / wanted - 1) for tie in (found.tied, not found.tied))
        if habit > 0.03 and other < 0.01:
            return not found.tied, f"{wanted / 1e9:g}B parameters in the model's name"
    return found.tied, f"model family {found.name}"


def _size(run: Run) -> float | None:
    """Return the parameters that a model's name says, such as 7e9 of `InternLM-7B`; None where it says none."""
    size = re.search(r"(\d+(?:\.\d+)?)\s*b(?:\b|illion)", run.model.lower())
    return None if size is None else float(size[1]) * 1e9


def parameters(run: Run, found: ModelFamily, tie: bool) -> float:
    """Return the number of parameters of a run's model without norms and biases; all its shapes must be known."""
    hidden, heads = run.hidden or 0, run.heads or 1
    kv = run.kv_heads if isinstance(run.kv_heads, int) else heads
    ffn = run.ffn_hidden or 4 * hidden
    attention = 2 * hidden * hidden * (1 + kv / heads)
    mlp = (3 if found.shapes.get("activation") in ("swiglu", "geglu") else 2) * hidden * ffn
    mlp *= (run.experts or 1) + (run.shared_experts or 0) * bool(run.experts)
    return (run.layers or 0) * (attention + mlp) + (1 if tie else 2) * (run.vocab or 0) * hidden
