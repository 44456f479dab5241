"""Defaults of frameworks: read from YAML, and found by the words of publications."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
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
"""Folder of the YAML files."""
OVERLAP_TP = "parallelism.overlap.tp"
"""Key of the overlap of tensor-parallel collectives."""
INHERITED = ("defaults", "always", "rules", "facts", "choices", "host", "memory", "nccl")
"""Sections of a file that frameworks inherit if they extend it."""


class Default(StepEvidence):
    """A default and its source."""

    value: Any = None
    """Default, or {precision or architecture: default}; None: the framework has none, so a workload must set it."""


class LaunchTime(StepEvidence):
    """Host time of a launch with its source. `unseen` is the value fitted without the publishers in `read_from`."""

    value: Time
    """Seconds of the host."""


class Habit(StepEvidence):
    """Whether a framework, or its host process, behaves in a certain way, with the source."""

    value: bool
    """Whether it does."""


class OfferedValues(Spec):
    """Values of a key that users of the framework can choose, and their source."""

    values: Annotated[tuple[Any, ...], Field(strict=False)]
    chunked: bool = False
    """Whether all values but the first need several chunks per pipeline rank."""
    source: Name
    """Document or code that lists the values."""

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
    """{kernel kind or kind.op: number of launches per kernel of the model}; default: 1."""


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
    """Bytes on each GPU."""
    source: str = ""


class KeptTensors(Spec):
    """Tensors that a framework keeps on a GPU in addition to the model's, and kernels that differ from the usual ones."""

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
    """With a `training.precision` below 16 bits, weight gradients of experts are computed in fp32, cast and added by kernels."""
    ring: RingKind = RingKind()
    """Attention of context-parallel ranks with `cp_type: p2p`."""
    redistributes: Flag = Flag()
    """Eager tensors gathered or scattered along the sequence over tp are copied into the order of its tokens."""
    workspaces: KeptBytes = KeptBytes()
    """Bytes of workspaces of GEMM libraries, as far as the framework or PyTorch allocates them."""
    grouped_workspaces: KeptBytes = KeptBytes()
    """Additional bytes for grouped GEMMs."""


Rule = Literal["zero_with_pipeline", "repeats_kv_heads", "exchanges_few_kv_heads"]
"""Names of rules for legal splits. `zero_with_pipeline`: highest `parallelism.zero` with a pipeline (default: any). Whether more
ranks than key/value heads may share them (`repeats_kv_heads`) or exchange heads for tokens (`exchanges_few_kv_heads`);
default: yes."""


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
    """Names as people write them, in lower case; all words of a name must occur in a text, in any order. Words of up to three
    letters, such as `pax`, must not be parts of longer words there."""
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
    """First year for which these defaults hold."""
    until: int = 9999
    """Last year for which these defaults hold."""
    stages: Literal["even", "any"] = "even"
    """`even`: layers must divide evenly over pipeline stages; `any`: they need not."""
    rules: dict[Rule, Default] = Field(default_factory=dict)
    """{rule: value} for splits that it refuses; default: as Megatron-Core."""
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
    """Tensors in addition to the model's; None if unknown."""
    nccl: dict[str, Default] = Field(default_factory=dict)
    """Settings of the communication library in its own scripts with a pipeline, by key of a topology's `nccl`."""
    recipes: Annotated[tuple[JobRecipe, ...], Field(strict=False)] = ()
    """Recipes of published jobs."""

    @property
    def family(self) -> str:
        """Name that its releases share: the first word of its title."""
        return self.title.split()[0].strip(",")

    def is_named_in(self, text: str) -> bool:
        """Return whether a lower-case text contains all words of one of the framework's names; short ones as whole words."""
        whole = set(re.findall(r"[^\W\d_]+", text))
        return any(all(word in (whole if len(word) < 4 else text) for word in name.split()) for name in self.match)

    def value(self, key: str, *variants: str) -> Any:
        """Return the default of a dotted key of a workload, such as `training.recompute`; None if there is none.

        variants: precisions or architectures. If the default is a mapping, return the value of the first of these in it, or else
        of the data type of a precision's activations, or else None.
        """
        default = self.defaults.get(key)
        value = None if default is None else default.value
        if not isinstance(value, dict):
            return value
        return next((value[name] for name in (*variants, *map(activation_type, variants)) if name in value), None)

    def recomputation(self, reported: str, *variants: str) -> tuple[str, list[str]]:
        """Return (`recompute`, `recompute_saves`) for a run that reports `none`, `selective`, `full` or nothing ("").

        Selective means the framework's policy if it has one, else Megatron's. variants: as in `value`.
        """
        mode = reported or self.value("training.recompute", *variants)
        policy = self.value("training.recompute_saves", *variants)
        if policy and (mode == "selective" or (mode == "full" and not reported)):
            return "full", policy
        return mode, self.value("training.recompute_saves_full", *variants) or [] if mode == "full" else []

    def habits(self, schedule: object = None, precision: object = None) -> dict[str, Any]:
        """Return {dotted key: value} that every run with this schedule has, and `training.fp8_scaling` for precision fp8.

        schedule: None for the framework's own. A run with another schedule than the framework sets has only the scaling.
        """
        schedule_default, scaling = self.always.get("parallelism.schedule"), self.value("training.fp8_scaling")
        always = {} if schedule_default and schedule not in (None, schedule_default.value) else self.always
        scaled = {"training.fp8_scaling": scaling} if precision == "fp8" and scaling else {}
        return {key: default.value for key, default in always.items()} | scaled

    @property
    def overlapped_tp(self) -> str:
        """Value of `parallelism.overlap.tp` for a run that reports tensor-parallel overlap: the strongest available."""
        choice, default = self.choices.get(OVERLAP_TP), self.value(OVERLAP_TP)
        return str(choice.values[-1]) if choice else "bulk" if default in (None, "none") else str(default)

    def without(self, publisher: str) -> Framework:
        """Return the framework without values and recipes read from a publisher's steps; its host times become `unseen`."""
        defaults = {
            key: item.model_copy(update={"value": item.without(publisher)}) if publisher in item.read_from else item
            for key, item in self.defaults.items()
        }
        recipes = tuple(recipe for recipe in self.recipes if publisher not in recipe.read_from)
        return self.model_copy(update={"defaults": defaults, "recipes": recipes, "host": self._host_without(publisher)})

    def _host_without(self, publisher: str) -> HostTimes | None:
        parts = ((name, time) for name, time in self.host or () if isinstance(time, StepEvidence))
        changed = {
            name: type(time).model_validate({"value": value, "source": time.source})
            for name, time in parts
            if publisher in time.read_from and (value := time.without(publisher)) is not None
        }
        return self.host.model_copy(update=changed) if self.host else None

    def recipe(self, job: object) -> JobRecipe | None:
        """Return the recipe of a job; None if no script is known for it. job: object with the attributes of `JobRecipe.of`."""
        for recipe in self.recipes:
            if all(getattr(job, name) == value for name, value in recipe.of.items()):
                return recipe
        return None


WITHOUT = " without "
"""Text between the names of a framework and of the publisher whose steps are excluded."""


def offers(framework: object) -> Mapping[str, OfferedValues]:
    """Return {dotted key: values that can be chosen} of the framework of that name; a missing key may have any value.

    Return {} if `framework` is None or empty. Raises UnknownNameError as `load`.
    """
    return load(str(framework)).choices if framework else {}


def load(name: str) -> Framework:
    """Return the framework of that name; `nanotron without ULTRA` excludes values read from the publisher ULTRA's steps.

    Raise UnknownNameError with the nearest match.
    """
    framework, _, publisher = name.partition(WITHOUT)
    known = {each.name: each for each in everything()}
    if framework not in known:
        raise UnknownNameError(f"{framework!r} is none of the frameworks; {suggest(framework, known)}")
    return known[framework].without(publisher) if publisher else known[framework]


@cache
def everything() -> tuple[Framework, ...]:
    """Return all frameworks, sorted by name."""
    return tuple(validate(Framework, _document(path)) for path in sorted(FOLDER.glob("*.yaml")))


def _document(path: Path) -> Document:
    """Return the content of a file of the folder, with the keys inherited from the framework that it extends."""
    document = read(path)
    base = document.data.get("extends")
    if base is None:
        return document
    base_data = _document(FOLDER / f"{base}.yaml").data
    inherited = {part: {**base_data[part], **document.data.get(part, {})} for part in INHERITED if part in base_data}
    scalars: dict[str, Any] = {key: base_data[key] for key in ("stages", "trainer") if key in base_data}
    return replace(document, data={**scalars, **document.data, **inherited})


def unseen(framework: Framework, source: str) -> float | None:
    """Return the ratio of a kernel's launch time without a publisher's steps to the time with them.

    source: name of the publisher. Return None if its steps were not used. The time without them is the geometric mean over the
    hosts of other publishers and the measured ones.
    """
    launch = None if framework.host is None else framework.host.kernel
    if launch is None or source not in launch.read_from:
        return None
    known = {other.host.kernel.read_from: other.host.kernel.value for other in everything() if other.host is not None}
    times = [STEP_CALL, *(value for sources, value in known.items() if sources and source not in sources)]
    return exp(fsum(log(value / launch.value) for value in times) / len(times))


def releases(framework: Framework, year: int | None = None) -> list[Framework]:
    """Return the releases of a framework: those nearest to `year` (None: the newest) first, newer ones first if equally near."""
    target = 9999 if year is None else year
    related = [release for release in everything() if set(framework.match) & set(release.match)]
    return sorted(related, key=lambda release: (max(release.since - target, target - release.until, 0), -release.since))


def find(words: str, year: int | None = None, unknown: Collection[str] = ()) -> Framework | None:
    """Return the framework named in a text such as `NeMo 2.0 25.02`; None if it names none, or more than one.

    If one of two is built on the other, the upper one counts; among releases, that of `year`, by default the newest. If no
    framework is named, words such as `DDP` or `JAX` select one, with what it `assumes`. unknown: names of frameworks to ignore.
    """
    text, target = words.lower(), 9999 if year is None else year
    valid = [framework for framework in everything() if framework.since <= target <= framework.until]
    named = [framework for framework in valid if framework.is_named_in(text) and framework.name not in unknown]
    named = [framework for framework in named if not framework.assumes] or named
    below = {name for framework in named for name in framework.over}
    upper = [framework for framework in named if framework.name not in below]
    return upper[0] if len(upper) == 1 else None
