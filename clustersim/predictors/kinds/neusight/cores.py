"""The matrix units of an architecture: tile sizes of its libraries, and which operations overlap.

Facts about architectures without rates. Sources: NVIDIA's CUTLASS documentation (efficient_gemm.md, blackwell_functionality.md)
and the whitepapers of the architectures; kernel names in the tables of sitar-lab/NeuSight (SIMT) and cuBLAS's names elsewhere.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from clustersim.config.evidence import Declared
from clustersim.config.gpu import Gpu

Tile = tuple[int, int]
"""(rows, columns) of the output that one block of threads computes."""

SIMT: tuple[Tile, ...] = (
    *((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64)),
    *((128, 32), (32, 128), (64, 32), (32, 64), (32, 32)),
)
"""Tiles of FP32 GEMMs on SIMT units (kernel names of NeuSight's tables)."""
WARP: tuple[Tile, ...] = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64))
"""Tiles of GEMMs on tensor cores whose operations one warp issues, before Hopper."""
_SIDES = tuple(range(32, 257, 32))
"""Sides of tiles on Hopper, in elements."""
GROUP: tuple[Tile, ...] = (
    *((128, side) for side in _SIDES),
    *((side, 128) for side in _SIDES if side != 128),
    *((64, 64), (64, 192), (64, 256), (192, 64), (256, 64)),
)
"""Tiles of warpgroup products, which take 64 rows and any multiple of 8 columns (PTX ISA, wgmma)."""
TENSOR_MEMORY: tuple[Tile, ...] = (
    *((128, side) for side in range(48, 257, 16)),
    *((side, 128) for side in range(48, 257, 16) if side != 128),
)
"""Tiles of products in tensor memory, which take 128 rows per SM and a multiple of 16 columns (PTX ISA, tcgen05.mma)."""
BATCHED: dict[str, tuple[Tile, ...]] = {"pascal": ((64, 128),), "ampere": ((128, 128),), "ada": ((128, 128),)}
"""Single tile of cuBLAS for batched FP32 products on these architectures (kernel names of NeuSight's tables)."""

EXPOSED: Annotated[float, Declared(chosen_on="not recorded; products of B200, B300, GB200: 5.3, 5.3, 5.3 %")] = 0.6
"""Share of an epilogue that stays visible with tensor memory, which has two accumulators. Registers have one and hide nothing."""


class Cores(NamedTuple):
    """Properties of the units that run GEMMs of one data type on a GPU."""

    tiles: tuple[Tile, ...]
    """Tiles that the libraries have for these units."""
    asynchronous: bool
    """Whether operands are loaded during arithmetic, and two SMs of a cluster share one operand (TMA and warp specialization:
    Hopper, Blackwell). Otherwise the computing warps also load, and the two times add up."""
    exposed: float
    """Share of the epilogue that is not hidden behind the next tile: tensor memory holds two accumulators, registers one."""


def cores(gpu: Gpu, dtype: str, kind: str) -> Cores:
    """Return the units that run GEMMs of `dtype`: SIMT units for fp32 and fp64, else the architecture's tensor cores.

    kind: kind of the kernels; batched GEMMs (`bmm`) have a single tile on some architectures.
    """
    if dtype in ("fp32", "fp64"):
        return Cores(BATCHED.get(gpu.architecture, SIMT) if kind == "bmm" else SIMT, False, 1.0)
    if gpu.architecture.startswith("blackwell"):
        return Cores(TENSOR_MEMORY, True, EXPOSED)
    return Cores(GROUP, True, 1.0) if gpu.architecture == "hopper" else Cores(WARP, False, 1.0)
