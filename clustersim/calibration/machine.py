"""Use of a machine file: its values replace a cluster's own, and narrow the interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, hypot, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from clustersim.arrays import Floats
from clustersim.calibration.constants import (
    FAMILIES,
    LEVEL,
    SOFTWARE,
    Constant,
    constants_of,
    family,
    software_constant,
)
from clustersim.calibration.fit import BOUND, MachineEstimate, remainder
from clustersim.calibration.sensitivity import sensitivities
from clustersim.config.fields import validate
from clustersim.config.machine import VERSION, MachineSpec
from clustersim.config.overrides import Overrides, SourcePlace, of_topology
from clustersim.config.yaml import Document, read
from clustersim.errors import InputError, suggest
from clustersim.simulation import Simulator, StepResult
from clustersim.topology.build import document_of, node_types, overridden

FAULTS = "faults"
"""Key whose values are added to those of a topology, not replaced."""
_PARTS = {"nics": "cluster.node.nics.", "scale_up": "cluster.node.scale_up."}
"""Keys of parts that a node may lack."""
_KEYS = ("cluster.node.gpus.", "cluster.node.host.", *_PARTS.values(), "nccl.", FAULTS, LEVEL)
"""Prefixes of the keys of constants: a machine file describes speeds of a cluster, not its parts or jobs."""


@dataclass(frozen=True)
class Machine:
    """Constants of one cluster, estimated from measured steps."""

    document: Document
    spec: MachineSpec

    @classmethod
    def read(cls, path: str | Path) -> Machine:
        """Return the machine of a file. Raises InputError if it cannot be read, and ConfigError for an error in it."""
        if Path(path).suffix == ".csv":
            raise InputError(f"--machine {path}: a table of runs; clustersim calibrate {path} --out mine.yaml reads it")
        document = read(path)
        spec = validate(MachineSpec, document)
        for at, what in _faults(spec):
            raise document.error(("constants", *at), f"constants: {what}")
        return cls(document, spec)

    @property
    def level(self) -> float:
        """Factor on the expected time of every step."""
        return float(next((one.keys[LEVEL] for one in self.spec.constants if LEVEL in one.keys), 1.0))

    @cached_property
    def covariance(self) -> Floats:
        """Covariance of the logarithms of the factors (constants, constants)."""
        spreads = np.array([one.spread for one in self.spec.constants])
        return _correlations(self.spec) * np.outer(spreads, spreads)

    def overrides(self, topology: Path, given: Overrides) -> dict[str, object]:
        """Return `given` completed by the values of this machine, by dotted key.

        Keys of parts that the nodes lack are left out. Raises InputError for a cluster of other GPUs, and ConfigError, with the
        position in the machine file, for a value that its key cannot have.
        """
        cluster = overridden(document_of(topology), {key: value for key, value in given.items() if of_topology(key)})
        types = node_types(cluster)
        gpus = sorted({pool.gpu.name for _, pool in types})
        if gpus != [self.spec.gpu]:
            was = f"{self.spec.gpu} was measured, and {topology} has {' and '.join(gpus)}"
            raise InputError(f"--machine {self.document.path}: {was}; calibrate on steps of that cluster")
        if len(types) > 1:
            was = f"{topology} has nodes of several types"
            raise InputError(f"--machine {self.document.path}: {was}; name one of one type")
        node = types[0][1].node
        absent = [_PARTS["nics"]] * (node.nics is None) + [_PARTS["scale_up"]] * (node.scale_up.kind == "none")
        values, places = {}, {}
        for key, value, place in self._values():
            if key not in given and not key.startswith(tuple(absent)):
                own = list(cluster.data.get(FAULTS) or []) if key == FAULTS else []
                values[key], places[key] = [*own, *value] if key == FAULTS and isinstance(value, list) else value, place
        node_types(overridden(cluster, {key: one for key, one in values.items() if of_topology(key)}, places))
        return {**values, **given}

    def besides(self, overrides: Overrides) -> dict[str, object]:
        """Return the overrides that are not from this file."""
        said = {key: value for key, value, _ in self._values()}
        return {key: value for key, value in overrides.items() if key not in said or said[key] != value}

    def _values(self) -> Iterator[tuple[str, Any, SourcePlace]]:
        """Yield (key, value, position in the file) of the cluster's constants."""
        for place, one in enumerate(self.spec.constants):
            for key, value in one.keys.items():
                if key == LEVEL:
                    continue  # of the expected step, not of the cluster
                at = self.document.positions.get(("constants", place, "keys", key))
                yield key, value, (self.document.path, *(at[:2] if at else (0, 0)))

    def known(self, constants: Sequence[Constant]) -> Floats:
        """Return the covariance of the logarithms of a step's constants (constants, constants).

        Constants not in this file have their spread between machines.
        """
        places = {one.name: place for place, one in enumerate(self.spec.constants)}
        found = np.diag([one.spread**2 for one in constants])
        own = [i for i, one in enumerate(constants) if one.name in places]
        known = [places[constants[i].name] for i in own]
        found[np.ix_(own, own)] = self.covariance[np.ix_(known, known)]
        return found

    def spreads(self, constants: Sequence[Constant]) -> dict[str, tuple[float, str]]:
        """Return {constant: (standard deviation of its logarithm, source)} of those that measurements have narrowed."""
        source = f"{self.document.path}: {', '.join(self.spec.evidence)}"
        known = {one.name: one for one in self.spec.constants if one.spread < NARROWED * one.usual_spread}
        return {one.name: (known[one.name].spread, source) for one in constants if one.name in known}

    def spread(self, constants: Sequence[Constant], sensitivities: Mapping[str, float]) -> float:
        """Return the standard deviation of ln(measured / forecast) of a step: sqrt(S' C S + r^2).

        S: its sensitivities, C: the covariance of its constants, r: the remainder.
        """
        slopes = np.array([sensitivities[one.name] for one in constants])
        rest = remainder(self.spec.remainder, constants, sensitivities)
        return hypot(sqrt(float(slopes @ self.known(constants) @ slopes)), rest)


def _faults(spec: MachineSpec) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield (position below `constants`, what is wrong and the remedy) of the errors of a machine file."""
    names = [one.name for one in spec.constants]
    for place, one in enumerate(spec.constants):
        if one.name in names[:place]:
            yield (place, "name"), f"{one.name!r} stands twice; keep one of them"
        if one.correlations and len(one.correlations) != place:
            few = f"{len(one.correlations)} correlations of {one.name!r}"
            yield (place, "correlations"), f"{few}; write none, or one with each constant before: {place}"
        if (kind := family(one.name)) not in FAMILIES:
            yield (place, "name"), f"{kind!r} is not a family of constants; {suggest(kind, FAMILIES)}"
        if not one.keys and abs(log(one.factor)) >= STILL:
            alone = f"{one.name!r} has a factor of {one.factor:g} and no keys"
            yield (place, "factor"), f"{alone}; write their values, or a factor of 1"
        for key in one.keys:
            if not key.startswith(_KEYS):
                yield (place, "keys", key), f"{key!r} is not a key of a constant; drop it"
    if np.linalg.eigvalsh(_correlations(spec))[0] < -_ROUNDING:
        yield (), "no constants can have these correlations together; calibrate again, or leave them out"


def narrow(result: StepResult, cluster: Document, path: Path) -> None:
    """Write the interval narrowed by a machine file into the summary of a step. cluster: with the file's values.

    Raises InputError for errors in the file.
    """
    machine, summary, job = Machine.read(path), result.summary, result.job
    constants = constants_of(cluster, job)
    slopes = {SOFTWARE: 1.0, **sensitivities(cluster, job, constants, Simulator(result.topology))}
    spread = machine.spread([software_constant(), *constants], slopes)
    summary["machine"] = {"file": str(path), "evidence": list(machine.spec.evidence), "spread": spread}
    usual, high = summary["expected_step_time_s"], summary["step_time_high_s"]
    summary |= {key: summary[key] / machine.level for key in RATES if key in summary}
    seconds = summary["expected_step_time_s"] = usual * machine.level
    summary["software_level"] = {**summary["software_level"], "factor": seconds / summary["step_time_s"]}
    if high is not None:
        widest = log(high / usual)
        half = min(BOUND * spread, widest)
        summary["step_time_low_s"], summary["step_time_high_s"] = seconds * exp(-half), seconds * exp(half)
        if half < widest:
            said = f"{half / widest:.0%} as wide as of a machine without measurements, by {', '.join(machine.spec.evidence)}"
            summary["step_time_interval"] = f"{said}; else {summary['step_time_interval']}"


def written(found: MachineEstimate, gpu: str, evidence: Sequence[str], remainder: float) -> str:
    """Return an estimate as a machine file. gpu: of the cluster; evidence: measurements in words; remainder: as in the file."""
    import yaml

    posterior = found.found
    spreads = [posterior.spread(one.name) for one in found.constants]
    constants = []
    for place, (one, spread, x) in enumerate(zip(found.constants, spreads, found.logs.tolist(), strict=True)):
        moved = abs(x) >= STILL
        constants.append(
            {
                "name": one.name,
                "factor": _rounded(exp(x)) if moved else 1.0,
                "spread": _rounded(spread),
                "usual_spread": one.spread,
                "evidence": f"among machines: {one.source}",
                "keys": {key: _plain(value) for key, value in found.keys_of(one).items()} if moved else {},
                "correlations": [
                    round(float(posterior.covariance[place, other]) / max(spread * spreads[other], 1e-12), 3)
                    for other in range(place)
                ],
            }
        )
    made = {"version": VERSION, "gpu": gpu, "evidence": list(evidence), "remainder": remainder, "constants": constants}
    return str(yaml.safe_dump(made, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None))


def _plain(value: object) -> object:
    """Return the value of a key as in a file, with numbers of five digits."""
    if isinstance(value, list):
        return [{key: _rounded(one) for key, one in item.items()} for item in value]
    return _rounded(value)


def _rounded(value: Any) -> Any:
    """Return a float with five digits, another value as it is."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


RATES = (
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "tokens_per_s_per_owned_gpu",
    "model_tflops_per_gpu",
    "mfu",
    "hfu",
)
"""Figures of a summary that are inverse to its time."""
NARROWED = 0.95
"""Share of its usual spread below which a constant counts as measured."""
STILL = 0.002
"""Change of a logarithm below which a machine's constant counts as usual."""
_ROUNDING = 0.02
"""Largest rounding error of correlations with two digits."""


def _correlations(spec: MachineSpec) -> Floats:
    """Return the correlations of constants (constants, constants)."""
    found = np.eye(len(spec.constants))
    for place, one in enumerate(spec.constants):
        for other, value in enumerate(one.correlations):
            found[place, other] = found[other, place] = value
    return found
