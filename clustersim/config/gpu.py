"""The description of one GPU: `clustersim/hardware/gpus/*.yaml` or a user's own file."""

from typing import Annotated, Literal

from pydantic import Field

from clustersim.config.evidence import StepEvidence
from clustersim.config.fields import Bandwidth, ComputeRate, Count, Fraction, Frequency, Name, Power, Size, Spec

DType = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]
KernelGroup = Literal["products", "attention", "vector"]
GroupSpeed = Annotated[float, Field(gt=0, le=10, strict=False)]


class Gpu(Spec):
    """Datasheet figures of one GPU; dense rates, without structured sparsity."""

    name: Name
    """As its file is called."""
    vendor: Literal["nvidia", "amd"]
    """Its manufacturer."""
    architecture: Name
    """Such as `hopper`; kernels' designs go by it."""
    aliases: tuple[Name, ...] = Field(default=(), strict=False)
    """Other names, such as the driver's."""
    like: Name | None = None
    """A GPU of the same chip, whose measured speed holds for this one where it has none of its own."""
    sms: Count
    """Streaming multiprocessors, or compute units."""
    clock: Frequency
    """Boost clock."""
    memory: Size
    """As nvidia-smi or rocm-smi shows it."""
    memory_bandwidth: Bandwidth
    """Of the datasheet."""
    l2: Size
    """Size of the L2 cache."""
    matrix: Annotated[dict[DType, ComputeRate], Field(min_length=1)]
    """Peak FLOP/s of matrix products by data type: tensor cores where the type has them; `fp32` is the SIMT rate, `tf32` the
    tensor-core one."""
    vector: Annotated[dict[DType, ComputeRate], Field(min_length=1)]
    """Peak FLOP/s of element-by-element work."""
    attained: dict[DType, ComputeRate] = Field(default_factory=dict)
    """The best rate that a published search over matrix products reached on this GPU, where there is one: power and clocks
    keep it below the peak."""
    sustained: dict[DType, Fraction] = Field(default_factory=dict)
    """The share of the rate of a short burst that matrix products hold for seconds, where it was measured; without it, it
    follows from `power`."""
    speed: dict[KernelGroup, GroupSpeed] = Field(default_factory=dict)
    """How many times as fast as forecast its matrix products, fused attention and all other kernels run; default 1 each."""
    power: Power
    """Limit of the board."""
    peer_to_peer: bool = True
    """Whether GPUs reach each other's memory over PCIe; else bytes go through the memory of the host (GeForce boards)."""
    evidence: dict[str, StepEvidence] = Field(default_factory=dict)
    """Which of its figures were read from measured steps, by dotted key such as `sustained.bf16`."""
    sources: dict[str, str]
    """Where each figure is from."""

    def matrix_peak(self, dtype: str) -> float:
        """Return the peak FLOP/s of matrix products in `dtype`; types the GPU lacks run at the next wider one it has."""
        return self.matrix[self.matrix_type(dtype)]

    def matrix_type(self, dtype: str) -> DType:
        """Return the data type as which matrix products in `dtype` run: itself, or the next wider one that the GPU has."""
        return _type(self.matrix, dtype)

    def vector_peak(self, dtype: str) -> float:
        """Return the peak FLOP/s of element-by-element work in `dtype`."""
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
    name = dtype
    while name not in rates and name in _WIDER:
        name = _WIDER[name]
    return next((one for one in rates if one == name), max(rates, key=rates.__getitem__))
