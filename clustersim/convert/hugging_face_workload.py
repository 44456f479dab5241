"""A Hugging Face config.json as a workload: the model from the file, training and split from the command line or defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from clustersim.config.overrides import section_of
from clustersim.config.yaml import Document, Loc, Position
from clustersim.convert import peft
from clustersim.convert.decoders import KEYS, LATENT, names_of
from clustersim.convert.hugging_face import Config

TOKENS = 4 * 2**20
"""Default number of tokens per step, as at the start of Llama 3's training (arXiv 2407.21783, section 3.4.1)."""
SEQ = 4096
"""Default number of tokens per sequence, if the model supports it."""
NAMES = {**KEYS, **names_of("message"), **{f"mla.{key}": (name,) for key, name in LATENT.items()}}
"""{key of `model`: its names in configs}; messages use the first one in the file."""


class Assumption(NamedTuple):
    """A key that neither file nor command line sets, its assumed value, and the reason."""

    key: str
    value: object
    why: str

    def __str__(self) -> str:
        value = str(self.value).lower() if isinstance(self.value, bool) else self.value
        return f"{self.key} {value}" + (f" ({self.why})" if self.why else "")


def is_config(data: Mapping[str, object]) -> bool:
    """Return whether a file is a config.json and not a workload."""
    return "model_type" in data and "model" not in data


def converted(document: Document) -> Document:
    """Return a workload with name and shapes of a config.json. Raises InputError, with its key, if missing or contradictory."""
    from clustersim.convert.architectures import architecture  # 20 ms that no other file needs

    path, config = document.path, Config(document.path, document.data)
    model = architecture(config).shapes(config)
    lora = peft.adapter_settings(path, model.get("activation") in ("swiglu", "geglu"), document.data)
    more = {"training": {"lora": lora}} if lora else {}
    outer: Loc = ("text_config",) if isinstance(document.data.get("text_config"), dict) else ()
    keys, positions = document.data["text_config"] if outer else document.data, dict[Loc, Position]()
    for key, names in NAMES.items():
        if (name := next((candidate for candidate in names if keys.get(candidate) is not None), None)) is not None:
            place = document.positions.get((*outer, name), Position(1, 1))
            positions["model", *key.split(".")] = place._replace(name=name)
    return Document(path, {"name": _name(path, config), "model": model, **more}, positions)


def left_out(path: str, data: Mapping[str, object]) -> tuple[str, ...]:
    """Return the features of the model that a workload cannot express, in words."""
    from clustersim.convert.architectures import architecture

    return architecture(Config(path, data)).left_out


def _name(path: str, config: Config) -> str:
    """Return the model's name: from `_name_or_path`, else its folder, else its model_type; at most 200 characters."""
    source = config.keys.get("_name_or_path")
    name = source if isinstance(source, str) and source.strip("./") else Path(path).parent.name
    return (name.rstrip("/").rsplit("/", 1)[-1] or config.kind)[:200]


def defaults(data: Mapping[str, object], config: Mapping[str, object]) -> Iterator[Assumption]:
    """Yield the keys that a workload from a config.json lacks after the command line's overrides, with assumed values.

    data: the workload as nested sections. config: keys of the config.json, for the data type of its published weights.
    """
    model, training, split = (section_of(data, name) for name in ("model", "training", "parallelism"))
    most = model.get("max_positions") or (512 if model.get("encoder_layers") else None)
    seq = training.get("seq")
    if seq is None:
        seq = min(most, SEQ) if isinstance(most, int) else SEQ
        yield Assumption("training.seq", seq, "")
    if training.get("global_batch") is None and isinstance(seq, int) and seq > 0:
        yield Assumption("training.global_batch", max(TOKENS // seq, 1), "4 Mi tokens a step")
    published = Config("", config).dtype  # weights that are published in FP32 are trained in BF16
    yield Assumption("training.precision", "fp16" if published == "fp16" else "bf16", "")
    if isinstance(tp := split.get("tp", 1), int) and tp > 1 and model.get("causal", True):
        yield Assumption("parallelism.sequence_parallel", True, "with tp")
    if isinstance(vpp := split.get("vpp", 1), int) and vpp > 1:
        yield Assumption("parallelism.schedule", "interleaved", "with vpp")
    yield Assumption("parallelism.zero", 1, "distributed optimizer")
    if split.get("zero", 1) in (1, 2):
        yield Assumption("parallelism.overlap.grad_reduce", True, "")
        yield Assumption("parallelism.overlap.param_gather", True, "")
