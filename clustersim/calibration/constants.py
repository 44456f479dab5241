"""The constants of a step: figures that no datasheet has and that differ from machine to machine.

Each constant is a factor on keys of the topology and workload files, so that a measured value is set as any other key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clustersim.config.evidence import ConstantScope, Declared
from clustersim.config.gpu import Gpu
from clustersim.config.topology import Fault, Gpus, Host, Nccl, Nics, Node, ScaleUp
from clustersim.config.yaml import Document
from clustersim.hardware.formats import activation_type, product_type
from clustersim.parallel.job import Job
from clustersim.predictors import clocks
from clustersim.topology.build import described, node_types

SOFTWARE = "software level"
_MEANS = "means of 30 publishers' steps as strangers' (docs/validation.md)"
FAMILIES: Mapping[str, Declared] = {
    SOFTWARE: Declared("", _MEANS, "machine", SOFTWARE, 0.12),
    **{
        known.family: known
        for spec in (Gpus, Host, ScaleUp, Nics, Nccl, Fault)
        for key in spec.model_fields.values()
        for known in key.metadata
        if isinstance(known, Declared)
    },
}
"""{family: its scope, spread between machines and source, as declared at its key}; no measured step is needed."""
LEVEL = "software.level"
"""Key of a machine file that multiplies the expected time of every step; with a suffix, of a framework's or a model's steps."""


def family(constant: str) -> str:
    """Return the family of a constant: the part of its name before the first comma."""
    return constant.partition(",")[0]


@dataclass(frozen=True, slots=True)
class Constant:
    """A figure that a forecast depends on, as a factor on keys of a run's files."""

    name: str
    """Name, such as `clock under load, 16-bit, hopper`; the part before the first comma is its family."""
    scope: ConstantScope
    spread: float
    """Standard deviation of the constant's logarithm between machines."""
    source: str
    """Source of the spread."""
    keys: Mapping[str, float]
    """{dotted key that the constant multiplies: current value}"""
    companions: Mapping[str, float] = field(default_factory=dict)
    """{dotted key that must be written together with `keys`: current value, which stays}"""
    most: float = float("inf")
    """Largest factor that the keys allow: a share cannot exceed 1."""
    slows: bool = False
    """Whether a larger value makes a step longer: it is a time, not a speed."""

    @property
    def family(self) -> str:
        """Family of the constant: the part of its name before the first comma."""
        return family(self.name)

    @property
    def value(self) -> float:
        """Current value of the constant's first key."""
        return next(iter(self.keys.values()))

    def changes(self, factor: float) -> dict[str, object]:
        """Return {key: new value} for a constant `factor` times as large, at most `most`; `companions` keep their values."""
        return {**self.companions, **{key: value * min(factor, self.most) for key, value in self.keys.items()}}


def constants_of(cluster: Document, job: Job) -> list[Constant]:
    """Return the constants that can affect a step of a placed job on a cluster. Raises ConfigError for an invalid file.

    Node types whose constants have the same name, such as nodes with equal GPUs, share one constant with the keys of all.
    """
    by_name: dict[str, Constant] = {}
    for prefix, pool in node_types(cluster):
        for constant in (*_kernel_constants(prefix, pool.gpu, job), *_node_constants(prefix, pool.node, pool.gpu, job)):
            known = by_name.get(constant.name, constant)
            keys, companions = {**known.keys, **constant.keys}, {**known.companions, **constant.companions}
            most = min(known.most, constant.most)
            by_name[constant.name] = replace(known, keys=keys, companions=companions, most=most)
    collectives = {"nccl.slowdown": described(cluster)[0].nccl.slowdown}
    latency = [_constant("latency of collectives", collectives, slows=True)] * (job.mesh.size > 1)
    return [*by_name.values(), *latency]


def software_constants(job: Job) -> tuple[Constant, ...]:
    """Return the constants that multiply a job's expected time because of software: of the machine, the framework, the model.

    Each has a third of the variance of the software level, as kernels and overlap differ by framework and model too.
    """
    scopes = ("", (job.training.framework or "none").partition(" ")[0], f"{job.model.layers}x{job.model.hidden}")
    third = FAMILIES[SOFTWARE].spread / 3**0.5
    names = {f"{SOFTWARE}, {scope}" if scope else SOFTWARE: f"{LEVEL}.{scope}".rstrip(".") for scope in scopes}
    return tuple(replace(_constant(name, {key: 1.0}, slows=True), spread=third) for name, key in names.items())


def _constant(name: str, keys: Mapping[str, float], **fields: Any) -> Constant:
    """Return a constant of `keys` (dotted key: value), with the scope and spread of its family. fields: others of `Constant`."""
    known = FAMILIES[family(name)]
    return Constant(name, known.scope, known.spread, known.chosen_on, keys, **fields)


def _kernel_constants(prefix: str, gpu: Gpu, job: Job) -> Iterator[Constant]:
    """Yield the constants of a job's kernels: clocks, speeds of vector and attention kernels. prefix: key of the GPU's node."""
    if job.spec.clocks == "sustained":
        yield from _clock_constants(f"{prefix}.gpus.sustained", gpu, job.training.precision)
    speed, current = f"{prefix}.gpus.speed", {str(group): value for group, value in gpu.speed.items()}
    names = {"vector": f"vector kernels, {gpu.architecture}"}
    if job.training.attention != "unfused":
        names["attention"] = f"fused attention, {job.training.attention}, {gpu.architecture}"
    for group, name in names.items():
        others = {f"{speed}.{other}": value for other, value in current.items() if other != group}
        yield _constant(name, {f"{speed}.{group}": current.get(group, 1.0)}, companions=others)


def _clock_constants(prefix: str, gpu: Gpu, precision: str) -> Iterator[Constant]:
    """Yield the sustained shares of the burst rate of GEMMs, for the types that a training precision uses.

    prefix: dotted key of the shares. fp16 and bf16 share a constant; a type whose clock does not follow power has none.
    """
    shares = {str(dtype): clocks.sustained(gpu, dtype) for dtype in gpu.matrix if clocks.follows_power(gpu, dtype)}
    groups: dict[str, list[str]] = {}
    for dtype in shares:
        groups.setdefault("16-bit" if dtype in ("fp16", "bf16") else dtype, []).append(dtype)
    used = {str(gpu.matrix_type(dtype)) for dtype in (activation_type(precision), product_type(precision))}
    for group, types in groups.items():
        if used & set(types):
            keys = {f"{prefix}.{dtype}": shares[dtype] for dtype in types}
            others = {f"{prefix}.{dtype}": share for dtype, share in shares.items() if dtype not in types}
            name, most = f"clock under load, {group}, {gpu.architecture}", 1 / max(keys.values())
            yield _constant(name, keys, companions=others, most=most)


def _node_constants(prefix: str, node: Node, gpu: Gpu, job: Job) -> Iterator[Constant]:
    """Yield the constants of the host, NVLink and network that a job uses. prefix: key of the node, such as `cluster.node`."""
    if job.training.framework:
        name = job.training.framework.partition(" ")[0]
        yield _constant(f"host, {name}", {f"{prefix}.host.slowdown": node.host.slowdown}, slows=True)
    if node.gpus.count > 1 and node.scale_up.kind != "none":
        share = node.scale_up.payload_efficiency
        yield _constant(f"NVLink, {gpu.architecture}", {f"{prefix}.scale_up.payload_efficiency": share}, most=1 / share)
    if node.nics is not None and job.mesh.size > node.gpus.count:
        share = node.nics.efficiency
        yield _constant("network between nodes", {f"{prefix}.nics.efficiency": share}, most=1 / share)
