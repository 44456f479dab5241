"""Shapes of well-known models, which complete rows that name one. `known_models.csv` has them."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import log
from pathlib import Path
from typing import Any

from clustersim.config.overrides import scalar
from clustersim.validate.runs import Refusal, Run

TABLE = Path(__file__).parent / "known_models.csv"
"""Shapes as each model's config.json (Hugging Face) or paper has them; `more`: further keys of `model:` in a workload."""
TELLING = ("hidden", "ffn_hidden", "experts")
"""Columns in which another value means another model. Layers and vocabularies are often cut or padded."""
NEAR = 1.25
"""Largest size ratio between a model of a given size and a known model whose shapes it takes."""
OTHER_LAYERS = re.compile(
    r"mamba|rwkv|jamba|zamba|nemotron-?h\b|qwen3-?next|minimax|kimi-?linear|falcon-?h1|granite-?4|hyena|retnet|lfm2"
)
NO_DECODER = re.compile(
    r"resnet|\bvit\b|\bclip\b|diffusion|\bsdxl?\b|\bflux\b|\bdit\b|llava|whisper|\bdlrm\b|unet|\bssd\b|maskrcnn|\bt5\b"
)


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model of the table: columns of a run, and further keys of `model:` in a workload."""

    name: str
    columns: Mapping[str, int | str]
    keys: Mapping[str, Any]


def completed(run: Run) -> tuple[Run, tuple[str, ...]]:
    """Return a run with blank shapes completed from its model's name, and the completed values in words.

    An unknown model without shapes, with a size in its name, takes those of the known dense model nearest in size. Raises Refusal
    for models with layers other than attention and MLPs.
    """
    if run.launch:
        return run, ()
    name = run.model.lower()
    if OTHER_LAYERS.search(name):
        raise Refusal("model", f"{run.model} has state-space or linear-attention layers, which are not supported")
    found, why = known_model(run), "known_models.csv"
    if found is None and run.layers is None and run.hidden is None:
        if NO_DECODER.search(name):
            what = f"{run.model} is not a decoder whose shapes are known"
            raise Refusal("model", f"{what}; fill in layers, hidden, heads and vocab if it is a decoder")
        found = _of_size(run)
        why = f"the known dense model nearest in size, as the shapes of {run.model} are not given"
    if found is None:
        return run, ()
    same = run.heads in (None, found.columns.get("heads"))
    blank: dict[str, Any] = {
        column: value
        for column, value in found.columns.items()
        if getattr(run, column) is None and (same or column != "kv_heads")
    }
    said = ", ".join(f"{column} {value}" for column, value in blank.items())
    return replace(run, **blank), (f"model: {said} ({found.name}, {why})",) if blank else ()


def known_model(run: Run) -> KnownModel | None:
    """Return the model of the table with which a run's name begins, the longest match; None if shapes contradict."""
    words, table = _words(run.model), _table()
    found = next((table[words[:count]] for count in range(len(words), 0, -1) if words[:count] in table), None)
    if found is None or any(getattr(run, name) not in (None, found.columns.get(name)) for name in TELLING):
        return None
    if size(found.name) is None and size(run.model) and "experts" not in found.columns:
        return None
    cut = run.layers not in (None, found.columns["layers"])
    keys = {key: value for key, value in found.keys.items() if not (cut and key == "mtp_layers")}
    return replace(found, keys=keys)  # a model with layers cut off is measured with those left


def size(name: str) -> float | None:
    """Return the number of parameters in a model's name, such as 7e9 for `InternLM-7B`; None without one."""
    found = re.search(r"(\d+(?:\.\d+)?)\s*([bmt])(?![a-z])|(\d+(?:\.\d+)?)\s*billion", name.lower())
    if found is None:
        return None
    return float(found[1] or found[3]) * {"m": 1e6, "t": 1e12}.get(found[2] or "b", 1e9)


def _of_size(run: Run) -> KnownModel | None:
    """Return the known dense model nearest in size, a GPT for a GPT, else a Llama or Qwen; None for mixtures or odd sizes."""
    wanted = size(run.model)
    if wanted is None or re.search(r"moe|\d+x\d|-a\d+(\.\d+)?b", run.model.lower()):
        return None
    kinds = ("gpt",) if run.model.lower().startswith(("gpt", "megatron", "turing")) else ("llama", "qwen")
    dense = [
        (abs(log(count / wanted)), one)
        for words, one in _table().items()
        if words[0] in kinds and "experts" not in one.columns and (count := size(words[-1])) is not None
    ]
    off, found = min(dense, key=lambda one: one[0])
    return found if off < log(NEAR) else None


def _words(name: str) -> tuple[str, ...]:
    """Return a name as words and numbers: (`llama`, `3.1`, `70b`) for `Meta-Llama-3.1-70B` and for `llama3_1_70b`."""
    text = re.sub(r"^(meta|megatron|nvidia|google|facebook|microsoft|mistralai|qwen/|hf)[-_/ ]+", "", name.lower())
    text = re.sub(r"(?<=\d)_(?=\d_|\d-)", ".", text)
    return _parts(re.sub(r"\((.*?)\)", " ", text))


def _parts(text: str) -> tuple[str, ...]:
    """Return the words and numbers of a text in lower case, adjacent words joined, without dates."""
    found = re.findall(r"\d+x\d+(?:\.\d+)?b|\d+(?:\.\d+)?[bmt](?![a-z])|\d+(?:\.\d+)?|[a-z]+\+?", text)
    joined: list[str] = []
    for word in found:
        if joined and word[0].isalpha() and joined[-1][0].isalpha():
            joined[-1] += word  # GPT-J and gptj
        elif not re.fullmatch(r"0\d{3}|1[0-2]\d\d|2[45]\d\d", word):  # a date such as 1124 is no size
            joined.append(word)
    return tuple(joined)


@cache
def _table() -> Mapping[tuple[str, ...], KnownModel]:
    """Return {words of a name: known model}."""
    result: dict[tuple[str, ...], KnownModel] = {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            names, more = row.pop("model").split("|"), row.pop("more")
            pairs = (part.partition("=") for part in (more or "").split(";") if part.strip())
            keys = {key.strip(): scalar(key.strip(), value.strip()) for key, _, value in pairs}
            columns = {name: int(text) if text.isdigit() else text for name, text in row.items() if text}
            result |= {_parts(name): KnownModel(names[0], columns, keys) for name in names}
    return result
