"""Constants that no datasheet has and several rooms need: light in fibre, hops, host calls, bytes of data types.

`docs/constants.md` lists all constants with their sources and their effect on a step.
"""

from __future__ import annotations

from typing import Annotated

from clustersim.config.evidence import Declared

BYTES: dict[str, float] = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "fp4": 0.5}
"""Bytes of one element of a data type in memory."""

FIBRE: Annotated[float, Declared("s/m")] = 5e-9
"""Seconds for light to cross a metre of fibre: 3.3 ns in vacuum times the group index of glass, 1.47 (Corning SMF-28), rounded
up. Copper takes 4.2 to 5 ns."""

NVLINK_LATENCY: Annotated[float, Declared("s")] = 3.4e-6
"""Seconds from GPU to GPU through NVLink: hwLat of ring/Simple in NCCL 2.30's tuning.cc."""
PCIE_LATENCY: Annotated[float, Declared("s")] = 5.7e-6
"""Seconds from GPU to GPU through PCIe: hwLat of ring/Simple in NCCL 2.30's tuning.cc."""
LEAF_LATENCY: Annotated[float, Declared("s")] = 14e-6
"""Seconds from GPU to GPU through NICs and one leaf: hwLat of NET ring/Simple in NCCL 2.30's tuning.cc. NCCL's own figures
contain this hop; a NIC's `latency` attribute is added to it."""
POST: Annotated[float, Declared("s")] = 1e-6
"""Seconds that NCCL's proxy takes to post one message to another node (NVIDIA/nccl, src/graph/tuning.cc, getNetOverhead)."""
POST_AMD: Annotated[float, Declared("s")] = 2e-6
"""Seconds to post one message on a host with an AMD processor (netOverhead there)."""

LAUNCH: Annotated[float, Declared("s", "small products of that table")] = 2.5e-6
"""Seconds between two dependent kernels of a busy stream when the CPU runs ahead: launch gap and ramp-up. GEMM tables timed in
CUDA graphs have a floor of 2 to 3 us (ai-dynamo/aiconfigurator)."""
CALL: Annotated[float, Declared("s", "calls on a handful of elements")] = 12e-6
"""CPU seconds of an eager call that launches a kernel. In NeuSight's traces, calls on a few elements (arange, full, long, cumsum)
take 9, 12, 13 and 13 us more on the hosts of A100, T4, V100 and P100 than calls that launch nothing (size)."""
STEP_CALL: Annotated[float, Declared("s", "steps of PyTorch that wait for launches")] = 33e-6
"""CPU seconds per launch in steps of PyTorch that wait for launches: 29 and 45 us on the hosts of two H100, 29 on that of an
H200 (docs/measured-h100.md)."""
PRODUCT_CALL: Annotated[float, Declared("s", "linear layers of one row")] = 25e-6
"""CPU seconds of a GEMM call: a linear layer on one row per sequence takes 38 us more there, of which two views and the module
take 14."""
GRAPH_LAUNCH: Annotated[float, Declared("s")] = 1e-6
"""CPU seconds per kernel in the CUDA graph of a layer, its share of the graph's launch: below 1 us per node."""
NATIVE_CALL: Annotated[float, Declared("s")] = 5e-6
"""CPU seconds of a GEMM that a C++ loop launches after another: 2 to 3 us for the launch, plus cuBLAS's choice of a kernel
(Transformer Engine, pytorch/csrc/extensions/gemm.cpp, te_general_grouped_gemm: one call, one GEMM per expert)."""
VIEW_CALL: Annotated[float, Declared("s", "view, unsqueeze, expand")] = 4e-6
"""CPU seconds of a view: view, unsqueeze and expand take 2 to 5 us more there."""
