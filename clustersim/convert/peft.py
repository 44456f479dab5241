"""Adapters as PEFT, Megatron-Bridge and NeMo describe them → `training.lora`.

Sources: peft, tuners/lora/config.py (`LoraConfig`, saved as adapter_config.json) and utils/constants.py (names of modules by
model); Megatron-Bridge 067f987, peft/lora.py (`LoRA`); NeMo 2.0, conf of megatron_gpt_finetuning (`peft.lora_tuning`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from clustersim.config.yaml import read
from clustersim.convert.table import records
from clustersim.errors import InputError, shown

BESIDE = "adapter_config.json"
"""Name of PEFT's file in the folder of a config.json."""
MODULES = {row["module"]: row["target"] for row in records("peft")}
"""{name of a model's module: our target}"""
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Modules of `all-linear`; a model without a gate has no gate_proj."""
NEMO: dict[str, tuple[str, ...]] = {"attention": ("linear_qkv", "linear_proj"), "mlp": ("linear_fc1", "linear_fc2")}
NEMO["all"] = NEMO["attention"] + NEMO["mlp"]
"""NeMo's groups of targets before 2.0."""
REFUSED = ("use_dora", "rank_pattern", "modules_to_save", "layers_to_transform", "layer_replication", "megatron_config")
"""Keys of PEFT that train other or additional weights; they are refused."""


def adapter_settings(path: str, gated: bool, config: Mapping[str, object]) -> dict[str, object]:
    """Return `training.lora` from the adapter_config.json in the folder of the config.json `path`, {} without one.

    gated: whether the MLP has a gate. config: keys of the config.json; frozen weights have its bitsandbytes format, if any.
    Raises InputError for an invalid file.
    """
    place = Path(path).with_name(BESIDE)
    if not place.is_file():
        return {}
    keys = read(place, "an adapter_config.json", foreign=True).data
    if keys.get("peft_type") != "LORA":
        raise InputError(f"{place}: peft_type must be LORA; move the file away to train all weights")
    for key in REFUSED:
        if keys.get(key):
            raise InputError(f"{place}: {key} {shown(keys[key])} is not supported; leave it out")
    if keys.get("bias", "none") != "none":
        raise InputError(f"{place}: bias {shown(keys['bias'])} trains biases too, which is not supported; write none")
    packed = config.get("quantization_config")
    quantization = packed if isinstance(packed, dict) else {}
    base = "int8" if quantization.get("load_in_8bit") else "nf4" if quantization.get("load_in_4bit") else None
    base = None if base == "nf4" and quantization.get("bnb_4bit_quant_type") != "nf4" else base
    lora = {"rank": keys.get("r"), "alpha": keys.get("lora_alpha"), "dropout": keys.get("lora_dropout", 0.0)}
    targets = linears(str(place), keys.get("target_modules"), gated)
    return {**lora, "targets": targets, **({"base": base} if base else {})}


def linears(path: str, modules: object, gated: bool) -> list[str]:
    """Return the targets of PEFT's `target_modules`: names in a list or between commas, a pattern of full names, or all-linear.
    Raises InputError for an unknown name, and for a pattern that no linear matches."""
    names = modules if isinstance(modules, list) else str(modules).split(",")
    if modules == "all-linear":
        names = list(ALL)
    elif isinstance(modules, str) and re.search(r"[][(){}*+?^$|\\]", modules):
        names = _matching(path, modules)
    return list(dict.fromkeys(_target(path, name, gated) for name in names if gated or name != "gate_proj"))


def _matching(path: str, pattern: str) -> list[str]:
    """Return the linears of a block of Llama whose full name matches a pattern, whatever the names before `layers`; the pattern
    itself if none does (peft, tuners/tuners_utils.py: check_target_module_exists). Raises InputError if a linear matches in some
    layers, which adapters of all layers cannot express."""
    tail = pattern[max(pattern.rfind("layers"), 0) :]
    parts = {name: "mlp" if MODULES[name].startswith("linear_fc") else "self_attn" for name in ALL}
    with suppress(re.error):
        is_match = re.compile(tail).fullmatch
        layers = {name: {i for i in range(100) if is_match(f"layers.{i}.{parts[name]}.{name}")} for name in ALL}
        if any(matched and not matched >= {0, 7, 11} for matched in layers.values()):
            why = "names some layers, and adapters of some layers are not supported; name linears of all layers"
            raise InputError(f"{path}: target_modules: {shown(pattern)} {why}")
        return [name for name, matched in layers.items() if matched] or [pattern]
    return [pattern]


def _target(path: str, name: object, gated: bool) -> str:
    """Return the target of a module such as `layers.0.q_proj`, by its last name. gated: of its MLP. Raises InputError if none."""
    parts = str(name).split(".")
    target = next((MODULES[candidate] for candidate in (".".join(parts[-2:]), parts[-1]) if candidate in MODULES), None)
    if target is None:
        known = ", ".join(name for name in MODULES if "_proj" in name)
        raise InputError(f"{path}: target_modules: {shown(name)} is not a known linear; use {known} or all-linear")
    return target if gated or not target.startswith("linear_fc1") else "linear_fc1"


def section(value: object) -> object:
    """Return `training.lora` for a `peft` section of Megatron-Bridge or NeMo; None without adapters.

    Another scheme than LoRA, or a value of another form, is returned for validation to reject.
    """
    if not isinstance(value, Mapping):
        return {"rank": 32} if value == "lora" else None if value in (None, False, "none") else value  # LoRA's defaults
    scheme = value.get("peft_scheme", value.get("type", "lora"))
    settings = value.get("lora_tuning", value)
    if scheme in (None, "none") or not isinstance(settings, Mapping):
        return None
    return dict(_keys(settings)) if scheme == "lora" else {"peft_scheme": scheme}


def _keys(settings: Mapping[object, object]) -> Iterator[tuple[str, object]]:
    """Yield (key of `training.lora`, value) of an adapter's section of Megatron-Bridge or NeMo."""
    names = {"rank": ("dim", "adapter_dim"), "alpha": ("alpha",), "dropout": ("dropout", "adapter_dropout")}
    for ours, theirs in names.items():
        yield from ((ours, settings[name]) for name in theirs if name in settings)
    if "dim" not in settings and "adapter_dim" not in settings:
        yield "rank", 32
    if "a2a_experimental" in settings:
        yield "a2a", bool(settings["a2a_experimental"])
    if isinstance(modules := settings.get("target_modules"), list):
        yield "targets", [target for name in modules for target in NEMO.get(str(name), (str(name).rsplit(".", 1)[-1],))]
