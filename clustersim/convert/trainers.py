"""Settings files of trainers around a Hugging Face model as workloads: DeepSpeed, accelerate, axolotl and LLaMA-Factory.

`tables/NAME.csv` has the settings of each tool. Keys there that begin with `*.` are intermediate values, such as
`*.accumulation`, which this module combines into keys of a workload. `tables/trainers.yaml` has the keys that hold in every run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path

from clustersim.config import shipped
from clustersim.config.fields import Section
from clustersim.config.overrides import section_of
from clustersim.config.workload import Workload
from clustersim.config.yaml import parse, read
from clustersim.convert.conversions import rows
from clustersim.convert.hugging_face_workload import SEQ, converted, is_config
from clustersim.convert.megatron_script import Imported, ImportRequest
from clustersim.convert.peft import linears
from clustersim.convert.settings import Keys, ToolRefusal, ToolSettings, flat, nested, refuse
from clustersim.convert.table import records_of
from clustersim.errors import InputError, shown
from clustersim.files import read_text
from clustersim.units import plural

TITLES = {"deepspeed": "DeepSpeed 0.19.8", "accelerate": "accelerate 1.15.0"}
TITLES |= {"axolotl": "axolotl 0.19.0", "llama-factory": "LLaMA-Factory 0.9.5"}
"""Tools by the name of their command, with the release that their tables were read from."""
SECTIONS = {"deepspeed_config": "DEEPSPEED", "fsdp_config": "FSDP", "megatron_lm_config": "MEGATRON_LM"}
"""Sections of a configuration that accelerate 1.15.0 reads for only one distributed_type (commands/launch.py)."""
AUTO: Mapping[str, Callable[[int], int]] = {
    "*.bucket": lambda hidden: hidden**2,
    "parallelism.zero3.prefetch_bucket_size": lambda hidden: int(0.9 * hidden**2),
    "parallelism.zero3.param_persistence_threshold": lambda hidden: 10 * hidden,
}
"""{setting: function from the model's width to its value} for "auto" (transformers 4.57.1, integrations/deepspeed.py)."""


def imported(tool: str, path: str, text: str, request: ImportRequest) -> Imported:
    """Return the workload of a settings file. tool: a key of TITLES. path, text: the file's path, for messages, and content.

    Raises InputError with the setting that is unknown or cannot be expressed.
    """
    state = TrainerImport.from_text(tool, path, text)
    if tool == "deepspeed" or state.facts.get("deepspeed"):
        state.facts["trainer"] = "deepspeed"
        state.join_deepspeed()
    sharded = any(state.facts.get(name) for name in ("fsdp", "version", "shard", "strategy"))
    state.facts.setdefault("trainer", "fsdp" if sharded else "ddp")
    return state.workload(tool, request)


@dataclass
class TrainerImport:
    """State of an import: keys of the workload, and intermediate values from settings."""

    settings: ToolSettings
    keys: Keys
    """Keys of the workload so far."""
    facts: Keys
    """Intermediate values by name, without `*.`."""
    auto: set[str]
    """Keys, and intermediate values as `*.NAME`, of settings whose value is "auto"."""
    assumed: list[str]
    """Assumed values that no setting sets, in words."""

    @classmethod
    def from_text(cls, tool: str, path: str, text: str) -> TrainerImport:
        """Return the state after a settings file was read. Raises InputError for invalid files and unknown values."""
        known = rows(tool)
        sections = {name[:at] for name in known for at, letter in enumerate(name) if letter == "."}
        values = flat(parse(text, path, foreign=True).data, known.__contains__)
        present = {name: value for name, value in values.items() if value or name not in sections}
        unset = {name for name in present.keys() & known if present[name] == "auto" and "auto" not in known[name].words}
        auto = {name for name in unset if known[name].key[0] not in ("-", "~", "!")}
        kind = present.get("distributed_type")
        idle = [name for name in present if kind and SECTIONS.get(name.split(".")[0], kind) != kind and name in known]
        values = {name: value for name, value in present.items() if name not in {*auto, *idle}}
        settings = ToolSettings(path, TITLES[tool], known, values, ignored=idle)
        unsaid = {".".join(map(str, known[name].key)) for name in auto}
        keys = {key: value for key, value in settings.spec("", {}).items() if key not in {*unsaid, "name"}}
        params = present.get("optimizer.params")
        if isinstance(params, Mapping) and params.get("torch_adam") is True:  # DeepSpeed's runtime/engine.py
            keys["training.optimizer_kernels"] = "foreach"
        facts = {key[2:]: value for key, value in keys.items() if key[:2] == "*."}
        return cls(settings, {key: value for key, value in keys.items() if key[:2] != "*."}, facts, unsaid, [])

    def join_deepspeed(self) -> None:
        """Add the settings of the DeepSpeed configuration that the file names or contains, if any."""
        path = self.facts.pop("deepspeed", None)
        if not path:
            return
        inline = isinstance(path, Mapping)
        place = Path(self.settings.path) if inline else nearest_file(self.settings.path, str(path))
        text = json.dumps(path) if inline else read_text(place, "a DeepSpeed configuration")
        inner = TrainerImport.from_text("deepspeed", str(place), text)
        explicit = {".".join(map(str, inner.settings.rows[name].key)) for name in inner.settings.in_file} | {"*.stage"}
        for target, source, sign in ((self.keys, inner.keys, ""), (self.facts, inner.facts, "*.")):
            target |= {key: value for key, value in source.items() if key not in target or f"{sign}{key}" in explicit}
        self.auto |= inner.auto
        self.settings.ignored.extend(f"{place.name}: {name}" for name in inner.settings.ignored)
        self.settings.not_modelled.extend(f"{place.name}: {name}" for name in inner.settings.not_modelled)

    def error(self, why: str) -> InputError:
        """Return an error of the whole file."""
        return InputError(f"{self.settings.path}: {why}")

    def assume(self, key: str, value: object, why: str) -> None:
        """Set a workload key unless it is set, and record its value as assumed with the reason `why`."""
        if key not in self.keys:
            self.keys[key] = value
            self.assumed.append(f"{key}: {str(value).lower() if isinstance(value, bool) else value} ({why})")

    def number(self, name: str, values: Keys, default: int = 0) -> int:
        """Return `values[name]`, the default if it is missing. Raises InputError unless it is an integer of at least 1."""
        value = values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(f"{name}: {shown(value)} must be a whole number of at least 1")
        return value

    def workload(self, tool: str, request: ImportRequest) -> Imported:
        """Return the workload of all settings, with `request` on top. Raises InputError for missing or contradictory ones."""
        presets, trainer = records_of("trainers"), str(self.facts["trainer"])
        self.keys |= request.settings
        if "training.global_batch" in request.settings:  # which decides over the steps of the file
            self.facts.pop("accumulation", None)
        name = self._model(request)
        self._precision()
        if self.number("sp", self.facts) > 1:  # Ulysses
            self.keys |= {"parallelism.cp": self.facts["sp"], "parallelism.cp_type": "a2a"}
        self.keys = {f"parallelism.{name}": self.facts.get(name) or 1 for name in ("tp", "cp")} | self.keys
        gpus = request.gpus or self.number("gpus", self.facts, int(trainer == "single"))
        if trainer == "deepspeed":
            self._deepspeed()
        elif trainer == "fsdp":
            trainer += str(self.facts.get("version", 1))
            words = re.findall(r"\w+", str(self.facts.get("fsdp", "")).upper())
            self.facts.setdefault("offload", "OFFLOAD" in words)
            strategy = next((word for word in words if word in presets), "FULL_SHARD")
            self._sharding(presets[str(self.facts.get("strategy", strategy))], gpus)
        elif trainer == "megatron":
            self.keys.setdefault("parallelism.zero", self.facts.get("stage", 0))
        if self.facts.get("offload_optimizer") is True:
            self.keys.setdefault("training.offload.optimizer_states", self.facts.get("offload_ratio", 1.0))
        self._batch(gpus)
        self._adapter()
        applied = [name for name in ("liger", "pure") if self.facts.get(name) is True]
        applied += [str(self.settings.in_file.get(name)) for name in ("optim", "optimizer")]
        applied += [f"{tool} {trainer}"] if self.keys["training.precision"] == "bf16" else []
        extra = {key: value for name in applied for key, value in presets.get(name, {}).items()}
        self.keys = {**presets["model"], **presets[trainer], **extra, **self.keys, **request.settings}
        self.assume("training.recompute", "none", "no setting of the file says it")
        if tool == "accelerate" and trainer not in ("deepspeed", "megatron"):
            self.assume("training.optimizer_kernels", "foreach", "torch.optim's default, the script may have another")
        lengths = any(key.startswith(("training.packed", "training.padded")) for key in self.keys)
        if tool in ("axolotl", "llama-factory") and not lengths:
            why = "lengths are in the data, --set training.packed.mean=N or training.padded.mean=N"
            self.assumed.append(f"full sequences of one document ({why})")
        spec = nested({"name": name, **{key: value for key, value in self.keys.items() if value is not None}})
        machine = plural(gpus, "GPU", "GPUs") if gpus else ""
        return Imported(
            spec, tuple(self.settings.ignored), tuple(self.settings.not_modelled), (), tuple(self.assumed), machine
        )

    def _model(self, request: ImportRequest) -> str:
        """Set shapes, sequence length and keys that depend on the width. Return the model's name."""
        data = described(self.settings.path, self.facts.get("model"), request.model)
        model, name, training = section_of(data, "model"), str(data.get("name", "model")), section_of(data, "training")
        self.keys |= {f"model.{key}": value for key, value in model.items() if f"model.{key}" not in self.keys}
        if "seq" in training:
            self.assume("training.seq", training["seq"], f"as in {name}")
        most = self.keys.get("model.max_positions")
        self.assume("training.seq", min(most, SEQ) if isinstance(most, int) else SEQ, "no setting of the file says it")
        hidden = self.number("model.hidden", self.keys, 1)
        for key, value in AUTO.items():
            if key in self.auto:
                (self.facts if key[:2] == "*." else self.keys)[key.removeprefix("*.")] = value(hidden)
        return name

    def _adapter(self) -> None:
        """Set the keys of low-rank adapters (LoRA) and of frozen weights' format, if the settings have an adapter."""
        if self.facts.get("adapter") is None or "training.lora" in self.keys:
            return
        targets = self.facts.get("targets", ["q_proj", "v_proj"])  # PEFT's of Llama (peft/utils/constants.py)
        targets = "all-linear" if targets == "all" or self.facts.get("all_linear") is True else targets
        gated = self.keys.get("model.activation") in ("swiglu", "geglu")
        lora: Keys = {key: self.facts[key] for key in ("rank", "alpha", "dropout") if key in self.facts}
        lora["targets"] = linears(self.settings.path, targets, gated)
        self.keys["training.lora"] = lora | ({"base": self.facts["packed"]} if "packed" in self.facts else {})

    def _precision(self) -> None:
        """Set the data type of GEMMs, and of gradients unless a setting or DistributedDataParallel changes it."""
        chosen = next(
            (name for name in ("fp8", "bf16", "fp16") if self.facts.get(name) is True), self.facts.get("mixed")
        )
        if chosen is None and self.auto & {"*.bf16", "*.fp16"}:
            self.assume("training.precision", "bf16", '"auto", which the command line of the training script decides')
        precision = self.keys.setdefault("training.precision", chosen or "fp32")
        if self.facts.get("trainer") not in ("single", "ddp", "megatron"):
            self.keys.setdefault("training.gradients", precision if precision in ("fp32", "fp16") else "bf16")

    def _deepspeed(self) -> None:
        """Set the keys of ZeRO's stage and buckets (deepspeed 0.19.8, runtime/zero/config.py, stage_1_and_2.py)."""
        stage = self.keys.setdefault("parallelism.zero", self.facts.get("stage", 0))
        if stage == 3:
            self.keys["parallelism.zero3.reduce_bucket_size"] = self.facts.get("bucket")
            self.settings.not_modelled.extend(["zero_optimization.overlap_comm"] * (self.facts.get("overlap") is False))
            return
        for key in [key for key in self.keys if key.startswith("parallelism.zero3.")]:
            del self.keys[key]
        if stage in (1, 2):
            self.keys["parallelism.bucket"] = self.facts.get("bucket")
            self.keys["parallelism.overlap.grad_reduce"] = self.facts.get("overlap") is True
            self.keys["parallelism.reduce_every_microbatch"] = stage == 2

    def _sharding(self, defaults: Mapping[str, object], gpus: int) -> None:
        """Set the keys of FSDP's sharding and gathers from `defaults` of its strategy. Raises InputError without GPUs."""
        keys = dict(defaults)
        if keys.get("parallelism.fsdp.shard") == "node":
            if not gpus:
                raise self.error("shards parameters inside nodes; give num_processes or --gpus N")
            keys["parallelism.fsdp.shard"] = max(gpus // self.number("machines", self.facts, 1), 1)
        shard, ep = self.number("shard", self.facts), self.number("parallelism.ep", self.keys)
        spread = ep > 1 and (shard or "expert_parallel_size" in self.settings.in_file)  # axolotl spreads experts alone
        if spread or self.number("replicate", self.facts) > 1:
            keys["parallelism.fsdp.shard"] = shard = max(shard, 1) * self.number("parallelism.cp", self.keys, 1)
            if spread and shard < 2:
                raise self.error(f"ep {ep} with FSDP needs a dp_shard_size of at least 2; add it, or leave FSDP out")
        if self.facts.get("offload") is True:  # torch.optim on the CPU
            states: Keys = {"parameters": True, "optimizer_states": 1.0, "update": "eager"}
            keys |= {f"training.offload.{name}": value for name, value in states.items()}
        if "backward_prefetch" in self.facts:
            keys["parallelism.fsdp.backward_prefetch"] = self.facts["backward_prefetch"]
        if self.number("accumulation", self.facts) > 1:
            keys["parallelism.fsdp.no_sync"] = True  # accelerate 1.15.0, accelerator.py: no_sync
        self.keys = {**keys, **self.keys}

    def _batch(self, gpus: int) -> None:
        """Set micro batch, global batch and replicas from two of them and the GPUs. Raises InputError if they contradict."""
        lanes = prod(self.number(f"parallelism.{name}", self.keys, 1) for name in ("tp", "pp", "cp"))
        if gpus % lanes:
            raise self.error(f"{gpus} GPUs do not divide into replicas of {lanes}; give --gpus N")
        dp, steps = self.number("parallelism.dp", self.keys, gpus // lanes), self.number("accumulation", self.facts)
        batch, micro = (self.number(f"training.{name}_batch", self.keys) for name in ("global", "micro"))
        if not batch and not dp:
            raise self.error("says neither the global batch nor the number of GPUs; give --gpus N")
        if not micro and batch and dp:
            micro = max(batch // dp // (steps or 1), 1)
        if not micro:
            micro = 8  # transformers 4.57.1, training_args.py
            self.assume("training.micro_batch", micro, "transformers' per_device_train_batch_size")
        dp = dp or (max(batch // (micro * steps), 1) if steps else 0)
        batch = batch or micro * (steps or 1) * dp
        if dp and batch != micro * (steps or batch // (micro * dp)) * dp:
            parts = f"a micro batch of {micro}" + (f" and {steps} accumulation steps" if steps else "")
            raise self.error(f"a batch of {batch} does not fit {parts} on {plural(dp, 'replica', 'replicas')}")
        self.keys |= {"training.micro_batch": micro, "training.global_batch": batch, "parallelism.dp": dp or "auto"}


def described(path: str, model_name: object, model: str | Mapping[str, object] | None) -> Section:
    """Return the workload keys of the model that a trainer's settings file names. Raises InputError without a model.

    model: a config.json, its folder, a workload's file or name, or the section `model` of a workload. Without it, `model_name` is
    the model's name at Hugging Face: the config.json in a folder of that name, or the shipped workload.
    """
    if isinstance(model, Mapping):
        return {"model": model}
    if model is None:
        if model_name is None:
            raise InputError(f"{path}: describes no model; give --model with its config.json or a workload")
        with suppress(InputError):
            model = str(nearest_file(path, f"{model_name}/config.json"))
    known = {re.sub(r"\W|_", "", name): str(place) for name, place in shipped.files("workloads").items()}
    model = model or known.get(re.sub(r"\W|_", "", str(model_name).lower().rpartition("/")[2]))
    if model is None:
        raise InputError(f"{path}: {shown(model_name)} is not here; give --model with its config.json or a workload")
    document = read(shipped.find("workloads", model))
    return (converted(document) if is_config(document.data) else document).data


def nearest_file(path: str, name: str) -> Path:
    """Return the file `name` in the current folder, that of `path`, or one above it. Raises InputError without one."""
    places = [Path(name), *(folder / name for folder in Path(path).absolute().parents)]
    file = next((place for place in places if os.path.isfile(place)), None)  # noqa: PTH113 - as in `files.exists`
    if file is None:
        raise InputError(f"{path}: {name} is not a file here or around the settings file; put it there")
    return file


def deepspeed_config(spec: Workload) -> str:
    """Return a workload as the JSON text of a DeepSpeed configuration. Raises InputError for a key without a setting."""
    split, train, offload = spec.parallelism, spec.training, spec.training.offload
    refuse(_refused(spec))
    half, zero = train.precision if train.precision != "fp32" else "bf16", "zero_optimization."
    settings = ToolSettings("", "", rows("deepspeed"), {}).plain(spec)
    settings |= {"optimizer.params": {"lr": 1e-4}, "gradient_clipping": float(train.clip_gradients)}
    settings["gradient_accumulation_steps"] = train.global_batch // (train.micro_batch * int(split.dp))
    settings |= {f"{half}.enabled": train.precision == half}
    settings |= {f"{half}.{half}_master_weights_and_grads": True} if train.main_params == half else {}
    settings |= {"bf16.bf16_optimizer_states": True} if train.moments == half == "bf16" else {}
    settings |= {"data_types.grad_accum_dtype": train.gradients} if train.gradients != train.precision else {}
    settings |= {"sequence_parallel_size": split.cp} if split.cp > 1 else {}
    settings |= {"tensor_parallel.autotp_size": split.tp} if split.tp > 1 else {}
    settings |= {f"{zero}stage": split.zero, f"{zero}overlap_comm": split.overlap.grad_reduce or split.zero == 3}
    settings |= {f"{zero}reduce_bucket_size": split.bucket} if split.bucket else {}
    zero3 = split.zero3.model_dump() if split.zero3 else {}
    settings |= {
        f"{zero}{'' if key == 'reduce_bucket_size' else 'stage3_'}{key}": value for key, value in zero3.items()
    }
    if offload.optimizer_states:
        settings |= {f"{zero}offload_optimizer": {"device": "cpu", "ratio": offload.optimizer_states}}
    settings |= {f"{zero}offload_param": {"device": "cpu"}} if offload.parameters else {}
    return json.dumps(nested(settings), indent=2) + "\n"


def _refused(spec: Workload) -> Iterator[ToolRefusal]:
    """Yield (workload key, whether DeepSpeed cannot express its value, what it supports)."""
    split, train, states = spec.parallelism, spec.training, spec.training.offload.optimizer_states
    yield "training.precision", train.precision not in ("fp32", "bf16", "fp16"), "it has fp32, bf16 and fp16"
    yield "parallelism.pp", split.pp > 1, "a pipeline is code of the model, not a setting"
    yield "parallelism.ep", split.spread, "experts are spread by code of the model, not by a setting"
    yield "parallelism.sequence_parallel", split.sequence_parallel, "AutoTP keeps whole activations on each rank"
    mixed = train.moments not in ("fp32", train.main_params)
    yield "training.moments", mixed, "with 16-bit main_params they may be bf16"
    half = train.main_params in ("bf16", "fp16") and not split.zero
    yield "training.main_params", half, "ZeRO alone has them in 16 bits"
    yield "training.offload.optimizer_states", 0 < states < 1 and split.zero < 3, "ZeRO-3 alone has a part"
    yield "training.offload.optimizer_states", states and not split.zero, "ZeRO alone offloads it"
    yield "parallelism.cp_type", split.cp > 1 and split.cp_type != "a2a", "it exchanges heads for tokens, a2a"
