"""The constants of a step: figures that no datasheet has and that differ from machine to machine.

Each is one factor on keys of the two files, so that a measured value is written down as any other key.
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
"""Knowledge about each family of constants without any step, as declared at its key."""
LEVEL = "software.level"
"""Key of a machine file that multiplies the expected time of every step."""


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
    """Standard deviation of its logarithm between machines."""
    source: str
    """Source of the spread."""
    keys: Mapping[str, float]
    """{key that it multiplies, as for `--set`: current value}"""
    beside: Mapping[str, float] = field(default_factory=dict)
    """{key that must be written together with these: current value}."""
    most: float = float("inf")
    """Largest factor that the keys allow: shares are at most 1."""
    slows: bool = False
    """Whether a larger value makes a step longer: it is a time, not a speed."""

    @property
    def family(self) -> str:
        """Family of the constant: the part of its name before the first comma."""
        return family(self.name)

    @property
    def value(self) -> float:
        """Current value of its first key."""
        return next(iter(self.keys.values()))

    def changes(self, factor: float) -> dict[str, object]:
        """Return the values of the keys for a constant `factor` times as large, at most `most`."""
        return {**self.beside, **{key: value * min(factor, self.most) for key, value in self.keys.items()}}


def constants_of(cluster: Document, job: Job) -> list[Constant]:
    """Return the constants that can matter to a step of a placed job on a cluster. Raises ConfigError for an invalid file.

    Constants of several node types that share a name are one.
    """
    found: dict[str, Constant] = {}
    for at, pool in node_types(cluster):
        for one in (*_of_gpu(at, pool.gpu, job), *_of_node(at, pool.node, pool.gpu, job)):
            known = found.get(one.name, one)
            keys, beside = {**known.keys, **one.keys}, {**known.beside, **one.beside}
            found[one.name] = replace(known, keys=keys, beside=beside, most=min(known.most, one.most))
    collectives = {"nccl.slowdown": described(cluster)[0].nccl.slowdown}
    latency = [_constant("latency of collectives", collectives, slows=True)] * (job.mesh.size > 1)
    return [*found.values(), *latency]


def software_constant() -> Constant:
    """Return the factor from the expected to the measured step of a machine, by its software."""
    return _constant(SOFTWARE, {LEVEL: 1.0}, slows=True)


def _constant(name: str, keys: Mapping[str, float], **more: Any) -> Constant:
    """Return a constant of `keys` (dotted key: value), with the scope and spread of its family. more: fields of `Constant`."""
    known = FAMILIES[family(name)]
    return Constant(name, known.scope, known.spread, known.chosen_on, keys, **more)


def _of_gpu(at: str, gpu: Gpu, job: Job) -> Iterator[Constant]:
    """Yield the constants of a job's kernels: clocks under load and speeds of vector and attention kernels."""
    if job.spec.clocks == "sustained":
        yield from _of_clocks(f"{at}.gpus.sustained", gpu, job.training.precision)
    speed, now = f"{at}.gpus.speed", {str(group): value for group, value in gpu.speed.items()}
    names = {"vector": f"vector kernels, {gpu.architecture}"}
    if job.training.attention != "unfused":
        names["attention"] = f"fused attention, {job.training.attention}, {gpu.architecture}"
    for group, name in names.items():
        beside = {f"{speed}.{other}": value for other, value in now.items() if other != group}
        yield _constant(name, {f"{speed}.{group}": now.get(group, 1.0)}, beside=beside)


def _of_clocks(at: str, gpu: Gpu, precision: str) -> Iterator[Constant]:
    """Yield the shares of the burst rate of GEMMs in a precision, and in the activations' type."""
    shares = {str(dtype): clocks.sustained(gpu, dtype) for dtype in gpu.matrix if clocks.follows_power(gpu, dtype)}
    groups: dict[str, list[str]] = {}
    for dtype in shares:
        groups.setdefault("16-bit" if dtype in ("fp16", "bf16") else dtype, []).append(dtype)
    wanted = {str(gpu.matrix_type(dtype)) for dtype in (activation_type(precision), product_type(precision))}
    for group, types in groups.items():
        if wanted & set(types):
            keys = {f"{at}.{dtype}": shares[dtype] for dtype in types}
            beside = {f"{at}.{dtype}": share for dtype, share in shares.items() if dtype not in types}
            name, most = f"clock under load, {group}, {gpu.architecture}", 1 / max(keys.values())
            yield _constant(name, keys, beside=beside, most=most)


def _of_node(at: str, node: Node, gpu: Gpu, job: Job) -> Iterator[Constant]:
    """Yield the constants of a job's launches and transfers: host, NVLink and network between nodes."""
    if job.training.framework:
        name = job.training.framework.partition(" ")[0]
        yield _constant(f"host, {name}", {f"{at}.host.slowdown": node.host.slowdown}, slows=True)
    if node.gpus.count > 1 and node.scale_up.kind != "none":
        now = node.scale_up.payload_efficiency
        yield _constant(f"NVLink, {gpu.architecture}", {f"{at}.scale_up.payload_efficiency": now}, most=1 / now)
    if node.nics is not None and job.mesh.size > node.gpus.count:
        now = node.nics.efficiency
        yield _constant("network between nodes", {f"{at}.nics.efficiency": now}, most=1 / now)
