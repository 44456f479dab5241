"""Use of a machine file: its values replace a cluster's own, and narrow the interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, hypot, log, prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from clustersim.arrays import Floats
from clustersim.calibration.constants import FAMILIES, LEVEL, Constant, constants_of, family, software_constants
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
"""{part that a node may lack: prefix of its keys}"""
_KEYS = ("cluster.node.gpus.", "cluster.node.host.", *_PARTS.values(), "nccl.", FAULTS, LEVEL)
"""Prefixes of the keys of constants: a machine file describes speeds of a cluster, not its parts or jobs."""


@dataclass(frozen=True)
class Machine:
    """Constants of one cluster, estimated from measurements: a machine file."""

    document: Document
    spec: MachineSpec

    @classmethod
    def read(cls, path: str | Path) -> Machine:
        """Return the machine of a YAML file. Raises InputError if it cannot be read, and ConfigError for an error in it."""
        if Path(path).suffix == ".csv":
            raise InputError(f"--machine {path}: a table of runs; clustersim calibrate {path} --out mine.yaml reads it")
        document = read(path)
        spec = validate(MachineSpec, document)
        for place, what in _errors(spec):
            raise document.error(("constants", *place), f"constants: {what}")
        return cls(document, spec)

    def level(self, constants: Sequence[Constant]) -> float:
        """Return the factor on the expected time of a step with these `constants`; 1 if none is estimated."""
        names = {constant.name for constant in constants}
        rows = [row.keys.items() for row in self.spec.constants if row.name in names]
        return prod(float(value) for keys in rows for key, value in keys if key.startswith(LEVEL))

    @cached_property
    def covariance(self) -> Floats:
        """Covariance of the logarithms of the factors (constants, constants), in the order of the file."""
        spreads = np.array([constant.spread for constant in self.spec.constants])
        return _correlations(self.spec) * np.outer(spreads, spreads)

    def overrides(self, topology: Path, chosen: Overrides) -> dict[str, object]:
        """Return {dotted key: value} of this machine and the user's `chosen`, which win, for the file `topology`.

        Keys of NICs or NVLink are left out if the nodes have none. Raises InputError for a cluster of other GPUs, and
        ConfigError, with the position in the machine file, for a value that its key cannot have.
        """
        cluster = overridden(document_of(topology), {key: value for key, value in chosen.items() if of_topology(key)})
        types = node_types(cluster)
        gpus = sorted({pool.gpu.name for _, pool in types})
        if gpus != [self.spec.gpu]:
            problem = f"{self.spec.gpu} was measured, and {topology} has {' and '.join(gpus)}"
            raise InputError(f"--machine {self.document.path}: {problem}; calibrate on steps of that cluster")
        if len(types) > 1:
            problem = f"{topology} has nodes of several types"
            raise InputError(f"--machine {self.document.path}: {problem}; name one of one type")
        node = types[0][1].node
        absent = [_PARTS["nics"]] * (node.nics is None) + [_PARTS["scale_up"]] * (node.scale_up.kind == "none")
        values, places = {}, {}
        for key, value, place in self._values():
            if key not in chosen and not key.startswith(tuple(absent)):
                before = list(cluster.data.get(FAULTS) or []) if key == FAULTS else []
                values[key] = [*before, *value] if key == FAULTS and isinstance(value, list) else value
                places[key] = place
        node_types(overridden(cluster, {key: value for key, value in values.items() if of_topology(key)}, places))
        return {**values, **chosen}

    def besides(self, overrides: Overrides) -> dict[str, object]:
        """Return the overrides whose key or value is not from this file."""
        own_values = {key: value for key, value, _ in self._values()}
        return {key: value for key, value in overrides.items() if key not in own_values or own_values[key] != value}

    def _values(self) -> Iterator[tuple[str, Any, SourcePlace]]:
        """Yield (key, value, position in the file) of each constant's keys, without LEVEL."""
        for index, constant in enumerate(self.spec.constants):
            for key, value in constant.keys.items():
                if key.startswith(LEVEL):
                    continue  # of the expected step, not of the cluster
                position = self.document.positions.get(("constants", index, "keys", key))
                yield key, value, (self.document.path, *(position[:2] if position else (0, 0)))

    def covariance_of(self, constants: Sequence[Constant]) -> Floats:
        """Return the covariance of the logarithms of a step's `constants` (constants, constants).

        Constants that are not in this file have their spread between machines, and no correlation.
        """
        index_by_name = {constant.name: index for index, constant in enumerate(self.spec.constants)}
        covariance = np.diag([constant.spread**2 for constant in constants])
        estimated = [i for i, constant in enumerate(constants) if constant.name in index_by_name]
        rows = [index_by_name[constants[i].name] for i in estimated]
        covariance[np.ix_(estimated, estimated)] = self.covariance[np.ix_(rows, rows)]
        return covariance

    def spreads(self, constants: Sequence[Constant]) -> dict[str, tuple[float, str]]:
        """Return {constant: (standard deviation of its logarithm, source)} of those below NARROWED of their usual spread."""
        source = f"{self.document.path}: {', '.join(self.spec.evidence)}"
        narrowed = {row.name: row.spread for row in self.spec.constants if row.spread < NARROWED * row.usual_spread}
        return {row.name: (narrowed[row.name], source) for row in constants if row.name in narrowed}

    def spread(self, constants: Sequence[Constant], sensitivities: Mapping[str, float]) -> float:
        """Return the standard deviation of ln(measured / forecast) of a step: sqrt(S' C S + r^2).

        S: the step's `sensitivities` {constant: slope}, C: covariance of `constants`, r: part that no constant explains.
        """
        slopes = np.array([sensitivities[constant.name] for constant in constants])
        rest = remainder(self.spec.remainder, constants, sensitivities)
        return hypot(sqrt(float(slopes @ self.covariance_of(constants) @ slopes)), rest)


def _errors(spec: MachineSpec) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield (path of keys below `constants`, problem and remedy) for each error of a machine file."""
    names = [constant.name for constant in spec.constants]
    for index, constant in enumerate(spec.constants):
        if constant.name in names[:index]:
            yield (index, "name"), f"{constant.name!r} stands twice; keep one of them"
        if constant.correlations and len(constant.correlations) != index:
            problem = f"{len(constant.correlations)} correlations of {constant.name!r}"
            yield (index, "correlations"), f"{problem}; write none, or one with each constant before: {index}"
        if (kind := family(constant.name)) not in FAMILIES:
            yield (index, "name"), f"{kind!r} is not a family of constants; {suggest(kind, FAMILIES)}"
        if not constant.keys and abs(log(constant.factor)) >= STILL:
            problem = f"{constant.name!r} has a factor of {constant.factor:g} and no keys"
            yield (index, "factor"), f"{problem}; write their values, or a factor of 1"
        for key in constant.keys:
            if not key.startswith(_KEYS):
                yield (index, "keys", key), f"{key!r} is not a key of a constant; drop it"
    if np.linalg.eigvalsh(_correlations(spec))[0] < -_ROUNDING:
        yield (), "no constants can have these correlations together; calibrate again, or leave them out"


def narrow(result: StepResult, cluster: Document, path: Path) -> None:
    """Change a step's expected time, rates and interval in its summary to those of a machine file at `path`.

    cluster: topology with the file's values. The interval is never wider than usual. Raises InputError for errors in the file.
    """
    machine, summary, job = Machine.read(path), result.summary, result.job
    software, others = software_constants(job), constants_of(cluster, job)
    slopes = sensitivities(cluster, job, others, Simulator(result.topology))
    spread = machine.spread([*software, *others], {**slopes, **{constant.name: 1.0 for constant in software}})
    level = machine.level(software)
    summary["machine"] = {"file": str(path), "evidence": list(machine.spec.evidence), "spread": spread}
    usual, high = summary["expected_step_time_s"], summary["step_time_high_s"]
    summary |= {key: summary[key] / level for key in RATES if key in summary}
    seconds = summary["expected_step_time_s"] = usual * level
    summary["software_level"] = {**summary["software_level"], "factor": seconds / summary["step_time_s"]}
    if high is not None:
        usual_half_width = log(high / usual)
        half_width = min(BOUND * spread, usual_half_width)
        summary["step_time_low_s"], summary["step_time_high_s"] = seconds * exp(-half_width), seconds * exp(half_width)
        if half_width < usual_half_width:
            share = f"{half_width / usual_half_width:.0%} as wide as of a machine without measurements"
            words = f"{share}, by {', '.join(machine.spec.evidence)}"
            summary["step_time_interval"] = f"{words}; else {summary['step_time_interval']}"


def machine_yaml(estimate: MachineEstimate, gpu: str, evidence: Sequence[str], remainder: float) -> str:
    """Return the text of a machine file.

    gpu: name of the cluster's GPU; evidence: measurements in words; remainder: standard deviation of ln(measured / forecast) of a
    step that no constant explains.
    """
    import yaml

    posterior = estimate.posterior
    spreads = [posterior.spread(constant.name) for constant in estimate.constants]
    constants = []
    for index, (constant, spread, x) in enumerate(
        zip(estimate.constants, spreads, estimate.logs.tolist(), strict=True)
    ):
        moved = abs(x) >= STILL
        constants.append(
            {
                "name": constant.name,
                "factor": _rounded(exp(x)) if moved else 1.0,
                "spread": _rounded(spread),
                "usual_spread": constant.spread,
                "evidence": f"among machines: {constant.source}",
                "keys": {key: _plain(value) for key, value in estimate.keys_of(constant).items()} if moved else {},
                "correlations": [
                    round(float(posterior.covariance[index, other]) / max(spread * spreads[other], 1e-12), 3)
                    for other in range(index)
                ],
            }
        )
    content = {
        "version": VERSION,
        "gpu": gpu,
        "evidence": list(evidence),
        "remainder": remainder,
        "constants": constants,
    }
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None))


def _plain(value: object) -> object:
    """Return a key's value, or each value of a list of mappings, with floats of five digits."""
    if isinstance(value, list):
        return [{key: _rounded(number) for key, number in item.items()} for item in value]
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
"""Keys of a summary that are inversely proportional to its time."""
NARROWED = 0.95
"""Share of its usual spread below which a constant counts as measured."""
STILL = 0.002
"""Change of a logarithm below which a machine's constant counts as usual."""
_ROUNDING = 0.02
"""Largest rounding error of correlations with two digits."""


def _correlations(spec: MachineSpec) -> Floats:
    """Return the correlations of constants (constants, constants), with ones on the diagonal."""
    matrix = np.eye(len(spec.constants))
    for row, constant in enumerate(spec.constants):
        for column, value in enumerate(constant.correlations):
            matrix[row, column] = matrix[column, row] = value
    return matrix
