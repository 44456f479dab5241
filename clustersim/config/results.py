"""Results stored as JSON: manifests, the points of sweeps, summaries.

Only these classes write and read them. A file may be from another release, edited or damaged, so its content is validated before
use. Unknown keys are kept.
"""

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, JsonValue

from clustersim.config.fields import Spec

FORMAT: Literal[1] = 1
"""Format of manifests; another number means keys of another meaning."""
_DIGITS = 40


def parsed(raw: bytes | str) -> Any:
    """Return JSON as plain data. Raises ValueError for invalid JSON, and for too long numbers or too deep nesting."""
    try:
        return json.loads(raw, parse_constant=_number, parse_float=_number, parse_int=_integer)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _number(text: str) -> float:
    """Return the finite number in a text of JSON. Raises ValueError for NaN and Infinity."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:_DIGITS]} is not a finite number")
    return value


def _integer(text: str) -> int:
    """Return the whole number in a text of JSON. Raises ValueError if it is too long."""
    if len(text) > _DIGITS:
        raise ValueError(f"{text[:_DIGITS]}… has more than {_DIGITS} digits")
    return int(text)


def _finite(value: JsonValue) -> JsonValue:
    """Return plain data unchanged. Raises ValueError if it contains infinity or NaN at any depth."""
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
    """Base of stored specs, which keep the keys of later releases."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, FiniteJson] = Field(init=False)


class InputFile(StoredSpec):
    """An input file."""

    path: str
    """Path as the user wrote it."""
    sha256: str
    """SHA-256 of its content."""
    text: str | None = None
    """Its content, if the result can be rerun without the file."""


class StoredOptions(StoredSpec):
    """Options of any command that changed the numbers."""

    overrides: FiniteObject = Field(default_factory=dict)
    """Overridden values by dotted key."""
    fold: bool = True
    """Whether identical ranks were simulated once."""
    ignore_memory: bool = False
    """Whether the simulation continued for a job that does not fit into memory."""
    flops: Literal["causal", "full"] = "causal"
    """Whether causal attention counted half or in full."""
    engine: Literal["auto", "simpy"] | None = None
    """Engine of the steps; None: the command's default."""
    plugins: list[str] = Field(default_factory=list)
    """Permitted outside code."""


class Manifest(StoredSpec):
    """The question of a result, and the versions that produced it."""

    clustersim: str
    """Version of clustersim that wrote it."""
    format: Literal[1] = FORMAT
    """Format of this class."""
    command: str = ""
    """`run`, `jobs`, `sweep` or `validate`."""
    question: str | None = None
    """Digest of command, version, inputs and options."""
    inputs: dict[str, InputFile] = Field(default_factory=dict)
    """Input files by part, such as `topology`."""
    options: StoredOptions = StoredOptions()
    """Options that changed the numbers."""
    seed: int = 0
    """Seed of random draws."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of libraries."""
    points: list[FiniteObject] | None = None
    """Points of a sweep."""
    complete: bool | None = None
    """Whether a sweep or a validation finished."""
    damaged: Annotated[str, Field(exclude=True)] = ""
    """Error in the rest of the file, whose fields are then empty."""

    def written(self) -> dict[str, Any]:
        """Return {field: value} of the manifest, without fields that were never set."""
        return self.model_dump(exclude_unset=True)


class SimulatedPoint(StoredSpec):
    """The row of a point with a result."""

    status: Literal["ok"]
    reason: str
    """Empty."""
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
    """Share of published runs at this memory level that succeeded."""
    gpus: Whole
    ranks: Whole
    idle_gpus: Whole
    usd_per_1t_tokens: float | None
    usd_owned_per_1t_tokens: float | None
    kwh_per_1t_tokens: float
    warnings: str = ""


class RefusedPoint(StoredSpec):
    """The row of a point without a result."""

    status: Literal["illegal", "does not fit", "failed"]
    reason: str
    """Reason for the missing result."""


class SweepLine(StoredSpec):
    """A line in the log of a sweep."""

    point: FiniteObject
    """Overrides by dotted key."""
    row: Annotated[SimulatedPoint | RefusedPoint, Field(discriminator="status")]

    @staticmethod
    def written(point: Mapping[str, object], row: Mapping[str, object]) -> str:
        """Return the line of a point and its row as JSON text."""
        return json.dumps({"point": point, "row": row}) + "\n"


class LinkTime(StoredSpec):
    """Seconds of the critical path on identical links, or in another category."""

    link: str | None = None
    """Name of one of the links."""
    what: str = ""
    """Category of other time, such as `compute`; "" for time on links."""
    path_s: float


class StoredPath(StoredSpec):
    """A critical path."""

    by_stream_s: dict[str, float] = Field(default_factory=dict)
    by_link: list[LinkTime] = Field(default_factory=list)


class StoredPredictor(StoredSpec):
    """The predictor of kernel times."""

    name: str | None = None


class RunSummary(StoredSpec):
    """Keys that every summary of a run has."""

    step_time_s: Positive
    expected_step_time_s: Positive | None = None
    tokens_per_s: float
    mfu: float
    breakdown_s: dict[str, float]
    critical_path_s: dict[str, float]
    critical_path: StoredPath = StoredPath()
    predictor: StoredPredictor = StoredPredictor()
    cluster: FiniteObject = Field(default_factory=dict)
    parallelism: FiniteObject = Field(default_factory=dict)
