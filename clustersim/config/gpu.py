"""The description of one GPU: `clustersim/hardware/gpus/*.yaml` or a user's own file."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from clustersim.config.evidence import StepEvidence
from clustersim.config.fields import Bandwidth, ComputeRate, Count, Fraction, Frequency, Name, Power, Size, Spec

DType = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]
KernelGroup = Literal["products", "attention", "vector"]
GroupSpeed = Annotated[float, Field(gt=0, le=10, strict=False)]


class Gpu(Spec):
    """Datasheet figures of one GPU; dense rates, without structured sparsity."""

    name: Name
    """Name of the file."""
    vendor: Literal["nvidia", "amd"]
    """Manufacturer."""
    architecture: Name
    """Such as `hopper`; selects kernel designs."""
    aliases: tuple[Name, ...] = Field(default=(), strict=False)
    """Other names, such as the driver's."""
    like: Name | None = None
    """GPU with the same chip, whose measured speed applies if this one has none."""
    sms: Count
    """Streaming multiprocessors or compute units."""
    clock: Frequency
    """Boost clock."""
    memory: Size
    """Size shown by nvidia-smi or rocm-smi."""
    memory_bandwidth: Bandwidth
    """Datasheet bandwidth."""
    l2: Size
    """L2 cache size."""
    matrix: Annotated[dict[DType, ComputeRate], Field(min_length=1)]
    """Peak GEMM rate by data type: tensor cores if they support it; `fp32` is the SIMT rate."""
    vector: Annotated[dict[DType, ComputeRate], Field(min_length=1)]
    """Peak element-wise rate by data type."""
    attained: dict[DType, ComputeRate] = Field(default_factory=dict)
    """Best rate of a published search over GEMM shapes, below the peak because of power."""
    sustained: dict[DType, Fraction] = Field(default_factory=dict)
    """Measured share of the burst rate that GEMMs keep for seconds without `power_limit`. Default: computed from `power`."""
    speed: dict[KernelGroup, GroupSpeed] = Field(default_factory=dict)
    """Measured speed of GEMMs, fused attention and other kernels relative to the forecast; default 1."""
    power: Power
    """Power limit of the board."""
    power_limit: Power | None = None
    """Lower power limit that its owner has set."""
    peer_to_peer: bool = True
    """GPUs reach each other's memory over PCIe; otherwise through host memory (GeForce)."""
    evidence: dict[str, StepEvidence] = Field(default_factory=dict)
    """Source of values that were read from measured steps, by dotted key such as `sustained.bf16`."""
    sources: dict[str, str]
    """Source of each figure."""

    def with_possible_limit(self) -> "Gpu":
        """Return this GPU. Raises ValueError for a power limit that no board takes (nvidia-smi: 100 W of an A100's 400)."""
        if not self.power / 4 <= (self.power_limit or self.power) <= self.power:
            raise ValueError(f"power_limit: write {self.power / 4:g}W to {self.power:g}W")
        return self

    checked = model_validator(mode="after")(with_possible_limit)

    def matrix_peak(self, dtype: str) -> float:
        """Return the peak FLOP/s of GEMMs in `dtype`. A missing type runs as the next wider one, else as the fastest."""
        return self.matrix[self.matrix_type(dtype)]

    def matrix_type(self, dtype: str) -> DType:
        """Return the data type that GEMMs in `dtype` run in: the type itself, the next wider one, or else the fastest."""
        return _type(self.matrix, dtype)

    def vector_peak(self, dtype: str) -> float:
        """Return the peak FLOP/s of element-wise operations in `dtype`, or else the next wider type, or else the fastest."""
        return self.vector[_type(self.vector, dtype)]


_WIDER: dict[str, DType] = {
    "mxfp8": "fp8",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
    "fp4": "fp8",
    "fp8": "bf16",
    "bf16": "fp16",
    "fp16": "fp32",
    "tf32": "fp32",
}


def _type(rates: dict[DType, float], dtype: str) -> DType:
    """Return the data type in which `dtype` runs: itself, the next wider one with a rate, or else the fastest one."""
    name = dtype
    while name not in rates and name in _WIDER:
        name = _WIDER[name]
    return name if name in rates else max(rates, key=rates.__getitem__)
