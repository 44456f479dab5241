"""Block properties implied by a model's name: norm, activation, positions, biases, tied embeddings.

A model family only gives defaults: an unknown name is a decoder, gated or not depending on its shapes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from clustersim.config.yaml import read_packaged
from clustersim.frameworks.table import Framework
from clustersim.validate.known_models import size
from clustersim.validate.runs import Run

_PRENORM: Mapping[str, Any] = {"norm": "layernorm", "activation": "gelu", "positions": "learned", "bias": True}
_LLAMA: Mapping[str, Any] = {"norm": "rmsnorm", "activation": "swiglu", "positions": "rotary", "bias": False}


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """A family of models."""

    name: str
    words: tuple[str, ...]
    """Beginnings of model names of the family, in the spelling of `_spelled`."""
    shapes: Mapping[str, Any]
    """Keys of `model:` in a workload."""
    tied: bool
    dropout: bool
    source: str
    layers: Callable[[Run], Mapping[str, Any]] | None = None
    """Function from a run to keys of `model:` that depend on its shapes, such as the kind of each layer."""
    vocab: int = 50_257
    """Number of tokens of the family's usual tokenizer; by default GPT-2's."""
    alibi: bool = False
    """Attention adds biases that grow with distance."""


_V2 = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128}
"""Keys of `model.mla` of DeepSeek-V2 and V3, and of Kimi K2 (their config.json)."""
_DENSE = {"deepseek-v2": (1, 12288), "deepseek-v3": (3, 18432), "deepseek-r1": (3, 18432), "kimi": (1, 18432)}
"""{beginning of a name: (number of first layers without experts, width of their MLP)} (config.json: first_k_dense_replace,
intermediate_size)."""


def _latent(run: Run) -> Mapping[str, Any]:
    """Return the keys of latent attention and, with experts, of dense first layers: one in a shortened model, as in SimuMax."""
    latents = _V2 if (run.hidden or 0) > 2048 else {**_V2, "q_lora_rank": None}  # V2-Lite has no latents of queries
    if not run.experts:
        return {"mla": latents}
    count, width = next((values for word, values in _DENSE.items() if _spelled(run.model).startswith(word)), (1, 0))
    dense = count if (run.layers or 0) > 8 * count else 1
    return {"mla": latents, "dense_layers": dense, "dense_ffn": width or 10944}


def _every_other(run: Run) -> Mapping[str, Any]:
    """Return the keys of Llama 4's blocks: three of four have windows; below 128 experts, all layers have experts, else half."""
    window, dense = {"window": 8192}, {"experts": 0, "ffn": 16384}
    if (run.experts or 0) < 128:
        return {"head_dim": 128, "blocks": [{"count": 3, **window}, {"positions": "none"}]}
    return {"head_dim": 128, "blocks": [{**dense, **window}, window, {**dense, **window}, {"positions": "none"}]}


LAYERS = {"deepseek": _latent, "llama4": _every_other}
"""{name of a family: function for `ModelFamily.layers`}"""


@cache
def families() -> tuple[ModelFamily, ...]:
    """Return the families of `model_families.yaml`, in its order."""
    result = []
    for name, row in read_packaged(Path(__file__).parent / "model_families.yaml").data.items():
        shapes = {**(_PRENORM if row["block"] == "gpt" else _LLAMA), **row.get("shapes", {})}
        keys = {key: value for key, value in row.items() if key not in ("words", "block", "shapes")}
        keys = {"tied": False, "dropout": False, **keys}
        result.append(ModelFamily(name, tuple(row["words"]), shapes, layers=LAYERS.get(name), **keys))
    return tuple(result)


def family(run: Run, framework: Framework) -> ModelFamily:
    """Return the family of a run's model: the longest beginning that matches its name, else a decoder.

    A decoder is gated (SwiGLU, RMS norm, rotary positions) if the size in its name implies it; else if its MLP is not four times
    as wide as the model; else if its heads share keys and values; else if models of that framework are. Otherwise it is a GPT.
    """
    text, latent = _spelled(run.model), isinstance(run.kv_heads, str)
    hits = [(len(word), known) for known in families() for word in known.words if text.startswith(word)]
    if hits:
        match = max(hits, key=lambda hit: hit[0])[1]
        if match.layers is _latent and not run.experts and not latent and not text.startswith(tuple(_DENSE)):
            return replace(match, layers=None)  # DeepSeek LLM and Coder: Llama's blocks
        if match.layers is _latent or not latent:
            return match
    if latent:
        return ModelFamily("decoder", (), _LLAMA, False, False, "latent attention as DeepSeek-V2's", _latent)
    gated, why = _gated(run, framework)
    if gated:
        return ModelFamily("decoder", (), _LLAMA, False, False, f"gated: {why}", vocab=32_000)
    return ModelFamily("decoder", (), _PRENORM, True, bool(framework.value("model.dropout")), f"GPT: {why}")


def _gated(run: Run, framework: Framework) -> tuple[bool, str]:
    """Return whether the MLP of an unknown model is gated, and the reason in words."""
    if (named_size := size(run.model)) is not None:
        deviation = {
            gated: min(abs(parameters(run, gated, tie) / named_size - 1) for tie in (True, False))
            for gated in (True, False)
        }
        near, far = sorted(deviation, key=deviation.__getitem__)
        if deviation[near] < 0.05 and deviation[far] > 0.1:
            return near, f"{named_size / 1e9:g}B parameters in its name"
    if run.ffn_hidden and run.hidden:
        return run.ffn_hidden != 4 * run.hidden, f"ffn_hidden {run.ffn_hidden}"
    if run.kv_heads and run.kv_heads != run.heads:
        return True, f"kv_heads {run.kv_heads}"
    return not framework.value("model.dropout"), f"as models of {framework.name}"


def _spelled(name: str) -> str:
    """Return a name in lower case with hyphens for spaces and `_`, without `meta-` or `megatron-` at its beginning."""
    return re.sub(r"[_ ]", "-", name.lower()).removeprefix("meta-").removeprefix("megatron-")


def tied(run: Run, model_family: ModelFamily) -> tuple[bool, str]:
    """Return whether embedding and head share weights, and the reason: as in the family, unless the size in the name contradicts.

    A size such as `3.57B` decides if the usual choice misses it by more than 3 % and the opposite matches within 1 %.
    """
    if (named_size := size(run.model)) is not None:
        gated = model_family.shapes.get("activation") in ("swiglu", "geglu")
        usual = model_family.tied
        habit, other = (abs(parameters(run, gated, tie) / named_size - 1) for tie in (usual, not usual))
        if habit > 0.03 and other < 0.01:
            return not model_family.tied, f"{named_size / 1e9:g}B parameters in the model's name"
    return model_family.tied, f"model family {model_family.name}"


def parameters(run: Run, gated: bool, tie: bool) -> float:
    """Return the number of a model's parameters with all experts, without norms or biases. tie: embedding and head share weights.

    gated: MLPs have 3 matrices, not 2. Missing values count as 0, but MLP width as 4·hidden, kv heads as heads, experts as 1.
    """
    hidden, heads = run.hidden or 0, run.heads or 1
    kv = run.kv_heads if isinstance(run.kv_heads, int) else heads
    ffn = run.ffn_hidden or 4 * hidden
    attention = 2 * hidden * hidden * (1 + kv / heads)
    mlp = (3 if gated else 2) * hidden * ffn
    mlp *= (run.experts or 1) + (run.shared_experts or 0) * bool(run.experts)
    return (run.layers or 0) * (attention + mlp) + (1 if tie else 2) * (run.vocab or 0) * hidden
