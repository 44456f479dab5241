"""What no datasheet says and many rooms need: light in fibre, hops, the host's calls, bytes of data types.

`docs/constants.md` lists these and all other constants with their sources and what they do to a step.
"""

from __future__ import annotations

from typing import Annotated

from clustersim.config.evidence import Declared

BYTES: dict[str, float] = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "fp4": 0.5}
"""Bytes of one element of a data type as it lies in memory."""

FIBRE: Annotated[float, Declared("s/m")] = 5e-9
"""Seconds that light takes for a metre of fibre: 3.3 ns in vacuum times the group index of glass, 1.47 (Corning SMF-28), rounded
up. Copper takes 4.2 to 5 ns."""

NVLINK_LATENCY: Annotated[float, Declared("s")] = 3.4e-6
"""Seconds from GPU to GPU through NVLink: hwLat of ring/Simple in NCCL 2.30's tuning.cc."""
PCIE_LATENCY: Annotated[float, Declared("s")] = 5.7e-6
"""Seconds from GPU to GPU through PCIe: hwLat of ring/Simple in NCCL 2.30's tuning.cc."""
LEAF_LATENCY: Annotated[float, Declared("s")] = 14e-6
"""Seconds from GPU to GPU through NICs and one leaf: hwLat of NET ring/Simple in NCCL 2.30's tuning.cc. NCCL's own figures
contain this hop: what a NIC says beyond it is its `latency` attribute."""
POST: Annotated[float, Declared("s")] = 1e-6
"""Seconds that NCCL's proxy takes to post one message to another node (NVIDIA/nccl, src/graph/tuning.cc, getNetOverhead)."""
POST_AMD: Annotated[float, Declared("s")] = 2e-6
"""The same on a host with AMD's processor (netOverhead there)."""

LAUNCH: Annotated[float, Declared("s", "small products of that table")] = 2.5e-6
"""Seconds between two dependent kernels of a busy stream, when the CPU runs ahead: launch gap and ramp of a kernel. GEMM tables
that are timed in CUDA graphs have a floor of 2 to 3 us (ai-dynamo/aiconfigurator)."""
CALL: Annotated[float, Declared("s", "calls on a handful of elements")] = 12e-6
"""Seconds of CPU for an eager call that launches a kernel: in NeuSight's traces calls on a handful of elements (arange, full,
long, cumsum) take 9, 12, 13 and 13 us more on the hosts of A100, T4, V100 and P100 than calls that do nothing (size)."""
PRODUCT_CALL: Annotated[float, Declared("s", "linear layers of one row")] = 25e-6
"""Seconds of CPU for a product: a linear layer of one row a sequence takes 38 us more there, its two views and module 14."""
GRAPH_LAUNCH: Annotated[float, Declared("s")] = 1e-6
"""Seconds of CPU for a kernel in the CUDA graph of a layer, its share of the graph's launch: a node takes below 1 us."""
NATIVE_CALL: Annotated[float, Declared("s")] = 5e-6
"""Seconds of CPU for a product that a loop in C++ launches behind another one: a launch takes 2 to 3 us, and cuBLAS chooses its
kernel (Transformer Engine, pytorch/csrc/extensions/gemm.cpp, te_general_grouped_gemm: one call, a product an expert)."""
VIEW_CALL: Annotated[float, Declared("s", "view, unsqueeze, expand")] = 4e-6
"""Seconds of CPU for a view: view, unsqueeze and expand take 2 to 5 us more there."""
