"""What results keep as JSON: manifests, the points of sweeps, summaries.

They are written and read by these classes alone. A file on disk may be of another release, edited or damaged: what it says is
validated before anything is done with it. Keys that are unknown here stay.
"""

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, JsonValue

from clustersim.config.fields import Spec

FORMAT: Literal[1] = 1
"""Of manifests; another number says that their keys mean something else."""
_DIGITS = 40


def parsed(raw: bytes | str) -> Any:
    """Return JSON as plain data. Raises ValueError for what is none, for numbers without end, and for nesting without end."""
    try:
        return json.loads(raw, parse_constant=_number, parse_float=_number, parse_int=_whole)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:_DIGITS]} is not a finite number")
    return value


def _whole(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"{text[:_DIGITS]}… has more than {_DIGITS} digits")
    return int(text)


def _finite(value: JsonValue) -> JsonValue:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("is not a finite number")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _finite(item)
    return value


FiniteJson = Annotated[JsonValue, AfterValidator(_finite)]
"""Plain data whose numbers are finite."""
FiniteObject = dict[str, FiniteJson]
Positive = Annotated[float, Field(gt=0)]
Whole = Annotated[int, Field(ge=0)]


class StoredSpec(Spec):
    """Base of what is kept: keys of later releases stay."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, FiniteJson] = Field(init=False)


class InputFile(StoredSpec):
    """A file that was read."""

    path: str
    """As it was written."""
    sha256: str
    """Of its bytes."""
    text: str | None = None
    """All of it, where the result can be asked again without the file."""


class StoredOptions(StoredSpec):
    """All that changed the numbers, of any command."""

    overrides: FiniteObject = Field(default_factory=dict)
    """By dotted key."""
    fold: bool = True
    """Ranks that are alike were simulated once."""
    ignore_memory: bool = False
    """The simulation went on where the job did not fit."""
    flops: Literal["causal", "full"] = "causal"
    """How attention was counted."""
    engine: Literal["auto", "simpy"] | None = None
    """The engine of the steps; none: the default of the command."""
    plugins: list[str] = Field(default_factory=list)
    """Code from outside that was permitted."""


class Manifest(StoredSpec):
    """What a result answers, and what made it."""

    clustersim: str
    """The version that wrote it."""
    format: Literal[1] = FORMAT
    """Of this class."""
    command: str = ""
    """`run`, `jobs`, `sweep` or `validate`."""
    question: str | None = None
    """A digest of command, version, inputs and options."""
    inputs: dict[str, InputFile] = Field(default_factory=dict)
    """By part, such as `topology`."""
    options: StoredOptions = StoredOptions()
    """All that changed the numbers."""
    seed: int = 0
    """Of what is drawn."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Of libraries."""
    points: list[FiniteObject] | None = None
    """Of a sweep."""
    complete: bool | None = None
    """Whether a sweep or a validation was written to its end."""
    damaged: Annotated[str, Field(exclude=True)] = ""
    """What is wrong with the rest of the file, of which then nothing is here."""

    def written(self) -> dict[str, Any]:
        """Return the manifest as plain data."""
        return self.model_dump(exclude_unset=True)


class SimulatedPoint(StoredSpec):
    """The row of a point that has a result."""

    status: Literal["ok"]
    reason: str
    """Nothing."""
    step_time_s: Positive
    tokens_per_s: Positive
    tokens_per_s_per_gpu: float
    tokens_per_s_per_owned_gpu: float
    model_tflops_per_gpu: float
    mfu: float
    tp: Whole
    cp: Whole
    pp: Whole
    dp: Whole
    ep: Whole
    vpp: Whole
    micro_batch: Whole
    global_batch: Whole
    microbatches: Whole
    seq: Whole
    compute_s: float
    bubble_s: float
    peak_memory_bytes: float
    gpu_memory_bytes: float
    memory_verdict: str
    memory_ran_share: float | None = None
    """Of published mappings this full, the share that ran."""
    gpus: Whole
    ranks: Whole
    idle_gpus: Whole
    usd_per_1t_tokens: float | None
    usd_owned_per_1t_tokens: float | None
    kwh_per_1t_tokens: float
    warnings: str = ""


class RefusedPoint(StoredSpec):
    """The row of a point that has none."""

    status: Literal["illegal", "does not fit", "failed"]
    reason: str
    """Why."""


class SweepLine(StoredSpec):
    """A line of the log of a sweep."""

    point: FiniteObject
    """Overrides by dotted key."""
    row: Annotated[SimulatedPoint | RefusedPoint, Field(discriminator="status")]

    @staticmethod
    def written(point: Mapping[str, object], row: Mapping[str, object]) -> str:
        """Return a line."""
        return json.dumps({"point": point, "row": row}) + "\n"


class LinkTime(StoredSpec):
    """Seconds of the critical path on links that are alike, or on none."""

    link: str | None = None
    """One of them."""
    what: str = ""
    """What it is where no link is."""
    path_s: float


class StoredPath(StoredSpec):
    """A critical path."""

    by_stream_s: dict[str, float] = Field(default_factory=dict)
    by_link: list[LinkTime] = Field(default_factory=list)


class StoredPredictor(StoredSpec):
    """What forecast the kernels."""

    name: str | None = None


class RunSummary(StoredSpec):
    """What the summary of a run has at least."""

    step_time_s: Positive
    tokens_per_s: float
    mfu: float
    breakdown_s: dict[str, float]
    critical_path_s: dict[str, float]
    critical_path: StoredPath = StoredPath()
    predictor: StoredPredictor = StoredPredictor()
    cluster: FiniteObject = Field(default_factory=dict)
    parallelism: FiniteObject = Field(default_factory=dict)
