"""Shapes of well-known models, which complete rows that name one. `known_models.csv` has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import log
from pathlib import Path
from typing import Any

from clustersim.config.overrides import scalar
from clustersim.files import packaged_rows
from clustersim.validate.runs import Refusal, Run

TABLE = Path(__file__).parent / "known_models.csv"
"""Table of shapes from each model's config.json (Hugging Face) or paper; `more`: further keys of `model:` in a workload."""
TELLING = ("hidden", "ffn_hidden", "experts")
"""Columns in which another value means another model; layers are often cut, and vocabularies padded."""
NEAR = 1.25
"""Largest ratio between the size in a model's name and that of a known model whose shapes are used."""
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

    An unknown model without layers and hidden gets the shapes of the known dense model nearest to the size in its name. A run
    with a launch file stays as it is. Raises Refusal for models with layers other than attention and MLPs.
    """
    if run.launch:
        return run, ()
    name = run.model.lower()
    if OTHER_LAYERS.search(name):
        raise Refusal("model", f"{run.model} has state-space or linear-attention layers, which are not supported")
    model, why = known_model(run), "known_models.csv"
    if model is None and run.layers is None and run.hidden is None:
        if NO_DECODER.search(name):
            problem = f"{run.model} is not a decoder whose shapes are known"
            raise Refusal("model", f"{problem}; fill in layers, hidden, heads and vocab if it is a decoder")
        model = _nearest_in_size(run)
        why = f"the known dense model nearest in size, as the shapes of {run.model} are not given"
    if model is None:
        return run, ()
    same_heads = run.heads in (None, model.columns.get("heads"))
    blank: dict[str, Any] = {
        column: value
        for column, value in model.columns.items()
        if getattr(run, column) is None and (same_heads or column != "kv_heads")
    }
    words = ", ".join(f"{column} {value}" for column, value in blank.items())
    return replace(run, **blank), (f"model: {words} ({model.name}, {why})",) if blank else ()


def known_model(run: Run) -> KnownModel | None:
    """Return the model of the table that matches the most first words of a run's model name.

    None if no model matches, if the run's shapes contradict it, or if only the run's name has a size and the model is dense.
    """
    words, table = _words(run.model), _table()
    model = next((table[words[:count]] for count in range(len(words), 0, -1) if words[:count] in table), None)
    if model is None or any(getattr(run, name) not in (None, model.columns.get(name)) for name in TELLING):
        return None
    if size(model.name) is None and size(run.model) and "experts" not in model.columns:
        return None
    cut = run.layers not in (None, model.columns["layers"])
    keys = {key: value for key, value in model.keys.items() if not (cut and key == "mtp_layers")}
    return replace(model, keys=keys)  # a model with layers cut off is measured with those left


def size(name: str) -> float | None:
    """Return the number of parameters in a model's name, such as 7e9 for `InternLM-7B`; None without one."""
    match = re.search(r"(\d+(?:\.\d+)?)\s*([bmt])(?![a-z])|(\d+(?:\.\d+)?)\s*billion", name.lower())
    if match is None:
        return None
    return float(match[1] or match[3]) * {"m": 1e6, "t": 1e12}.get(match[2] or "b", 1e9)


def _nearest_in_size(run: Run) -> KnownModel | None:
    """Return the known dense model nearest in size: a GPT for a GPT, else a Llama or Qwen.

    None for mixtures of experts, for names without a size, and if no known size is within a ratio of NEAR.
    """
    parameters = size(run.model)
    if parameters is None or re.search(r"moe|\d+x\d|-a\d+(\.\d+)?b", run.model.lower()):
        return None
    kinds = ("gpt",) if run.model.lower().startswith(("gpt", "megatron", "turing")) else ("llama", "qwen")
    dense = [
        (abs(log(count / parameters)), model)
        for words, model in _table().items()
        if words[0] in kinds and "experts" not in model.columns and (count := size(words[-1])) is not None
    ]
    distance, nearest = min(dense, key=lambda pair: pair[0])
    return nearest if distance < log(NEAR) else None


def _words(name: str) -> tuple[str, ...]:
    """Return a name as words and numbers, such as (`llama`, `3.1`, `70b`) for `Meta-Llama-3.1-70B` and `llama3_1_70b`."""
    text = re.sub(r"^(meta|megatron|nvidia|google|facebook|microsoft|mistralai|qwen/|hf)[-_/ ]+", "", name.lower())
    text = re.sub(r"(?<=\d)_(?=\d_|\d-)", ".", text)
    return _parts(re.sub(r"\((.*?)\)", " ", text))


def _parts(text: str) -> tuple[str, ...]:
    """Return the words and numbers of a lower-case text. Adjacent words are joined; numbers like dates are left out."""
    tokens = re.findall(r"\d+x\d+(?:\.\d+)?b|\d+(?:\.\d+)?[bmt](?![a-z])|\d+(?:\.\d+)?|[a-z]+\+?", text)
    words: list[str] = []
    for word in tokens:
        if words and word[0].isalpha() and words[-1][0].isalpha():
            words[-1] += word  # GPT-J and gptj
        elif not re.fullmatch(r"0\d{3}|1[0-2]\d\d|2[45]\d\d", word):  # leave out a date such as 1124
            words.append(word)
    return tuple(words)


@cache
def _table() -> Mapping[tuple[str, ...], KnownModel]:
    """Return {words of a name: known model}."""
    result: dict[tuple[str, ...], KnownModel] = {}
    for row in packaged_rows(TABLE):
        names, more = row.pop("model").split("|"), row.pop("more")
        pairs = (part.partition("=") for part in (more or "").split(";") if part.strip())
        keys = {key.strip(): scalar(key.strip(), value.strip()) for key, _, value in pairs}
        columns = {name: int(text) if text.isdigit() else text for name, text in row.items() if text}
        result |= {_parts(name): KnownModel(names[0], columns, keys) for name in names}
    return result
