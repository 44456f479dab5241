"""Defaults of frameworks: read from YAML, and found by the words of publications."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import exp, fsum, log
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from clustersim.config.evidence import Evidence, StepEvidence
from clustersim.config.fields import Name, Size, Spec, Time, validate
from clustersim.config.yaml import Document, read
from clustersim.errors import UnknownNameError, suggest
from clustersim.hardware.constants import STEP_CALL
from clustersim.hardware.formats import activation_type

FOLDER = Path(__file__).parent
OVERLAP_TP = "parallelism.overlap.tp"
INHERITED = ("defaults", "always", "rules", "facts", "choices", "host", "memory", "nccl")
"""Parts of a file that also apply to frameworks that extend it."""


class Default(StepEvidence):
    """A default and its source; `value` None: the framework has none, so a workload must set it."""

    value: Any = None


class LaunchTime(StepEvidence):
    """Host time of a launch in seconds, with its source. `unseen` is the value without the publishers in `read_from`."""

    value: Time


class Habit(StepEvidence):
    """Whether a framework's host has a habit, and the source."""

    value: bool


class OfferedValues(Spec):
    """Values of a key that users of the framework can choose, and their source."""

    values: Annotated[tuple[Any, ...], Field(strict=False)]
    chunked: bool = False
    """Whether all values but the first need several chunks per pipeline rank."""
    source: Name

    def has(self, value: object, chunks: int) -> bool:
        """Return whether a value can be chosen with `chunks` chunks per pipeline rank."""
        return value in self.values[: None if chunks > 1 or not self.chunked else 1]


class HostTimes(Spec):
    """Seconds of the host per launch, on the CPUs named in the sources."""

    kernel: LaunchTime
    """Seconds per kernel, including Python around it."""
    collective: LaunchTime
    """Seconds per collective or message."""
    parameter: LaunchTime
    """Seconds per parameter tensor at the weight update."""
    drains: Habit
    """Whether the host waits until its GPU is idle at each pipeline message."""
    reads_loss: Habit | None = None
    """Whether the host waits for its GPU to read the loss of each microbatch and the norm of each bucket; default: False."""
    reads_counts: Habit | None = None
    """Whether the host waits for its GPU to read the number of rows per expert before it sends them; default: False."""
    unflattens: LaunchTime | None = None
    """Seconds per tensor and rank to copy gathered parameters back into place (ZeRO-1); default: one buffer, as in Megatron."""
    launches: dict[str, Annotated[float, Field(ge=0, strict=False)]] = Field(default_factory=dict)
    """{kind or kind.op: launches per kernel of ours}"""


class Flag(Spec):
    """Whether a framework has a property, and the source."""

    value: bool = False
    source: str = ""


class RingKind(Spec):
    """Kind of attention of context-parallel ranks, and its source."""

    value: Literal["fused", "eager", "eager_flash2", "eager_flash2_repeated", "by_head"] = "fused"
    """`fused`: Transformer Engine's. `eager`: separate kernels add each step of a ring in fp32; `eager_flash2` also calls
    FlashAttention-2, `eager_flash2_repeated` with keys and values of all heads. `by_head`: gathers near tokens head by head."""
    source: str = ""


class KeptBytes(Spec):
    """Bytes, with their source."""

    value: Size = 0.0
    source: str = ""


class KeptTensors(Spec):
    """Tensors that a framework keeps on a GPU besides the model's."""

    reducer_buckets: Flag = Flag()
    """With replicas, gradients in the weights' data type are also in buckets of PyTorch's DistributedDataParallel."""
    flat_gathers: Flag = Flag()
    """Gathers of a sharded optimizer use one tensor for all parameters, which PyTorch's allocator keeps."""
    stacked_attention: Flag = Flag()
    """Queries, keys and values of all heads stay in one tensor, and keys and values are copied again for attention."""
    dummy_gradients: Flag = Flag()
    """One tensor per weight shape stays as the gradient of weights whose GEMMs add to the main gradient."""
    narrow_weights: Flag = Flag()
    """With a `training.precision` below 16 bits, weights of linear layers are also stored in it, row- and column-wise."""
    separate_rows: Flag = Flag()
    """Separate kernels weight, pad and restore rows of experts."""
    grouped_products: Flag = Flag()
    """One kernel multiplies the rows of all experts; otherwise one GEMM per expert (Transformer Engine)."""
    recast_weights: Flag = Flag()
    """With a `training.precision` below 16 bits, weights are cast in each pass; otherwise once per step."""
    wide_gradients: Flag = Flag()
    """With a `training.precision` below 16 bits, weight gradients of experts are made in fp32, cast and added by kernels."""
    ring: RingKind = RingKind()
    """Attention of context-parallel ranks with `cp_type: p2p`."""
    redistributes: Flag = Flag()
    """Eager tensors gathered or scattered along the sequence over tp are copied into the order of its tokens."""
    workspaces: KeptBytes = KeptBytes()
    """Bytes of workspaces of GEMM libraries, as far as the framework or PyTorch allocates them."""
    grouped_workspaces: KeptBytes = KeptBytes()
    """Additional bytes for grouped GEMMs."""


Rule = Literal["zero_with_pipeline", "repeats_kv_heads", "exchanges_few_kv_heads"]
"""Rules for legal splits. `zero_with_pipeline`: highest `parallelism.zero` with a pipeline (default: any). Whether more ranks
than key/value heads may share them (`repeats_kv_heads`) or exchange heads for tokens (`exchanges_few_kv_heads`); default: yes."""


class JobRecipe(Evidence):
    """Values that a script in the framework's repository sets for one job, used if a publication of that job leaves them open.

    `source` is the script. The recipe is not used without its publisher's steps.
    """

    of: dict[str, int | str]
    """{column of a measured run: value} that identify the job."""
    values: dict[str, Any]
    """{dotted key of a workload: value}"""


class Framework(Spec):
    """Properties of a framework: fusion, overlap, host times, memory."""

    name: Name
    title: Name
    match: Annotated[tuple[Name, ...], Field(strict=False)]
    """Names as people write them, in lower case; all words of a name must occur in a text, in any order."""
    extends: Name | None = None
    """Framework whose defaults, facts, host and memory this one inherits, except for keys in its own file."""
    trainer: Literal["recipes", "megatron", "deepspeed", "torch", "xla", "generic"] = "generic"
    """Kind of trainer, by which published steps are pooled: NVIDIA's recipes, Megatron-LM and its forks, DeepSpeed's pipelines,
    plain PyTorch and its sharding, XLA, and any other."""
    over: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    """Frameworks on which this one is built, whose names may occur next to its own."""
    assumes: str = ""
    """Assumptions, in words, if the file describes a generic trainer rather than a named release."""
    since: int = 0
    until: int = 9999
    """Last year for which these defaults hold."""
    stages: Literal["even", "any"] = "even"
    """Whether layers must divide evenly over pipeline stages."""
    rules: dict[Rule, Default] = Field(default_factory=dict)
    """Splits that it refuses; default: those that Megatron-Core refuses."""
    microbatch_a_stage: Habit | None = None
    """Whether a batch is divided into as many microbatches as stages by default; otherwise by the micro-batch size."""
    reduces_whole: Habit | None = None
    """Whether gradients are all-reduced even if the optimizer is sharded; default: reduce-scattered."""
    broadcasts: Habit | None = None
    """Whether owners of parameters broadcast them one after the other after the update; default: one all-gather."""
    defaults: dict[str, Default]
    """Default and source by dotted key of a workload; `training.gradients` by the type of activations, and, where a framework
    differs by GPU, `training.attention` by architecture."""
    always: dict[str, Default] = Field(default_factory=dict)
    """Values of every run by dotted key of a workload, unless the workload sets them."""
    facts: dict[str, Default] = Field(default_factory=dict)
    """Properties that no workload can express, in words."""
    choices: dict[str, OfferedValues] = Field(default_factory=dict)
    """Values that users can choose, by dotted key. Unlisted overlap is not available; other unlisted keys take any legal
    value."""
    host: HostTimes | None = None
    """Host times; None if not measured."""
    memory: KeptTensors | None = None
    """Memory besides the model; None if unknown."""
    nccl: dict[str, Default] = Field(default_factory=dict)
    """Settings of the communication library in its own scripts with a pipeline, by key of a topology's `nccl`."""
    recipes: Annotated[tuple[JobRecipe, ...], Field(strict=False)] = ()
    """Recipes of published jobs."""

    @property
    def family(self) -> str:
        """Name that its releases share: the first word of its title."""
        return self.title.split()[0].strip(",")

    def named(self, text: str) -> bool:
        """Return whether a lower-case text contains one of its names."""
        return any(all(word in text for word in name.split()) for name in self.match)

    def value(self, key: str, *of: str) -> Any:
        """Return the default of a dotted key, None if there is none; mappings are read for `of`, a precision or architecture.

        A precision that is missing in a mapping is read as the type of its activations.
        """
        found = self.defaults.get(key)
        value = None if found is None else found.value
        if not isinstance(value, dict):
            return value
        return next((value[one] for one in (*of, *map(activation_type, of)) if one in value), None)

    def recomputation(self, said: str, *of: str) -> tuple[str, list[str]]:
        """Return (`recompute`, `recompute_saves`) for a run that reports `none`, `selective`, `full` or nothing.

        Selective means the framework's policy if it has one, else Megatron's; `of` as in `value`.
        """
        how, policy = said or self.value("training.recompute", *of), self.value("training.recompute_saves", *of)
        if policy and (how == "selective" or (how == "full" and not said)):
            return "full", policy
        return how, self.value("training.recompute_saves_full", *of) or [] if how == "full" else []

    def habits(self, schedule: object = None, precision: object = None) -> dict[str, Any]:
        """Return {dotted key: value} of every run with this schedule (None: its own), and the source of fp8 scales."""
        own, scaling = self.always.get("parallelism.schedule"), self.value("training.fp8_scaling")
        kept = {} if own and schedule not in (None, own.value) else self.always
        scaled = {"training.fp8_scaling": scaling} if precision == "fp8" and scaling else {}
        return {key: one.value for key, one in kept.items()} | scaled

    @property
    def overlapped_tp(self) -> str:
        """Value of `parallelism.overlap.tp` for a run that reports tensor-parallel overlap: the most that the framework has."""
        choice, own = self.choices.get(OVERLAP_TP), self.value(OVERLAP_TP)
        return str(choice.values[-1]) if choice else "bulk" if own in (None, "none") else str(own)

    def without(self, publisher: str) -> Framework:
        """Return the framework without values read from a publisher's steps; its host times become `unseen`."""
        defaults = {
            key: one.model_copy(update={"value": one.without(publisher)}) if publisher in one.read_from else one
            for key, one in self.defaults.items()
        }
        recipes = tuple(one for one in self.recipes if publisher not in one.read_from)
        return self.model_copy(update={"defaults": defaults, "recipes": recipes, "host": self._host_without(publisher)})

    def _host_without(self, publisher: str) -> HostTimes | None:
        parts = ((name, one) for name, one in self.host or () if isinstance(one, StepEvidence))
        changed = {
            name: type(one).model_validate({"value": value, "source": one.source})
            for name, one in parts
            if publisher in one.read_from and (value := one.without(publisher)) is not None
        }
        return self.host.model_copy(update=changed) if self.host else None

    def recipe(self, job: object) -> JobRecipe | None:
        """Return the recipe of a job, an object with attributes such as layers and tp; None without a known script."""
        fits = (one for one in self.recipes if all(getattr(job, name) == value for name, value in one.of.items()))
        return next(fits, None)


WITHOUT = " without "


def offers(framework: object) -> Mapping[str, OfferedValues]:
    """Return {dotted key: values} that a framework supports; a missing key may have any value, as without a framework."""
    return load(str(framework)).choices if framework else {}


def load(name: str) -> Framework:
    """Return the framework of that name; `nanotron without ULTRA` excludes values read from a publisher's steps.

    Raises UnknownNameError with the nearest match.
    """
    own, _, publisher = name.partition(WITHOUT)
    known = {one.name: one for one in everything()}
    if own not in known:
        raise UnknownNameError(f"{own!r} is none of the frameworks; {suggest(own, known)}")
    return known[own].without(publisher) if publisher else known[own]


@cache
def everything() -> tuple[Framework, ...]:
    """Return all frameworks, sorted by name."""
    return tuple(validate(Framework, _document(path)) for path in sorted(FOLDER.glob("*.yaml")))


def _document(path: Path) -> Document:
    """Return a file of the folder, including the keys inherited from the framework that it extends."""
    own = read(path)
    base = own.data.get("extends")
    if base is None:
        return own
    inner = _document(FOLDER / f"{base}.yaml").data
    inherited = {part: {**inner[part], **own.data.get(part, {})} for part in INHERITED if part in inner}
    scalars: dict[str, Any] = {key: inner[key] for key in ("stages", "trainer") if key in inner}
    return replace(own, data={**scalars, **own.data, **inherited})


def unseen(framework: Framework, source: str) -> float | None:
    """Return the ratio of a kernel's launch time without a publisher's steps to the time with them; None if they were not used.

    The time without them is the geometric mean over the hosts of other publishers and the measured ones.
    """
    own = None if framework.host is None else framework.host.kernel
    if own is None or source not in own.read_from:
        return None
    known = {one.host.kernel.read_from: one.host.kernel.value for one in everything() if one.host is not None}
    times = [STEP_CALL, *(value for sources, value in known.items() if sources and source not in sources)]
    return exp(fsum(log(value / own.value) for value in times) / len(times))


def releases(framework: Framework, year: int | None = None) -> list[Framework]:
    """Return the releases of a framework, those nearest to a year first, newer ones first if equal; None: the newest first."""
    when = 9999 if year is None else year
    found = [one for one in everything() if set(framework.match) & set(one.match)]
    return sorted(found, key=lambda one: (max(one.since - when, when - one.until, 0), -one.since))


def find(words: str, year: int | None = None) -> Framework | None:
    """Return the framework in a text such as `NeMo 2.0 25.02`; None if there is none, or more than one.

    If one of two is built on the other, the upper one counts; among releases, the year's, or without a year the newest. If no
    framework is named, words such as `DDP` or `JAX` select one, with what it `assumes`.
    """
    text, when = words.lower(), 9999 if year is None else year
    hits = [one for one in everything() if one.since <= when <= one.until and one.named(text)]
    hits = [one for one in hits if not one.assumes] or hits
    below = {name for one in hits for name in one.over}
    upper = [one for one in hits if one.name not in below]
    return upper[0] if len(upper) == 1 else None
