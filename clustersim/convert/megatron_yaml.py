"""YAML of NeMo up to 1.23 and of Megatron-Bridge, whose settings stand for Megatron's arguments: read as a workload, and written.

`tables/nemo.csv` and `tables/megatron_bridge.csv` have the settings whose names or values are not Megatron's; all others are
Megatron's arguments (`tables/megatron.csv`), or have no key (`tables/megatron_config_*.txt`), in whatever section.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from operator import attrgetter

from clustersim.config.fields import Section
from clustersim.config.overrides import section_of
from clustersim.config.references import resolved, without_classes
from clustersim.config.workload import Workload
from clustersim.config.yaml import parse
from clustersim.convert.conversions import rows
from clustersim.convert.decoders import GATED, PLAIN
from clustersim.convert.megatron import ALIASES, NO_EFFECT, NOT_MODELLED, REMEDIES, translated
from clustersim.convert.megatron_arguments import Argument, model, parallelism, refuse_unbuildable, training
from clustersim.convert.megatron_groups import GROUPED, PATTERNS, frequency
from clustersim.convert.megatron_script import GPUS, TOKENIZERS, ArgumentImport, Imported, ImportRequest
from clustersim.convert.python_recipe import recipe_sections
from clustersim.convert.settings import Keys, ToolRefusal, ToolSettings, flat, nested, refuse, under, unsayable
from clustersim.convert.table import Alias, records_of, words
from clustersim.convert.trainers import described
from clustersim.errors import InputError

NEUTRAL = ("dataset", "dist", "model.tokenizer", "tokenizer", "trainer")
"""Sections without effect on the time of a step, but for the settings in the table."""
KINDS = {"-": NO_EFFECT | {*words("megatron_config_no_effect.txt")}}
KINDS["~"] = NOT_MODELLED | {*words("megatron_config_not_modelled.txt")}
"""Last names of settings without effect on the time of a step, and of those whose effect is not modelled."""
FUNCTION, GATE, O2 = "model.activation_func", "model.gated_linear_unit", "model.megatron_amp_O2"
LAYERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}  # of a pipeline layout that is a list of stages
UNSAID = {"bf16", "fp16", "fp8_format", "fp8_recipe", "fp4_format", "first_last_layers_bf16", "group_query_attention"}
UNSAID |= {"num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16", "no_bias_gelu_fusion", "ckpt_format"}
UNSAID |= {"optimizer", "vocab_size"}
"""Arguments that other settings express, or that only Megatron-LM's parser needs."""
PRECISIONS = records_of("megatron_bridge_precisions")
"""Keys of a workload that each mixed-precision recipe of Megatron-Bridge sets."""
ONLY_WITH = {"recompute_method": ("recompute_granularity", "full"), "e_modules": ("recompute_granularity", "selective")}
ONLY_WITH["_num_sms"] = ("moe_token_dispatcher_type", "flex")
"""{end of an argument: (other argument, value)}: without that value the argument has no effect, though saved files have it."""
DECIDES = (("mixed_precision", "grad_reduce_in_fp32", "ddp", True), ("comm_overlap", "tp_comm_overlap", "model", None))
"""Settings of Megatron-Bridge that it copies over those of another section, with their defaults (training/mixed_precision.py)."""


BUILT = ("GPTModelProvider", "GPTModelConfig")
"""Classes of a recipe's model whose defaults are those of the table."""
SHAPES = {"num_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads", "num_experts": "experts"}
"""{argument: key of `model`}, on which the meaning of other arguments depends."""


def imported(tool: str, path: str, text: str, request: ImportRequest) -> Imported:
    """Return the workload of a launch file, whose content is `text`. tool: `nemo` or `megatron-bridge`.

    The model of `request` has shapes that the file takes from elsewhere. Raises InputError with the setting that is unknown or
    cannot be expressed.
    """
    settings, recipe = request.settings, request.recipe
    known, data = rows(tool), _data(tool, path, text, recipe)
    sections = resolved(data, "training.") if tool == "nemo" else _bridge(data)
    flattened = flat(sections, lambda name: name in known or _kind(name) in KINDS).items()
    present = {name: value for name, value in flattened if value is not None}
    strict = [name for name in present if name not in known and not under(name, NEUTRAL)]
    megatron_rows = {name: Alias(name, (kind,), "", None, {"default": ""}) for name in strict if (kind := _kind(name))}
    source = ToolSettings(path, tool, {**known, **megatron_rows}, present, NEUTRAL)
    read_names = (name for name, row in source.rows.items() if row.key[0] not in KINDS and name in present)
    if missing := next((name for name in read_names if re.fullmatch(r"\$\{[^:]*\}", str(present[name]))), None):
        raise source.error(missing, "refers to nothing in the file; write its value")
    converted = {name: value for name, value in source.spec("", {}).items() if name != "name"}
    keys = {name: value for name, value in converted.items() if "." in name}
    options: Keys = {"group_query_attention": True}
    without = {name for name in ALIASES if ALIASES[name].read(False) is not None}  # flags with an effect when false
    of_megatron = ((name, value) for name, value in converted.items() if "." not in name)
    options |= {name: value for name, value in of_megatron if value is not False or name in without}
    keys |= _core(source) if tool == "megatron-bridge" else _nemo(source, keys)
    shapes = _shapes(path, data, request.model) if request.model or path.endswith(".py") else {}
    if shapes:  # decide over defaults of the tool
        default_keys = {".".join(map(str, row.key)) for name, row in known.items() if name not in present}
        default_keys |= {"model.activation"} if FUNCTION not in present else set()
        keys = {key: value for key, value in keys.items() if key not in default_keys or not key.startswith("model.")}
        options = {argument: shapes[key] for argument, key in SHAPES.items() if shapes.get(key)} | options
    if keys.get("training.precision") == "fp16":
        options.pop("grad_reduce_in_bf16", None)  # gradients have the type of the weights
    idle = tuple(end for end, (name, value) in ONLY_WITH.items() if options.get(name) != value)
    unused = () if "num_experts" in options else ("moe_",)
    without_effect = [name for name in options if name.endswith(idle) or name.startswith(unused)]
    options = {name: value for name, value in options.items() if name not in without_effect}
    if isinstance(layout := present.get("model.pipeline_model_parallel_layout"), list):
        stages = (stage if isinstance(stage, list) else [stage] for stage in layout)
        letters = ("".join(LAYERS.get(str(part), str(part)) for part in stage) for stage in stages)
        options["pipeline_model_parallel_layout"] = "|".join(letters)
    if present.get("model.override_vocab_size") or (tool != "nemo" and source["model.should_pad_vocab"] is not True):
        options["make_vocab_size_divisible_by"] = 1
    names = {str(source.rows[name].key[0]): name for name in (*known, *present) if name in source.rows}
    if all(str(options.get(name)) not in ("None", "-1", "auto") for name in GPUS):
        for name in GPUS:
            source.number(names[name])
    else:  # all GPUs of a node, however many those are
        options = {name: value for name, value in options.items() if name not in GPUS}
        if not {"global_batch_size", "training.global_batch"} & {*options, *settings}:
            why = "and does not say on how many GPUs it runs; give --set training.global_batch=…"
            raise InputError(f"{path}: lacks {names.get('global_batch_size', 'model.global_batch_size')}, {why}")
    importer = ArgumentImport(path, "", translated(options), lambda name: names.get(name, f"model.{name}"))
    importer.spec |= {"name": recipe} if recipe else {}
    importer.put(("model",), {"dropout": False, **shapes} if shapes else {})
    result = importer.result(ImportRequest({}, {**keys, **settings}))
    return replace(result, ignored=tuple(source.ignored), not_modelled=(*source.not_modelled, *result.not_modelled))


def _shapes(path: str, data: Section, requested: str | Mapping[str, object] | None) -> Mapping[str, object]:
    """Return the section `model` of `requested`, {} if the file has the shapes itself. Raises InputError if neither has them."""
    model = data.get("model") or {}
    target = model.get("_target_") if isinstance(model, dict) else None
    if isinstance(model, dict) and (requested or "hf_model_id" in model):
        return section_of(described(path, model.get("hf_model_id"), requested), "model")
    if target is not None and target not in BUILT:
        raise InputError(
            f"{path}: model: the file lacks the defaults of {target}; give --model with a config.json or workload"
        )
    return {}


def _kind(name: str) -> str | None:
    """Return the Megatron-LM argument of a setting by its last name; - without effect, ~ not modelled, None if unknown."""
    leaf = name.rpartition(".")[2]
    if leaf in ALIASES or leaf in GROUPED or leaf in REMEDIES:
        return leaf
    return next((kind for kind, names in KINDS.items() if leaf in names), None)


def _data(tool: str, path: str, text: str, recipe: str | None) -> Section:
    """Return the sections of YAML, or of a Megatron-Bridge recipe in Python. Raises InputError if they cannot be read."""
    python = tool == "megatron-bridge" and path.endswith(".py")
    if recipe and not python:
        raise InputError(f"{path}: --recipe is for recipes of Megatron-Bridge in Python; leave it out")
    data = recipe_sections(path, text, recipe) if python else parse(text, path, foreign=True).data
    if not isinstance(data.get("model") or {}, dict):
        raise InputError(f"{path}: model: must be a section with the settings of the model")
    return data


def _nemo(settings: ToolSettings, keys: Keys) -> Keys:
    """Return the workload keys that NeMo sets, on Megatron-Core before 0.11. Raises InputError for weights under autocast."""
    if settings[O2] is not True and keys.get("training.precision", "fp32") != "fp32":
        why = "keeps weights in fp32 under autocast (NeMo's default), which is not supported; write true"
        raise settings.error(O2, why)
    return {"training.permute_kernels": "weighed"} if settings["model.num_moe_experts"] else {}


def _core(settings: ToolSettings) -> Keys:
    """Return the workload keys of a ConfigContainer's activation and precision recipe. Raises InputError for unknown ones."""
    kinds = GATED if settings[GATE] is True else PLAIN
    function = settings.rows[FUNCTION].read(settings[FUNCTION])
    if function not in kinds:
        raise settings.error(FUNCTION, f"with gated_linear_unit {settings[GATE]} cannot be expressed in a workload")
    recipe = settings["mixed_precision.recipe"]
    if recipe is not None and str(recipe) not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise settings.error("mixed_precision.recipe", f"cannot be expressed in a workload; write {known}")
    return {"model.activation": kinds[str(function)], **PRECISIONS.get(str(recipe), {})}


def _bridge(data: Mapping[str, object]) -> dict[str, object]:
    """Return {section: settings} of a ConfigContainer with references resolved and without Python's classes or empty sections.

    Settings of the transformer become those of the model; settings in DECIDES replace those of their target section.
    """
    sections = resolved({key: without_classes(value) for key, value in data.items() if key != "_target_"})
    if isinstance(base := sections.get("model"), dict) and isinstance(inner := base.pop("transformer", None), dict):
        sections["model"] = {**base, **inner}
    if isinstance(peft := data.get("peft"), dict) and "_target_" in peft:
        sections["peft"] = {**peft, "type": str(peft["_target_"]).rpartition(".")[2].lower()}
    if isinstance(name := sections.get("mixed_precision"), str):
        sections["mixed_precision"] = {"recipe": name.replace("-", "_")}
    for section, name, target, value in DECIDES:
        base, source = sections.get(target) or {}, sections.get(section)
        if isinstance(source, dict) and isinstance(base, dict) and (value := source.pop(name, value)) is not None:
            sections[target] = {**base, name: value}
    return {key: value for key, value in sections.items() if value != {}}


def written(tool: str, spec: Workload, nodes: int, gpus: int, layout: str | None = None) -> dict[str, object]:
    """Return the nested settings of a workload with numeric parallel degrees, on `nodes` nodes of `gpus` GPUs each.

    tool: `nemo` or `megatron-bridge`. layout: layers of each stage in Megatron's letters, if Megatron would divide them
    differently. Raises InputError for a key without a setting.
    """
    refuse_unbuildable(spec)
    refuse(_refused(spec) if tool == "nemo" else ())
    known = rows(tool)
    settings = ToolSettings("", "", known, {}).plain(spec)
    taken = {row.key for row in known.values() if row.columns["export"] == "x"} | {("model", "activation")}
    names = {row.key[0]: row for row in known.values() if row.columns["export"] == "s"}
    for name, value in chain(model(spec), training(spec), parallelism(spec, layout)):
        alias = ALIASES.get(name)
        if value is None or value is False or name in UNSAID or (alias and alias.key in taken):
            continue
        several = frequency(name, value, spec.model.layers) if name in PATTERNS else value
        row = names.get(name)
        settings[row.name if row else f"model.{name}"] = row.write(several) if row else several
    return nested(settings | dict(_nemo_settings(spec, nodes, gpus) if tool == "nemo" else _core_settings(spec)))


def _refused(spec: Workload) -> Iterator[ToolRefusal]:
    """Yield (workload key, whether NeMo cannot express its value, what NeMo supports)."""
    train = spec.training
    narrow = train.precision == "fp8" and train.fp8_scaling != "delayed"
    yield "training.fp8_scaling", narrow, "its fp8 has delayed scaling"
    yield "training.optimizer", train.optimizer != "adam", "its launch files have adam"
    states = (train.main_params or "fp32", train.moments, bool(train.offload.optimizer_states))
    yield "training.moments", states != ("fp32", "fp32", False), "optimizer states are in fp32 on the GPUs"


def _nemo_settings(spec: Workload, nodes: int, gpus: int) -> Iterator[Argument]:
    """Yield the settings of NeMo that correspond to no argument of Megatron."""
    vocab, multiple = spec.model.vocab, spec.model.vocab_multiple * spec.parallelism.tp
    yield "defaults", ["megatron_gpt_config", "_self_"]
    yield from (("trainer.num_nodes", nodes), ("trainer.devices", gpus), ("trainer.accelerator", "gpu"))
    yield from ((f"model.{name}", spec.training.precision == "fp8") for name in ("fp8", "fp8_hybrid"))
    yield from ((name, True) for name in ("model.mcore_gpt", "model.transformer_engine", O2))
    names = (name for name, tokens in TOKENIZERS.items() if tokens == vocab and ("/" in name or "GPT2" in name))
    if name := next(names, None):
        library = "huggingface" if "/" in name else "megatron"
        yield from (("model.tokenizer.library", library), ("model.tokenizer.type", name))
    else:
        yield "model.override_vocab_size", -(-vocab // multiple) * multiple


def _core_settings(spec: Workload) -> Iterator[Argument]:
    """Yield the settings of Megatron-Bridge without a Megatron argument. Raises InputError for an unsupported precision."""
    row, gated = rows("megatron-bridge")[FUNCTION], spec.model.activation in GATED.values()
    names = (row.write(name) for name, act in (GATED if gated else PLAIN).items() if act == spec.model.activation)
    yield from ((GATE, gated), (FUNCTION, next(filter(None, names))))
    fits = (name for name, keys in PRECISIONS.items() if all(attrgetter(key)(spec) == keys[key] for key in keys))
    if (name := next(fits, None)) is None:
        raise unsayable("training.precision", "no mixed-precision recipe of Megatron-Bridge has it")
    yield from (("mixed_precision", name), ("model.should_pad_vocab", True), ("model.seq_length", spec.training.seq))
