"""Constants of NCCL's tuner by release, in the units of the source.

Source: NVIDIA/nccl, src/graph/tuning.cc (2.18 to 2.29) and src/tuning/ (2.30). Tables are indexed by architecture (Volta and
older, Ampere, Hopper, Blackwell) and by scale (1 node, 2, more). A release that is not listed has the constants of the latest
one before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, NamedTuple

from clustersim.config.evidence import Declared
from clustersim.errors import InputError

US, GB = 1e-6, 1e9
PROTOCOLS = ("LL", "LL128", "Simple")
ARCHITECTURES = ("volta", "ampere", "hopper", "blackwell")
_OLDER = {"pascal": "volta", "turing": "volta", "ada": "ampere", "blackwell-ultra": "blackwell"}
PerProtocol = tuple[float, float, float]
"""Values for LL, LL128 and Simple."""
Latencies = Mapping[str, PerProtocol]
"""{algorithm: latencies in us}"""
Table = tuple[PerProtocol, PerProtocol, PerProtocol, PerProtocol]
"""GB/s by architecture (Volta, Ampere, Hopper, Blackwell) and number of nodes (1, 2, more)."""


class Constants(NamedTuple):
    """Tuner constants of one release: latencies in us by algorithm for LL, LL128 and Simple; bandwidths in GB/s."""

    base: Latencies
    """Time of a kernel without hops."""
    nvlink: Latencies
    """Time of a hop inside a node over NVLink."""
    pci: Latencies
    """Time of a hop inside a node over PCIe."""
    net: Latencies
    """Time of a hop between nodes."""
    ll_max: Table
    """Largest bus bandwidth of LL. Over several nodes row 1 is for AMD CPUs and row 0 for others."""
    ring_ll128: Table
    """Largest bus bandwidth of a ring's channel with LL128."""
    tree_ll128: Table
    """Largest bus bandwidth of a tree's channel with LL128."""
    tree: Table
    """Largest bus bandwidth of a tree's channel with any protocol."""
    nvls_tree: Table | None
    """Largest bandwidth of NVLSTree per channel. None: no limit."""
    nvls: tuple[float, float, float, float] | None
    """Efficiency of NVLS by architecture. None: the release uses 5/6 of the bus instead."""
    ll: tuple[float, float]
    """Share of the ring's bus bandwidth that LL gets: (all_reduce and between nodes, other operations on one node)."""
    ring_ll128_single: float
    """Share of the ring's bus bandwidth that LL128 gets if nodes have one GPU each."""
    inter_steps: int
    """Correction of the hops of an all_reduce ring: over n nodes, 2(n - inter_steps) hops are between nodes."""
    single_tree: bool
    """Whether a ring's hop costs as much as a tree's if nodes have one GPU each."""
    flush: int = 2
    """How many times Simple pays the latency that a NIC declares."""
    nvls_heads: int | None = None
    """Number of heads that share the limits of `nvls_tree`, whatever number of blocks runs. None: the limits are per head."""


_NONE: PerProtocol = (0.0, 0.0, 0.0)
_VOLTA, _AMPERE, _HOPPER = (39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0)
V2_30: Annotated[Constants, Declared("us, GB/s")] = Constants(
    base={
        "tree": (6.8, 14.0, 8.4),
        "ring": (6.6, 14.0, 8.4),
        "collnet_direct": _NONE,
        "collnet_chain": _NONE,
        "nvls": _NONE,
        "nvls_tree": _NONE,
        "pat": (8.0, 8.0, 8.0),
    },
    nvlink={
        "tree": (0.6, 1.25, 4.0),
        "ring": (0.6, 1.9, 3.4),
        "collnet_direct": (0.0, 0.0, 3.7),
        "collnet_chain": (0.0, 0.0, 2.8),
        "nvls": (0.0, 0.0, 25.0),
        "nvls_tree": (0.0, 0.0, 25.0),
        "pat": (0.0, 0.0, 4.0),
    },
    pci={
        "tree": (1.0, 1.9, 4.0),
        "ring": (1.0, 2.5, 5.7),
        "collnet_direct": (0.0, 0.0, 3.7),
        "collnet_chain": (0.0, 0.0, 2.8),
        "nvls": _NONE,
        "nvls_tree": _NONE,
        "pat": (0.0, 0.0, 4.0),
    },
    net={
        "tree": (5.0, 8.5, 14.0),
        "ring": (2.7, 4.0, 14.0),
        "collnet_direct": (0.0, 0.0, 31.0),
        "collnet_chain": (0.0, 0.0, 30.0),
        "nvls": (0.0, 0.0, 18.0),
        "nvls_tree": (0.0, 0.0, 20.9),
        "pat": (0.0, 0.0, 14.0),
    },
    ll_max=(_VOLTA, _AMPERE, _HOPPER, (282.0, 90.0, 70.0)),
    ring_ll128=((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (40.0,) * 3),
    tree_ll128=((20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (55.6, 31.67, 20.0)),
    tree=((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0)),
    nvls_tree=((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (0.0, 57.7, 45.5), (0.0, 96.0, 80.0)),
    nvls=(0.0, 0.0, 0.85, 0.74),
    ll=(0.5, 0.5),
    ring_ll128_single=0.92,
    inter_steps=1,
    single_tree=True,
)
"""Constants of NCCL 2.27 to 2.30 (NVIDIA/nccl, src/graph/tuning.cc)."""
V2_28 = V2_30._replace(nvls_tree=((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (0.0, 57.7, 45.5), (0.0, 96.0, 43.8)))
V2_22 = V2_28._replace(net={**V2_28.net, "nvls_tree": (0.0, 0.0, 14.0)}, nvls_tree=None, nvls=None)
V2_19 = V2_22._replace(
    nvlink={**V2_22.nvlink, "tree": (0.6, 1.25, 28.0), "nvls": (0.0, 0.0, 23.0), "nvls_tree": (0.0, 0.0, 23.0)},
    pci={**V2_22.pci, "tree": (1.0, 1.9, 28.0)},
    net={**V2_22.net, "tree": (5.0, 8.5, 28.0)},
    ll_max=(_VOLTA, _AMPERE, _AMPERE, _AMPERE),
    ring_ll128=((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (36.7,) * 3),
    tree_ll128=((20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (36.7, 36.7, 29.0)),
    tree=((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (38.7, 41.4, 36.0)),
    ll=(1 / 4, 1 / 3),
    ring_ll128_single=0.7,
    inter_steps=0,
    single_tree=False,
)
V2_18 = V2_19._replace(
    nvlink={**V2_19.nvlink, "tree": (0.6, 1.25, 14.0)},
    pci={**V2_19.pci, "tree": (1.0, 1.9, 14.0)},
    net={**V2_19.net, "tree": (5.0, 8.5, 14.0)},
)
RELEASES = {(2, 18): V2_18, (2, 19): V2_19, (2, 22): V2_22, (2, 28): V2_28, (2, 30): V2_30}
TREE_CORRECTION: Annotated[tuple[tuple[float, ...], ...], Declared()] = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    (0.9,) * 7 + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
)
"""Bandwidth of trees by protocol and log2(bytes / 64), 64 B to 256 MB (src/graph/tuning.cc)."""


def tree_correction(protocol: int, size: float) -> float:
    """Return the share of its bandwidth that a tree reaches with `size` bytes. `protocol` is 0 LL, 1 LL128, 2 Simple."""
    log = (int(size) >> 6).bit_length() - 1
    return TREE_CORRECTION[protocol][log] if 0 <= log < len(TREE_CORRECTION[protocol]) else 1.0


@cache
def constants(version: str) -> Constants:
    """Return the tuner constants of an NCCL release such as `2.27` or `2.27.3`.

    Raises InputError for an invalid release and for one before 2.18.
    """
    try:
        major, minor = (int(part) for part in version.split(".")[:2])
    except ValueError:
        raise InputError(f"{version!r} is not a version of NCCL; write one like 2.27") from None
    known = [release for release in RELEASES if release <= (major, minor)]
    if not known or major != 2:
        raise InputError(f"NCCL {version} is not known; write 2.18 to 2.30")
    return RELEASES[max(known)]


def architecture(name: str) -> int:
    """Return the row of a GPU architecture in the tables: 0 Volta and older, or unknown; 1 Ampere, 2 Hopper, 3 Blackwell."""
    generation = _OLDER.get(name, name)
    return ARCHITECTURES.index(generation) if generation in ARCHITECTURES else 0
