"""A launch script of Megatron-LM as a workload, with what was ignored and what was assumed.

Arguments are those of megatron/training/arguments.py; for missing arguments, the workload contains Megatron's default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import PurePath
from typing import NamedTuple

from clustersim.config.fields import Section, validate_partly
from clustersim.config.overrides import replace
from clustersim.config.workload import Workload
from clustersim.config.yaml import Document, Position, parse
from clustersim.convert import megatron
from clustersim.convert.launchers import of_command, of_header
from clustersim.convert.layout_text import stages_of
from clustersim.convert.megatron import NO_EFFECT, NOT_MODELLED, implied, translated
from clustersim.convert.megatron_groups import GROUPED, GroupError, grouped_keys, silent
from clustersim.convert.settings import Keys
from clustersim.convert.shell import Shell, commands
from clustersim.convert.table import records
from clustersim.errors import ConfigError, InputError, shown
from clustersim.units import plural

TOKENIZERS = {row["tokenizer"]: int(row["tokens"]) for row in records("tokenizers")}
"""{tokenizer: size of its vocabulary}, where it is fixed; other scripts give `--vocab-size`."""
TUNED = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", "NCCL_MAX_NCHANNELS", "NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN")
"""Environment variables that change the time of a step slightly."""
GPUS = ("nproc_per_node", "nnodes")
"""Names of the GPUs per node and of the nodes among the arguments."""
THREADS = "omp_num_threads"
"""Name of the threads per process among the arguments."""
DIGITS, NUMBER = 18, re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
EACH = "num_layers_per_virtual_pipeline_stage"
"""Argument for the layers of one chunk."""
OWN = frozenset({"tokenizer_type", EACH})
"""Arguments that only this module reads."""
PROGRAMS = {"pretrain_bert": {"causal": False, "head_transform": True}}
"""{program: its model keys}: BERT sees all tokens, and has a transform before its head (core/models/bert)."""
UNBUILT = ("hybrid_attention_ratio", "hybrid_mlp_ratio", "dsa_indexer_n_heads", "heterogeneous_layers_config_path")
"""Arguments of layers that are not supported."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A workload as plain data, and the parts of the source that it leaves out, in words."""

    workload: dict[str, object]
    """Keys of a workload file."""
    ignored: tuple[str, ...]
    """Arguments that do not change the time of a step."""
    not_modelled: tuple[str, ...]
    """Arguments that change it, and are left out."""
    unknown: tuple[str, ...]
    """Unknown arguments."""
    assumed: tuple[str, ...]
    """Assumed values that the script does not set, in words."""
    machine: str = ""
    """Nodes and GPUs of the launch, as far as known."""


class ImportRequest(NamedTuple):
    """Options of an import besides the file. A tool whose files have the rest reads `settings` alone."""

    variables: Mapping[str, str] = {}
    """Environment variables of a script, such as NNODES."""
    settings: Mapping[str, object] = {}
    """{dotted key of the workload: value}, which override the file."""
    model: str | Mapping[str, object] | None = None
    """A config.json, its folder, a workload's file or name, or the section `model` of a workload."""
    gpus: int | None = None
    """Number of GPUs that the job runs on, if the file does not state it."""
    recipe: str | None = None
    """Function of a recipe in Python; None: the file's only one."""


def imported(path: str, text: str, request: ImportRequest) -> Imported:
    """Return the workload of a launch script with the content `text`; a .yaml file is a model_config.yaml of Megatron-LM's tests.

    Raises InputError for missing values, naming the unset variable.
    """
    if PurePath(path).suffix in (".yaml", ".yml"):
        return _configured(path, text, request)
    shell = commands(path, text, request.variables)
    program, launcher, words = _program(path, shell)
    options = arguments(words)
    for name, value in options.items():
        number = name.startswith("num_") or name.endswith(("_size", "_length"))
        if value is True and number and _key(name) not in request.settings:
            raise _valueless(path, text, request.variables, shell, name)
    launches = of_command(launcher), *shell.launches, of_header(text)
    gpus = next((launch.gpus for launch in launches if launch.gpus), None)
    nodes = next((launch.nodes for launch in launches if launch.nodes), None)
    machine = {name: count for name, count in zip(GPUS, (gpus, nodes), strict=True) if count}
    threads = _threads(shell, launcher, gpus or 1)
    return ArgumentImport(path, program, {**translated(options), **machine, **threads}).result(request)


def _configured(path: str, text: str, request: ImportRequest) -> Imported:
    """Return the workload of a `model_config.yaml`, which has arguments under MODEL_ARGS and the environment under ENV_VARS, as
    read by Megatron-LM's tests/functional_tests/shell_test_utils/_run_training.sh. Raises InputError if it lacks them."""
    document = parse(text, path, foreign=True)
    entries, variables = document.data.get("MODEL_ARGS"), document.data.get("ENV_VARS")
    if not isinstance(entries, dict):
        raise InputError(f"{path}: lacks MODEL_ARGS, a mapping of arguments such as --num-layers: 32; add it")
    words = list[str]()
    for name, value in entries.items():
        if value not in (None, False, ""):
            listed = str(value).startswith("[")
            text = str(value).strip("[]") if listed else str(value)
            several = text.split() if listed or name == "--hierarchical-context-parallel-sizes" else [text]
            words += [str(name)] if value is True else [str(name), *(word.strip(",'") for word in several)]
    options = translated(arguments(words))
    bert = "bert" in str(options.get("data_path", options.get("vocab_file"))) and "decoder_num_layers" not in options
    importer = ArgumentImport(path, "pretrain_bert" if bert else "", options)
    environment = variables if isinstance(variables, dict) else {}
    importer.dropped += [f"{name}={value}" for name, value in environment.items() if str(name) in TUNED]
    if (mode := document.data.get("MODE")) not in (None, "pretraining"):
        importer.assumed.append(f"a training step of the model, although MODE is {mode}")
    return importer.result(request)


def _threads(shell: Shell, launcher: Sequence[str], gpus: int) -> dict[str, int]:
    """Return {THREADS: threads per process}, {} if unknown: OMP_NUM_THREADS, or 1 by torchrun (torch distributed/run.py)."""
    threads = "".join(shell.variables.get("OMP_NUM_THREADS", []))
    if threads.isdecimal() and int(threads):
        return {THREADS: int(threads)}
    return {THREADS: 1} if gpus > 1 and re.search(r"torchrun|torch\.distributed", " ".join(launcher)) else {}


def _valueless(path: str, text: str, variables: Mapping[str, str], shell: Shell, name: str) -> InputError:
    """Return the error for argument `name`, whose value is not a number, naming the variables that would set it.

    They are found by a second reading of the script with a mark in place of each unset variable.
    """
    marked = commands(path, text, {**variables, **{variable: f"@{variable}@" for variable in shell.unset}})
    unset = list(dict.fromkeys(re.findall(r"@(\w+)@", str(arguments(_program(path, marked)[2]).get(name)))))
    if not unset:
        why = f"has no value that is known without running the script; give --set {_key(name)}=…"
        return InputError(f"{path}: {_flag(name)} {why}")
    names = ", ".join(f"${variable}" + " (an argument of the script)" * variable.isdecimal() for variable in unset)
    called = "the script's arguments behind its name, " if any(map(str.isdecimal, unset)) else ""
    why = f"; {names} {'is' if len(unset) == 1 else 'are'} not set, give {called}--var {unset[0]}=… or --set {_key(name)}=…"
    return InputError(f"{path}: {_flag(name)} has no value{why}")


def _key(name: str) -> str:
    """Return the dotted workload key of an argument, `KEY` if it sets no key by itself."""
    alias = megatron.find(name)
    return ".".join(map(str, alias.key)) if alias else "KEY"


def _program(path: str, shell: Shell) -> tuple[str, list[str], list[str]]:
    """Return (program, words before it, words after it) of the last command with a .py file. Raises InputError without one."""
    for words in reversed(shell.commands):
        at = next((place for place, word in enumerate(words) if word.endswith(".py")), None)
        if at is not None and any(word.startswith("--") for word in words[at:]):
            return PurePath(words[at]).stem, words[:at], words[at + 1 :]
    why = "launches no program such as `torchrun … pretrain_gpt.py --num-layers 32 …`; give the script that does"
    raise InputError(f"{path}: {why}")


def arguments(words: Sequence[str]) -> dict[str, object]:
    """Return {argument with underscores: value, list of values, or True for a flag} of a command."""
    options: dict[str, list[object]] = {}
    values: list[object] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            values = [_value(value)] if equals else []
            options[name.replace("-", "_")] = values
        elif options:
            values.append(_value(word.strip("'\"")))
    single = {name: several[0] if several else True for name, several in options.items() if len(several) < 2}
    return {name: single.get(name, several) for name, several in options.items()}


def _value(text: str) -> int | float | str:
    """Return a number of at most 18 digits as a number, and other text unchanged."""
    if len(text) <= DIGITS and NUMBER.fullmatch(text):
        return float(text) if set(text) & set(".eE") else int(text)
    return text


def _flag(name: str) -> str:
    """Return an argument as on a command line: `--num-layers`."""
    return f"--{name.replace('_', '-')}"


class ArgumentImport:
    """State of an import of Megatron's arguments, {name: value}.

    program: name of the Python program. flag: function from the name of an argument to its name in the file, for messages.
    """

    def __init__(self, path: str, program: str, options: Keys, flag: Callable[[str], str] = _flag) -> None:
        self.path, self.program, self.options, self.flag = path, program, options, flag
        place = PurePath(path)
        name = place.parent.name if place.stem in ("model_config", "run_config") else place.stem
        self.spec: dict[str, object] = {"name": name[:200], "model": {}, "training": {}, "parallelism": {}}
        self.assumed: list[str] = []
        self.dropped: list[str] = []

    def result(self, request: ImportRequest) -> Imported:
        """Return the workload of the arguments, with the request's settings on top. Raises InputError for invalid values."""
        self._set(request.settings)
        self._check(request.settings)
        for name, value in self._settled().items():
            self._take(name, value)
        try:
            for grouped in grouped_keys(self.options):
                self.put(grouped.key, grouped.value)
        except GroupError as error:
            raise InputError(f"{self.path}: {self.flag(error.name)}: {error.why}") from error
        self._set(request.settings)
        self._check(request.settings)
        self._model()
        self._training()
        self._parallelism()
        self._set(request.settings)
        known = {*megatron.ALIASES, *megatron.REMEDIES, *GROUPED, *OWN, *GPUS, THREADS}
        rest = {name: self.flag(name) for name in self.options if name not in known}
        ignored = tuple(flag for name, flag in rest.items() if name in NO_EFFECT)
        without = (*self.dropped, *(flag for name, flag in rest.items() if name in NOT_MODELLED))
        unknown = tuple(flag for name, flag in rest.items() if name not in NO_EFFECT | NOT_MODELLED)
        spec = {key: value for key, value in self.spec.items() if value}
        return Imported(spec, ignored, without, unknown, tuple(self.assumed), self._machine())

    def _machine(self) -> str:
        """Return the nodes and GPUs of the launch in words, such as `32 nodes of 4 GPUs`; "" if unknown."""
        gpus, nodes = (self.options.get(name) for name in GPUS)
        if not isinstance(gpus, int):
            return plural(nodes, "node", "nodes") if isinstance(nodes, int) else ""
        each = plural(gpus, "GPU", "GPUs")
        return f"{plural(nodes, 'node', 'nodes')} of {each}" if isinstance(nodes, int) else f"nodes of {each}"

    def _check(self, settings: Mapping[str, object]) -> None:
        """Raise InputError for a value of `self.spec` that its key cannot have, named as in the script if not in `settings`.

        Later steps compute with these values: layers by stages, a batch by ranks.
        """
        aliases = {name: alias.key for name in self.options if (alias := megatron.find(name))}
        overridden = {tuple(key.split(".")) for key in settings}
        names = {key: Position(0, 0, name=self.flag(name)) for name, key in aliases.items() if key not in overridden}
        try:
            validate_partly(Workload, Document(self.path, self.spec, {(): Position(0, 0), **names}))
        except ConfigError as error:
            raise InputError(f"{error}; --set changes a key of the workload") from error
        each = self.options.get(EACH)
        if each is not None and (not isinstance(each, int) or each < 1):
            raise InputError(f"{self.path}: {self.flag(EACH)}: {shown(each)} must be a whole number of at least 1")

    def _settled(self) -> dict[str, object]:
        """Return {argument: value} of those with an effect, without those that a more precise argument overrides."""
        options = dict(self.options)
        for name in self.options:
            yields = megatron.YIELDS.get(name, frozenset()) & options.keys()
            if yields or (name in megatron.NEEDS and not megatron.NEEDS[name] & self.options.keys()):
                options.pop(name)
        if not {"num_experts", "num_moe_experts"} & options.keys():
            options.pop("expert_tensor_parallel_size", None)
        if not options.get("group_query_attention") and "num_query_groups" in options:
            self._drop("num_query_groups", "says nothing without --group-query-attention")
            options.pop("num_query_groups")
        if options.get("tensor_model_parallel_size", 1) == 1 and options.pop("sequence_parallel", None):
            off = "is off with one tensor-parallel rank, as Megatron turns it off"
            self.assumed.append(f"{self.flag('sequence_parallel')} {off}")
        return options

    def _take(self, name: str, value: object) -> None:
        """Set the workload key of one argument, if it sets one by itself, or record that no key corresponds to it."""
        if name in OWN or silent(name, self.options):
            return
        if (remedy := megatron.refused(name, value)) is not None:
            self._drop(name, remedy)
        elif (alias := megatron.find(name)) is not None and (converted := alias.read(value)) is not None:
            self.put(alias.key, converted)

    def _drop(self, name: str, why: str) -> None:
        """Record an argument that is left out of the workload, with the reason."""
        self.dropped.append(f"{self.flag(name)} ({why})")

    def put(self, key: Sequence[str | int], value: object) -> None:
        """Set a value of the workload. A mapping is merged with an existing one, whose values win."""
        *parents, last = map(str, key)
        here = self._section(*parents)
        there = here.get(last, {})
        here[last] = {**value, **there} if isinstance(value, dict) and isinstance(there, dict) else value

    def _section(self, *keys: str) -> Section:
        """Return a section of the workload, created if missing. Raises InputError for a single value."""
        here = self.spec
        for key in keys:
            inner = here.setdefault(key, {})
            if not isinstance(inner, dict):
                raise InputError(f"{self.path}: {'.'.join(keys)}: {shown(inner)} must be a mapping of keys")
            here = inner
        return here

    def _integer(self, section: str, key: str, default: int = 1) -> int:
        """Return the integer `key` of a validated section, the default if it is missing or not an integer."""
        value = self._section(section).get(key)
        return value if isinstance(value, int) else default

    def _set(self, settings: Mapping[str, object]) -> None:
        """Set keys of the workload by dotted key."""
        for key, value in settings.items():
            replace(self.spec, tuple(key.split(".")), value, key)

    def default(self, key: str, value: object, why: str) -> None:
        """Set a key of the workload that no argument sets to Megatron's default, and record it in words."""
        *parents, last = key.split(".")
        here = self._section(*parents)
        if last not in here:
            here[last] = value
            self.assumed.append(f"{key}: {str(value).lower() if isinstance(value, bool) else value} ({why})")

    def _model(self) -> None:
        """Complete the model: keys of the program, vocabulary, Megatron's defaults. Raises InputError for missing shapes."""
        model = self._section("model")
        for name in UNBUILT:
            if self.options.get(name):
                why = "layers of that kind are not built; give another model"
                raise InputError(f"{self.path}: {self.flag(name)}: {why}")
        model.update(PROGRAMS.get(self.program, {}))
        for name, key in (("num_layers", "layers"), ("hidden_size", "hidden"), ("num_attention_heads", "heads")):
            if key not in model:
                why = f"which says model.{key}; give the file that has it"
                raise InputError(f"{self.path}: lacks {self.flag(name)}, {why}")
        self._vocabulary()
        self.default("model.positions", "learned", "Megatron's --position-embedding-type learned_absolute")
        self.default("model.dropout", True, "Megatron's --hidden-dropout 0.1")
        if self.options.get("swiglu") and "ffn" not in model:
            width = int(4 * self._integer("model", "hidden") * 2 / 3 / 64) * 64
            self.default("model.ffn", width, "Megatron's of SwiGLU: 8/3 of the width")

    def _vocabulary(self) -> None:
        """Set the vocabulary's size by the tokenizer's name. Raises InputError if neither is known."""
        kind = self.options.get("tokenizer_type") or self.options.get("patch_tokenizer_type", "")
        known, model = TOKENIZERS.get(str(kind)), self._section("model")
        if known is not None:
            self.default("model.vocab", known, f"{kind}'s")
        elif "vocab" not in model and "bert" in self.program:
            self.default("model.vocab", 30522, "BERT's")
        elif "vocab" not in model and not kind and "vocab_file" in self.options:
            self.default("model.vocab", 50257, "GPT-2's, whose vocabulary the script names")
        elif "vocab" not in model:
            what = f"the vocabulary of {shown(kind)} lies in its files" if kind else "the file names no tokenizer"
            raise InputError(f"{self.path}: lacks {self.flag('vocab_size')}, and {what}; give --set model.vocab=…")

    def _training(self) -> None:
        """Complete batch, precision and kernels by Megatron's defaults. Raises InputError without batch or length."""
        training = self._section("training")
        if "micro_batch" not in training or "seq" not in training:
            missing = self.flag("micro_batch_size" if "micro_batch" not in training else "seq_length")
            raise InputError(f"{self.path}: lacks {missing}; give the file that has it")
        for key, (value, why) in implied(self.options, self._integer("parallelism", "pp")).items():
            self.default(key, value, why)
        self.default("training.precision", "fp32", "Megatron's without --bf16, --fp16, --fp8-format and --fp4-format")
        half = training["precision"] == "fp16" and "accumulate_allreduce_grads_in_fp32" not in self.options
        self.default("training.gradients", "fp16" if half else "fp32", "Megatron's main gradients")
        if training.get("attention") is None:
            self.default("training.attention", "flash", "Megatron's --attention-backend auto")
        if self._section("model").get("experts"):
            self.default("training.permute_kernels", "eager", f"Megatron's without {self.flag('moe_permute_fusion')}")
        each, nodes = (self.options.get(name, 1) for name in GPUS)
        if isinstance(each, int) and isinstance(nodes, int):
            lanes = prod(self._integer("parallelism", key) for key in ("tp", "pp", "cp"))
            batch = self._integer("training", "micro_batch") * max(each * nodes // lanes, 1)
            why = f"Megatron's: micro batch × data-parallel ranks of {each} × {nodes} GPUs"
            self.default("training.global_batch", batch, why)

    def _parallelism(self) -> None:
        """Complete the pipeline's chunks and schedule, and drop settings that have no effect with the others."""
        split = self._section("parallelism")
        each, pp = self.options.get(EACH), self._integer("parallelism", "pp")
        if isinstance(each, int):
            split["vpp"] = max(self._integer("model", "layers") // pp // each, 1)
        if "layout" in split:
            split["vpp"] = max(stages_of(str(split["layout"])) // pp, 1)
        if self._integer("parallelism", "vpp") > 1:
            split.setdefault("schedule", "interleaved")
            self.default("parallelism.overlap.p2p", True, "Megatron's of interleaved schedules")
        if self._section("training").get("optimizer") == "muon":  # before what says nothing without it
            why = "layer-wise, by dist_muon or --use-distributed-optimizer; with 0 each replica updates all matrices"
            self.default("parallelism.zero", 1, why)
        overlap = self._section("parallelism", "overlap") if "overlap" in split else {}
        if not split.get("zero") and overlap.pop("param_gather", False):
            self._drop("overlap_param_gather", "says nothing without --use-distributed-optimizer")
        offload = self._section("training").get("offload")
        if THREADS in self.options and isinstance(offload, dict) and "optimizer_states" in offload:
            why = "OMP_NUM_THREADS, 1 where only torchrun says it"
            self.default("training.offload.threads", self.options[THREADS], why)
        self.default("parallelism.dp", "auto", "as many replicas as the cluster holds and the batch allows")


def lines(result: Imported) -> Iterator[str]:
    """Yield one line on the machine, if known, and a line for each reason why arguments are left out of the workload."""
    if result.machine:
        yield f"launched on: {result.machine}; give `run` a topology of that size"
    reasons = {"assumed": result.assumed, "not modelled": result.not_modelled, "unknown": result.unknown}
    reasons["ignored, no effect on the time of a step"] = result.ignored
    yield from (f"{what}: {', '.join(listed)}" for what, listed in reasons.items() if listed)
