"""A framework's defaults: read from its YAML, found by the words that people write for it."""

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
from clustersim.hardware.formats import activation_type

FOLDER = Path(__file__).parent
OVERLAP_TP = "parallelism.overlap.tp"
INHERITED = ("defaults", "always", "rules", "facts", "choices", "host", "memory", "nccl")
"""Parts of a file whose keys stand for all that extend it."""


class Default(StepEvidence):
    """One default and where it is from; `value` None: the framework has none, so a workload must give it."""

    value: Any = None


class LaunchTime(StepEvidence):
    """Seconds of the host and their source; `unseen` has what would be taken without its publishers."""

    value: Time


class Habit(StepEvidence):
    """Whether a framework's host does something, and where that is from."""

    value: bool


class OfferedValues(Spec):
    """The values of a key that users of the framework may choose, and their source."""

    values: Annotated[tuple[Any, ...], Field(strict=False)]
    chunked: bool = False
    """All but the first need several chunks a pipeline rank."""
    source: Name

    def has(self, value: object, chunks: int) -> bool:
        """Return whether a value may be chosen with `chunks` chunks per pipeline rank."""
        return value in self.values[: None if chunks > 1 or not self.chunked else 1]


class HostTimes(Spec):
    """What the host takes to launch, on the CPUs that the sources name."""

    kernel: LaunchTime
    """A kernel, with the Python around it."""
    collective: LaunchTime
    """A collective or a message."""
    parameter: LaunchTime
    """Each parameter tensor at the update of the weights."""
    drains: Habit
    """Whether it waits until its GPU is idle at each message of a pipeline."""
    reads_loss: Habit | None = None
    """Whether it waits for its GPU to read the loss of each microbatch and the norm of each bucket; default: not."""
    reads_counts: Habit | None = None
    """Whether it waits for its GPU to read how many rows go to each expert before it sends them; default: not."""
    unflattens: LaunchTime | None = None
    """Each tensor and rank whose gathered parameters it copies back into place (ZeRO-1); default: one buffer, as Megatron's."""
    launches: dict[str, Annotated[float, Field(ge=0, strict=False)]] = Field(default_factory=dict)
    """How many launches one kernel of ours is, by its kind or kind and op."""


class Flag(Spec):
    """Whether a framework does something, and where that is from."""

    value: bool = False
    source: str = ""


class RingKind(Spec):
    """Kind of attention of context-parallel ranks with `cp_type: p2p`, and its source."""

    value: Literal["fused", "eager", "eager_flash2", "by_head"] = "fused"
    """`fused`: Transformer Engine's. `eager`: each step is added in fp32 by kernels of its own, and of `eager_flash2` calls
    FlashAttention-2. `by_head`: no ring, as a rank has neighbouring tokens, and keys and values are gathered head by head."""
    source: str = ""


class KeptBytes(Spec):
    """Bytes, and where that figure is from."""

    value: Size = 0.0
    source: str = ""


class KeptTensors(Spec):
    """What a framework keeps on a GPU beside the tensors of the model."""

    reducer_buckets: Flag = Flag()
    """Gradients in the type of the weights lie in buckets of PyTorch's DistributedDataParallel too, where there are replicas."""
    flat_gathers: Flag = Flag()
    """Parameters that a sharded optimizer gathers pass through one tensor of all of them, which PyTorch's allocator keeps."""
    stacked_attention: Flag = Flag()
    """Queries, keys and values of all heads stay in one tensor, and keys and values are copied once more for attention."""
    dummy_gradients: Flag = Flag()
    """A tensor of each shape of weight stays, as the gradient of weights whose products add theirs to the main one."""
    narrow_weights: Flag = Flag()
    """With a `training.precision` below 16 bits, weights of linear layers stay in that format too, by rows and by columns."""
    separate_rows: Flag = Flag()
    """Rows of experts are weighed, padded and put back by kernels of their own."""
    recast_weights: Flag = Flag()
    """With a `training.precision` below 16 bits, weights are cast in each pass; else once in a step."""
    wide_gradients: Flag = Flag()
    """With a `training.precision` below 16 bits, gradients of experts' weights are made in fp32, cast and added by kernels."""
    ring: RingKind = RingKind()
    """Attention of context-parallel ranks with `cp_type: p2p`."""
    redistributes: Flag = Flag()
    """Eager tensors that tensor-parallel ranks gather or scatter along the sequence are copied into the order of its tokens."""
    workspaces: KeptBytes = KeptBytes()
    """Of the libraries of products, as far as the framework or PyTorch allocates them."""
    grouped_workspaces: KeptBytes = KeptBytes()
    """Those more of grouped products."""


Rule = Literal["zero_with_pipeline", "repeats_kv_heads", "exchanges_few_kv_heads"]
"""`zero_with_pipeline`: the highest `parallelism.zero` with a pipeline (default: any). Whether more ranks than key/value heads
share them (`repeats_kv_heads`), or exchange heads for tokens (`exchanges_few_kv_heads`); default: yes."""


class JobRecipe(Evidence):
    """What a script of the framework's own repository sets for one job, where a publication of that job leaves it open.

    `source` is the script. Without its publisher's rows there is no recipe.
    """

    of: dict[str, int | str]
    """The columns of a measured run by which the job is known."""
    values: dict[str, Any]
    """By dotted key of a workload."""


class Framework(Spec):
    """What a framework fuses, overlaps, launches and keeps."""

    name: Name
    title: Name
    match: Annotated[tuple[Name, ...], Field(strict=False)]
    """Names as people write them, in small letters; of several words all must stand in a text, in any order."""
    extends: Name | None = None
    """The framework whose defaults, facts, host and memory it has too, but for the keys that it writes itself."""
    trainer: Literal["recipes", "megatron", "deepspeed", "torch", "xla", "generic"] = "generic"
    """Kind of trainer, by which published steps are pooled: NVIDIA's recipes, Megatron-LM and its forks, DeepSpeed's pipelines,
    plain PyTorch and its sharding, XLA, and any other."""
    over: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    """Those that it is built on, whose names stand beside its own."""
    assumes: str = ""
    """Of words that name no framework: what is assumed where nothing better is known."""
    since: int = 0
    until: int = 9999
    """The years that these defaults hold."""
    stages: Literal["even", "any"] = "even"
    """Whether the layers must divide over pipeline stages."""
    rules: dict[Rule, Default] = Field(default_factory=dict)
    """What splits it refuses; default: what Megatron-Core refuses."""
    microbatch_a_stage: Habit | None = None
    """Whether a batch is cut into as many microbatches as there are stages, unless it is said; default: as their size says."""
    reduces_whole: Habit | None = None
    """Whether gradients are all-reduced where the optimizer is sharded, too; default: each rank gets its part alone."""
    broadcasts: Habit | None = None
    """Whether each rank that owns parameters broadcasts them after the update, one after the other; default: one all-gather."""
    defaults: dict[str, Default]
    """By dotted key of a workload, each with its source; `training.gradients` by the type that activations lie in, and where a
    framework takes another on each, `training.attention` by the architecture of the GPU."""
    always: dict[str, Default] = Field(default_factory=dict)
    """What it does in every run, by dotted key of a workload, which need not say it."""
    facts: dict[str, Default] = Field(default_factory=dict)
    """What no workload can say yet, in words."""
    choices: dict[str, OfferedValues] = Field(default_factory=dict)
    """What users may choose, by dotted key. Overlap that is not here is no choice; any legal value of another key is one."""
    host: HostTimes | None = None
    """The host's times of launching; none where unmeasured."""
    memory: KeptTensors | None = None
    """Its memory besides the model; none where unknown."""
    nccl: dict[str, Default] = Field(default_factory=dict)
    """What its own scripts set of the communication library where there is a pipeline, by key of `nccl` of a topology."""
    recipes: Annotated[tuple[JobRecipe, ...], Field(strict=False)] = ()
    """Of published jobs."""

    @property
    def family(self) -> str:
        """The name that its releases share: the first word of its title."""
        return self.title.split()[0].strip(",")

    def named(self, text: str) -> bool:
        """Return whether a text in small letters has one of its names."""
        return any(all(word in text for word in name.split()) for name in self.match)

    def value(self, key: str, *of: str) -> Any:
        """Return the default of a dotted key, None where there is none; a mapping is read `of` a precision or architecture.

        A precision that it lacks is read as the type that activations lie in.
        """
        found = self.defaults.get(key)
        value = None if found is None else found.value
        if not isinstance(value, dict):
            return value
        return next((value[one] for one in (*of, *map(activation_type, of)) if one in value), None)

    def recomputation(self, said: str, *of: str) -> tuple[str, list[str]]:
        """Return `recompute` and `recompute_saves` of a run that says `none`, `selective` or `full`, or nothing.

        Selective is a policy's where the framework has one, else Megatron's; `of` as of `value`.
        """
        how, policy = said or self.value("training.recompute", *of), self.value("training.recompute_saves", *of)
        if policy and (how == "selective" or (how == "full" and not said)):
            return "full", policy
        return how, self.value("training.recompute_saves_full", *of) or [] if how == "full" else []

    def habits(self, schedule: object = None, precision: object = None) -> dict[str, Any]:
        """Return by dotted key what it does in every run with this schedule (None: its own), and where fp8 has scales from."""
        own, scaling = self.always.get("parallelism.schedule"), self.value("training.fp8_scaling")
        kept = {} if own and schedule not in (None, own.value) else self.always
        scaled = {"training.fp8_scaling": scaling} if precision == "fp8" and scaling else {}
        return {key: one.value for key, one in kept.items()} | scaled

    @property
    def overlapped_tp(self) -> str:
        """What `parallelism.overlap.tp` is where a run says that tensor parallelism overlaps: the most that the framework has."""
        choice, own = self.choices.get(OVERLAP_TP), self.value(OVERLAP_TP)
        return str(choice.values[-1]) if choice else "bulk" if own in (None, "none") else str(own)

    def without(self, publisher: str) -> Framework:
        """Return the framework without what was read from the steps of a publisher, but for times of its host (`unseen`)."""
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
        """Return the recipe of a job that has attributes such as layers and tp; None where no script is known."""
        fits = (one for one in self.recipes if all(getattr(job, name) == value for name, value in one.of.items()))
        return next(fits, None)


WITHOUT = " without "


def offers(framework: object) -> Mapping[str, OfferedValues]:
    """Return the values that a framework supports, by dotted key; missing keys are free, as are all without a framework."""
    return load(str(framework)).choices if framework else {}


def load(name: str) -> Framework:
    """Return the framework of that name; `nanotron without ULTRA` leaves out what was read from the steps of a publisher.

    Raises UnknownNameError with the nearest match.
    """
    own, _, publisher = name.partition(WITHOUT)
    known = {one.name: one for one in everything()}
    if own not in known:
        raise UnknownNameError(f"{own!r} is none of the frameworks; {suggest(own, known)}")
    return known[own].without(publisher) if publisher else known[own]


@cache
def everything() -> tuple[Framework, ...]:
    """Return all frameworks, by name."""
    return tuple(validate(Framework, _document(path)) for path in sorted(FOLDER.glob("*.yaml")))


def _document(path: Path) -> Document:
    """Return a file of the folder, with the keys that it has from the framework which it extends."""
    own = read(path)
    base = own.data.get("extends")
    if base is None:
        return own
    inner = _document(FOLDER / f"{base}.yaml").data
    inherited = {part: {**inner[part], **own.data.get(part, {})} for part in INHERITED if part in inner}
    scalars: dict[str, Any] = {key: inner[key] for key in ("stages", "trainer") if key in inner}
    return replace(own, data={**scalars, **own.data, **inherited})


def unseen(framework: Framework, source: str) -> float | None:
    """Return the ratio of a kernel's launch time without a publisher's steps to that with them.

    That is what other sources of steps say of other hosts, their geometric mean; None where the figure is not from that source.
    """
    own = None if framework.host is None else framework.host.kernel
    if own is None or source not in own.read_from:
        return None
    known = {one.host.kernel.read_from: one.host.kernel.value for one in everything() if one.host is not None}
    others = [log(value / own.value) for sources, value in known.items() if sources and source not in sources]
    return exp(fsum(others) / len(others)) if others else None


def releases(framework: Framework, year: int | None = None) -> list[Framework]:
    """Return the releases of a framework, those first that hold nearest to a year, the newer ones first; None: the newest."""
    when = 9999 if year is None else year
    names = set(framework.match)
    found = [one for one in everything() if names & set(one.match)]
    return sorted(found, key=lambda one: (max(one.since - when, when - one.until, 0), -one.since))


def find(words: str, year: int | None = None) -> Framework | None:
    """Return the framework that a text such as `NeMo 2.0 25.02` names, None when none or several do.

    Of two where one is built on the other it is the upper one; of releases that of the year, without a year the newest. Where no
    framework is named it is what words such as `DDP` or `JAX` say, with what it `assumes`.
    """
    text, when = words.lower(), 9999 if year is None else year
    hits = [one for one in everything() if one.since <= when <= one.until and one.named(text)]
    hits = [one for one in hits if not one.assumes] or hits
    below = {name for one in hits for name in one.over}
    upper = [one for one in hits if one.name not in below]
    return upper[0] if len(upper) == 1 else None
