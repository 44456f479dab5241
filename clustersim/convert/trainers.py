"""Settings files of trainers around a Hugging Face model as workloads: DeepSpeed, accelerate, axolotl and LLaMA-Factory.

`tables/NAME.csv` has the settings of each tool. Keys there that begin with `*.` are intermediate values, such as
`*.accumulation`, which this module combines into keys of a workload. `tables/trainers.yaml` has the keys that hold in every run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple

from clustersim.config import shipped
from clustersim.config.fields import Section
from clustersim.config.workload import Workload
from clustersim.config.yaml import parse, read
from clustersim.convert.conversions import rows
from clustersim.convert.hugging_face_workload import SEQ, converted, is_config, section_of
from clustersim.convert.megatron_script import Imported
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


class TrainerRequest(NamedTuple):
    """Options of an import besides the settings file."""

    model: str | Mapping[str, object] | None = None
    """A config.json, its folder, a workload's file or name, or the section `model` of a workload."""
    gpus: int | None = None
    """Number of GPUs that the job runs on."""
    settings: Mapping[str, object] = {}
    """Overriding values of workload keys, by dotted key."""


def imported(tool: str, path: str, text: str, asked: TrainerRequest) -> Imported:
    """Return the workload of a settings file. Raises InputError with the setting that is unknown or cannot be expressed."""
    found = TrainerImport.of(tool, path, text)
    if tool == "deepspeed" or found.facts.get("deepspeed"):
        found.facts["trainer"] = "deepspeed"
        found.join_deepspeed()
    sharded = any(found.facts.get(name) for name in ("fsdp", "version", "shard", "strategy"))
    found.facts.setdefault("trainer", "fsdp" if sharded else "ddp")
    return found.workload(tool, asked)


@dataclass
class TrainerImport:
    """State of an import: keys of the workload, and intermediate values from settings."""

    said: ToolSettings
    keys: Keys
    facts: Keys
    auto: set[str]
    """Keys, and intermediate values as `*.NAME`, of settings whose value is "auto"."""
    assumed: list[str]

    @classmethod
    def of(cls, tool: str, path: str, text: str) -> TrainerImport:
        """Return the state after a settings file was read. Raises InputError for invalid files and unknown values."""
        known = rows(tool)
        sections = {name[:at] for name in known for at, letter in enumerate(name) if letter == "."}
        said = flat(parse(text, path, foreign=True).data, known.__contains__)
        given = {name: value for name, value in said.items() if value or name not in sections}
        unset = {name for name in given.keys() & known if given[name] == "auto" and "auto" not in known[name].words}
        auto = {name for name in unset if known[name].key[0] not in ("-", "~", "!")}
        kind = given.get("distributed_type")
        idle = [name for name in given if kind and SECTIONS.get(name.partition(".")[0], kind) != kind and name in known]
        said = {name: value for name, value in given.items() if name not in {*auto, *idle}}
        settings = ToolSettings(path, TITLES[tool], known, said, ignored=idle)
        unsaid = {".".join(map(str, known[name].key)) for name in auto}
        found = {key: value for key, value in settings.spec("", {}).items() if key not in {*unsaid, "name"}}
        params = given.get("optimizer.params")
        if isinstance(params, Mapping) and params.get("torch_adam") is True:  # DeepSpeed's runtime/engine.py
            found["training.optimizer_kernels"] = "foreach"
        facts = {key[2:]: value for key, value in found.items() if key[:2] == "*."}
        return cls(settings, {key: value for key, value in found.items() if key[:2] != "*."}, facts, unsaid, [])

    def join_deepspeed(self) -> None:
        """Add the settings of the DeepSpeed configuration that the file names, if any."""
        path = self.facts.pop("deepspeed", None)
        if not path:
            return
        inline = isinstance(path, Mapping)
        place = Path(self.said.path) if inline else nearest_file(self.said.path, str(path))
        text = json.dumps(path) if inline else read_text(place, "a DeepSpeed configuration")
        inner = TrainerImport.of("deepspeed", str(place), text)
        given = {".".join(map(str, inner.said.rows[name].key)) for name in inner.said.given} | {"*.stage"}
        for own, theirs, sign in ((self.keys, inner.keys, ""), (self.facts, inner.facts, "*.")):
            own |= {key: value for key, value in theirs.items() if key not in own or f"{sign}{key}" in given}
        self.auto |= inner.auto
        self.said.ignored.extend(f"{place.name}: {name}" for name in inner.said.ignored)
        self.said.not_modelled.extend(f"{place.name}: {name}" for name in inner.said.not_modelled)

    def error(self, why: str) -> InputError:
        """Return an error of the whole file."""
        return InputError(f"{self.said.path}: {why}")

    def assume(self, key: str, value: object, why: str) -> None:
        """Set a key that no setting sets, and record it as assumed."""
        if key not in self.keys:
            self.keys[key] = value
            self.assumed.append(f"{key}: {str(value).lower() if isinstance(value, bool) else value} ({why})")

    def number(self, name: str, found: Keys, default: int = 0) -> int:
        """Return a positive integer of `found`, the default if it is missing. Raises InputError for another value."""
        value = found.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(f"{name}: {shown(value)} must be a whole number of at least 1")
        return value

    def workload(self, tool: str, asked: TrainerRequest) -> Imported:
        """Return the workload of all settings. Raises InputError for missing ones."""
        usual, trainer = records_of("trainers"), str(self.facts["trainer"])
        self.keys |= asked.settings
        if "training.global_batch" in asked.settings:  # which decides over the steps of the file
            self.facts.pop("accumulation", None)
        name = self._model(asked)
        self._precision()
        if self.number("sp", self.facts) > 1:  # Ulysses
            self.keys |= {"parallelism.cp": self.facts["sp"], "parallelism.cp_type": "a2a"}
        self.keys = {f"parallelism.{name}": self.facts.get(name) or 1 for name in ("tp", "cp")} | self.keys
        gpus = asked.gpus or self.number("gpus", self.facts, int(trainer == "single"))
        if trainer == "deepspeed":
            self._deepspeed()
        elif trainer == "fsdp":
            trainer += str(self.facts.get("version", 1))
            words = re.findall(r"\w+", str(self.facts.get("fsdp", "")).upper())
            self.facts.setdefault("offload", "OFFLOAD" in words)
            strategy = next((word for word in words if word in usual), "FULL_SHARD")
            self._sharding(usual[str(self.facts.get("strategy", strategy))], gpus)
        elif trainer == "megatron":
            self.keys.setdefault("parallelism.zero", self.facts.get("stage", 0))
        if self.facts.get("offload_optimizer") is True:
            self.keys.setdefault("training.offload.optimizer_states", self.facts.get("offload_ratio", 1.0))
        self._batch(gpus)
        self._adapter()
        own = [name for name in ("liger", "pure") if self.facts.get(name) is True]
        own += [str(self.said.given.get(name)) for name in ("optim", "optimizer")]
        own += [f"{tool} {trainer}"] if self.keys["training.precision"] == "bf16" else []
        extra = {key: value for name in own for key, value in usual.get(name, {}).items()}
        self.keys = {**usual["model"], **usual[trainer], **extra, **self.keys, **asked.settings}
        self.assume("training.recompute", "none", "no setting of the file says it")
        if tool == "accelerate" and trainer not in ("deepspeed", "megatron"):
            self.assume("training.optimizer_kernels", "foreach", "torch.optim's default, the script may have another")
        lengths = any(key.startswith(("training.packed", "training.padded")) for key in self.keys)
        if tool in ("axolotl", "llama-factory") and not lengths:
            why = "lengths are in the data, --set training.packed.mean=N or training.padded.mean=N"
            self.assumed.append(f"full sequences of one document ({why})")
        spec = nested({"name": name, **{key: value for key, value in self.keys.items() if value is not None}})
        machine = plural(gpus, "GPU", "GPUs") if gpus else ""
        return Imported(spec, tuple(self.said.ignored), tuple(self.said.not_modelled), (), tuple(self.assumed), machine)

    def _model(self, asked: TrainerRequest) -> str:
        """Set the model's shapes, the sequence length, and keys that depend on the width. Return the model's name."""
        data = described(self.said.path, self.facts.get("model"), asked.model)
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
        """Set the low-rank adapters of LoRA, and the frozen weights of bitsandbytes."""
        if self.facts.get("adapter") is None or "training.lora" in self.keys:
            return
        said = self.facts.get("targets", ["q_proj", "v_proj"])  # PEFT's of Llama (peft/utils/constants.py)
        said = "all-linear" if said == "all" or self.facts.get("all_linear") is True else said
        names = said.split(",") if isinstance(said, str) and said != "all-linear" else said
        gated = self.keys.get("model.activation") in ("swiglu", "geglu")
        lora: Keys = {key: self.facts[key] for key in ("rank", "alpha", "dropout") if key in self.facts}
        lora["targets"] = linears(self.said.path, names, gated)
        self.keys["training.lora"] = lora | ({"base": self.facts["packed"]} if "packed" in self.facts else {})

    def _precision(self) -> None:
        """Set the data type of GEMMs, and of gradients unless a setting or DistributedDataParallel changes it."""
        said = next((name for name in ("fp8", "bf16", "fp16") if self.facts.get(name) is True), self.facts.get("mixed"))
        if said is None and self.auto & {"*.bf16", "*.fp16"}:
            self.assume("training.precision", "bf16", '"auto", which the command line of the training script decides')
        precision = self.keys.setdefault("training.precision", said or "fp32")
        if self.facts.get("trainer") not in ("single", "ddp", "megatron"):
            self.keys.setdefault("training.gradients", precision if precision in ("fp32", "fp16") else "bf16")

    def _deepspeed(self) -> None:
        """Set the keys of ZeRO's stage and buckets (deepspeed 0.19.8, runtime/zero/config.py, stage_1_and_2.py)."""
        stage = self.keys.setdefault("parallelism.zero", self.facts.get("stage", 0))
        if stage == 3:
            self.keys["parallelism.zero3.reduce_bucket_size"] = self.facts.get("bucket")
            self.said.not_modelled.extend(["zero_optimization.overlap_comm"] * (self.facts.get("overlap") is False))
            return
        for key in [key for key in self.keys if key.startswith("parallelism.zero3.")]:
            del self.keys[key]
        if stage in (1, 2):
            self.keys["parallelism.bucket"] = self.facts.get("bucket")
            self.keys["parallelism.overlap.grad_reduce"] = self.facts.get("overlap") is True
            self.keys["parallelism.reduce_every_microbatch"] = stage == 2

    def _sharding(self, usual: Mapping[str, object], gpus: int) -> None:
        """Set the keys of FSDP's sharding and gathers, by its sharding strategy."""
        keys = dict(usual)
        if keys.get("parallelism.fsdp.shard") == "node":
            if not gpus:
                raise self.error("shards parameters inside nodes; give num_processes or --gpus N")
            keys["parallelism.fsdp.shard"] = max(gpus // self.number("machines", self.facts, 1), 1)
        if self.number("replicate", self.facts) > 1:
            shard = self.number("shard", self.facts, 1) * self.number("parallelism.cp", self.keys, 1)
            keys["parallelism.fsdp.shard"] = shard
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


def described(path: str, said: object, asked: str | Mapping[str, object] | None) -> Section:
    """Return the workload with the model of a settings file. Raises InputError if none describes the model.

    asked: a config.json, its folder, a workload's file or name, or the section `model` of a workload. Without it, `said` is the
    model's name at Hugging Face: the config.json in a folder of that name, or the shipped workload.
    """
    if isinstance(asked, Mapping):
        return {"model": asked}
    if asked is None:
        if said is None:
            raise InputError(f"{path}: describes no model; give --model with its config.json or a workload")
        with suppress(InputError):
            asked = str(nearest_file(path, f"{said}/config.json"))
    known = {re.sub(r"\W|_", "", name): str(place) for name, place in shipped.files("workloads").items()}
    asked = asked or known.get(re.sub(r"\W|_", "", str(said).lower().rpartition("/")[2]))
    if asked is None:
        raise InputError(f"{path}: {shown(said)} is not here; give --model with its config.json or a workload")
    document = read(shipped.find("workloads", asked))
    return (converted(document) if is_config(document.data) else document).data


def nearest_file(path: str, name: str) -> Path:
    """Return the file of a name, relative to here, the settings file's folder, or one above. Raises InputError without one."""
    places = [Path(name), *(folder / name for folder in Path(path).absolute().parents)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise InputError(f"{path}: {name} is not a file here or around the settings file; put it there")
    return found


def deepspeed_config(spec: Workload) -> str:
    """Return the DeepSpeed configuration of a placed workload as JSON. Raises InputError for a key without a setting."""
    one, train, offload = spec.parallelism, spec.training, spec.training.offload
    refuse(_refused(spec))
    half, zero = train.precision if train.precision != "fp32" else "bf16", "zero_optimization."
    found = ToolSettings("", "", rows("deepspeed"), {}).plain(spec)
    found |= {"optimizer.params": {"lr": 1e-4}, "gradient_clipping": float(train.clip_gradients)}
    found["gradient_accumulation_steps"] = train.global_batch // (train.micro_batch * int(one.dp))
    found |= {f"{half}.enabled": train.precision == half}
    found |= {f"{half}.{half}_master_weights_and_grads": True} if train.main_params == half else {}
    found |= {"bf16.bf16_optimizer_states": True} if train.moments == half == "bf16" else {}
    found |= {"data_types.grad_accum_dtype": train.gradients} if train.gradients != train.precision else {}
    found |= {"sequence_parallel_size": one.cp} if one.cp > 1 else {}
    found |= {"tensor_parallel.autotp_size": one.tp} if one.tp > 1 else {}
    found |= {f"{zero}stage": one.zero, f"{zero}overlap_comm": one.overlap.grad_reduce or one.zero == 3}
    found |= {f"{zero}reduce_bucket_size": one.bucket} if one.bucket else {}
    own = one.zero3.model_dump() if one.zero3 else {}
    found |= {f"{zero}{'' if key == 'reduce_bucket_size' else 'stage3_'}{key}": value for key, value in own.items()}
    if offload.optimizer_states:
        found |= {f"{zero}offload_optimizer": {"device": "cpu", "ratio": offload.optimizer_states}}
    found |= {f"{zero}offload_param": {"device": "cpu"}} if offload.parameters else {}
    return json.dumps(nested(found), indent=2) + "\n"


def _refused(spec: Workload) -> Iterator[ToolRefusal]:
    """Yield keys of a workload, whether DeepSpeed has no setting for their values, and what it has."""
    one, train, states = spec.parallelism, spec.training, spec.training.offload.optimizer_states
    yield "training.precision", train.precision not in ("fp32", "bf16", "fp16"), "it has fp32, bf16 and fp16"
    yield "parallelism.pp", one.pp > 1, "a pipeline is code of the model, not a setting"
    yield "parallelism.ep", one.spread, "experts are spread by code of the model, not by a setting"
    yield "parallelism.sequence_parallel", one.sequence_parallel, "AutoTP keeps whole activations on each rank"
    mixed = train.moments not in ("fp32", train.main_params)
    yield "training.moments", mixed, "with 16-bit main_params they may be bf16"
    half = train.main_params in ("bf16", "fp16") and not one.zero
    yield "training.main_params", half, "ZeRO alone has them in 16 bits"
    yield "training.offload.optimizer_states", 0 < states < 1 and one.zero < 3, "ZeRO-3 alone has a part"
    yield "training.offload.optimizer_states", states and not one.zero, "ZeRO alone offloads it"
    yield "parallelism.cp_type", one.cp > 1 and one.cp_type != "a2a", "it exchanges heads for tokens, a2a"
