"""The options of `clustersim collective`: NCCL settings, the GPUs of a communicator, and a range of sizes."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from clustersim import plugins
from clustersim.arrays import Ints
from clustersim.collectives.model import ROOM, SKEWED
from clustersim.collectives.nccl.constants import constants
from clustersim.collectives.nccl.shape import ordered
from clustersim.config.topology import NCCL_ALGORITHMS, nccl_algorithm, nccl_protocol
from clustersim.errors import InputError, UnknownNameError, suggest
from clustersim.model.sharding import zipf_shares
from clustersim.topology.model import Topology
from clustersim.units import parse

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGTkmgt]?)")
_SCALE = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_ELEMENT = 4
"""Bytes of an element of nccl-tests' data type, float; sizes are multiples of it."""


def forced(
    topology: Topology,
    algo: str | None = None,
    proto: str | None = None,
    version: str | None = None,
    launch: str | None = None,
    nvls: bool | None = None,
) -> Topology:
    """Return the cluster with other NCCL settings; None leaves a setting as it is.

    `algo` is an algorithm of NCCL, `proto` LL, LL128 or Simple, `version` a release, `launch` a time with a unit such as `5us`.
    Raises InputError for an invalid value.
    """
    name, protocol = nccl_algorithm(algo or ""), nccl_protocol(proto or "")
    if algo is not None and name is None:
        raise _unknown(algo)
    if proto is not None and protocol is None:
        raise InputError(f"{proto!r} is not a protocol of NCCL; write LL, LL128 or Simple")
    old = topology.node.nccl
    delay = parse(launch, "time") if launch else old.launch
    with_nvls = old.nvls if nvls is None else nvls
    nccl = old._replace(
        version=version or old.version, algo=name or old.algo, proto=protocol or old.proto, launch=delay, nvls=with_nvls
    )
    constants(nccl.version)
    return replace(topology, node=topology.node._replace(nccl=nccl), launch=topology.launch if delay is None else delay)


def named(algo: str | None, proto: str | None = None) -> str | None:
    """Return `algo` if it is a file of collectives/algorithms, and None if it is one of NCCL's or not given.

    Raises UnknownNameError for an unknown name, and InputError if a protocol is given with an algorithm that has none.
    """
    if algo is None or nccl_algorithm(algo):
        return None
    try:
        plugins.spelled(ROOM, algo)
    except UnknownNameError as error:
        raise (error if ":" in algo else _unknown(algo)) from error
    if proto:
        raise InputError(f"--proto is for NCCL's algorithms, and {algo} is not one of them; drop --proto")
    return algo


def _unknown(algo: str) -> UnknownNameError:
    """Return the error for an unknown algorithm, with similar names."""
    known = {*NCCL_ALGORITHMS, *plugins.names(ROOM)}
    remedy = f"{suggest(algo, known)}, or package.module:attribute with --plugins"
    return UnknownNameError(f"{algo!r} is not an algorithm of NCCL; {remedy}")


def members(topology: Topology, gpus: int | None, ranks: str | None) -> Ints:
    """Return the GPUs of a communicator (n,), ascending: those that `ranks` lists, else the first `gpus`, else all.

    A list is text such as `0-7,16-23` or `0-1023:8`. Raises InputError if both are set, for invalid text, and for unknown or
    repeated GPUs.
    """
    if ranks and gpus:
        raise InputError("--gpus and --ranks both name the GPUs; give one of them")
    if not ranks:
        count = topology.gpus if gpus is None else gpus
        if count > topology.gpus:
            raise InputError(f"the cluster has {topology.gpus} GPUs, not {count}; use that many or fewer")
        return np.arange(count)
    listed = ordered(np.concatenate([_span(part.strip(), topology) for part in ranks.split(",")]))
    repeated = listed[1:][listed[1:] == listed[:-1]]
    if len(repeated):
        raise InputError(f"--ranks {ranks} names GPU {repeated[0]} twice; write each once")
    return listed


def _span(part: str, topology: Topology) -> Ints:
    """Return the GPUs of one part of a list: `3`, `0-7` or `0-1023:8`. Raises InputError for other text or unknown GPUs."""
    match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([1-9][0-9]{0,8}))?)?", part)
    if match is None:
        raise InputError(f"{part!r} is not a list of GPUs; write numbers and spans like 0-7 or 0-1023:8")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise InputError(f"GPUs {part} run backwards; write the smaller number first")
    if last >= topology.gpus:
        known = f"the cluster has {topology.gpus} GPUs, 0 to {topology.gpus - 1}"
        raise InputError(f"GPUs {part} are out of range; {known}")
    return np.arange(first, last + 1, int(match[3] or 1))


def shares(op: str, n: int, imbalance: float) -> tuple[float, ...]:
    """Return the share of all rows of `op` for the experts of each of `n` GPUs, with sum 1; () if `imbalance` is 1.

    The largest share is `imbalance` times the mean. Raises InputError for operations other than all_to_all, dispatch and combine,
    and for an imbalance that `zipf_shares` cannot reach.
    """
    if imbalance == 1:
        return ()
    if op not in SKEWED:
        raise InputError(f"an imbalance is for {', '.join(SKEWED)}; every GPU has as much to do with {op}, drop it")
    return zipf_shares(n, imbalance)


def sizes(begin: str, end: str, factor: float) -> list[int]:
    """Return the sizes in bytes from `begin` to `end`, each `factor` times the previous one, in whole elements of 4 bytes.

    `64K` is 2**16 as in nccl-tests, which also drops incomplete elements; `64kB` and `64KiB` are as in YAML. `factor` is above 1.
    Raises InputError for invalid sizes and a `begin` above `end`.
    """
    exact_size, largest = _bytes(begin), _bytes(end)
    if exact_size > largest:
        raise InputError(f"the smallest size {begin} is larger than the largest {end}; swap them")
    whole_sizes = []
    while exact_size <= largest * (1 + 1e-9):
        whole_sizes.append(max(_ELEMENT, int(exact_size * (1 + 1e-12)) // _ELEMENT * _ELEMENT))
        exact_size *= factor
    return list(dict.fromkeys(whole_sizes))


def _bytes(text: str) -> float:
    """Return the bytes of a size such as `64K` (powers of 2) or `1GB`. Raises InputError if it is not a size."""
    match = _SIZE.fullmatch(text.strip())
    try:
        value = float(match[1]) * _SCALE[match[2].upper()] if match else parse(text, "size")
    except InputError:
        value = 0.0
    if not 1 <= value <= 1 << 50:
        remedy = "write bytes, 64K, 1M, 16G (powers of 2), 1GB (10^9) or 1GiB (2^30)"
        raise InputError(f"{text!r} is not a size of a collective; {remedy}")
    return value
