"""What the learned constants mean: the value behind each parameter, its unit, and one sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.predictors.kinds.neusight.vector import CLASSES, MEMORIES
from clustersim.predictors.mlp import Parameters


class Meaning(NamedTuple):
    """How a parameter becomes the constant that the formulas name: value = convert(parameter) · scale."""

    unit: str
    text: str
    scale: float = 1.0
    convert: Callable[[float], float] = math.exp


class ChosenConstant(NamedTuple):
    """A learned constant in its unit."""

    name: str
    value: float
    unit: str
    text: str


def share(x: float) -> float:
    """Return the logistic function of `x`."""
    return 1 / (1 + math.exp(-x))


def above(x: float) -> float:
    """Return 1 + e^x."""
    return 1 + math.exp(x)


_BANDWIDTH = "share of the memory bandwidth that is reached"
_AT = "at a clock of 2 GHz"
MEANINGS: dict[str, Meaning] = {
    "gemm.path": Meaning("B per clock", "operands that reach an SM from L2"),
    "gemm.epilogue": Meaning("steps", "steps of the reduction in which the pipelines of a tile fill and drain"),
    "gemm.store": Meaning("B per clock", "output that an SM stores"),
    "gemm.split": Meaning("× splits", "more of a tile's end for each split of the reduction"),
    "gemm.latency": Meaning("clocks", "start of a tile"),
    "gemm.reduce": Meaning("us", "kernel that adds up the parts of a split reduction", 1e6),
    "gemm.start": Meaning("us", "start and end of a kernel at a clock of 1.9 GHz", 1e6),
    "gemm.mu": Meaning("", _BANDWIDTH, convert=share),
    "gemm.cached": Meaning("× L2 / bytes", "how much of its bytes a product finds in L2"),
    "gemm.p": Meaning("", "exponent that joins computing and memory: 1 adds them, a large one takes the larger"),
    "gemm.heat": Meaning("", "what the power controller adds to long products, per unit of the power factor"),
    "gemm.tau": Meaning("ms", "length of a product that has half of it", 1e3),
    "gemm.quantize": Meaning("us", "cast of an fp8 or fp4 input in the tables; left out of forecasts", 1e6),
    "gemm.scale": Meaning("× bytes / bandwidth", "the cast's share that grows with its input; left out of forecasts"),
    "gemm.level": Meaning("×", "speed of a typical GPU's matrix units, of what its datasheet promises"),
    "flash.alpha": Meaning("", "share of the attainable rate that products reach", convert=share),
    "flash.exp": Meaning("", "issue slots of the special-function units that an exponential takes", convert=above),
    "flash.block": Meaning("us", f"start and end of a block {_AT}, times the layout's fill"),
    "flash.mu": Meaning("", _BANDWIDTH, convert=share),
    "flash.around": Meaning("us", f"around a call of an inference server {_AT}; left out of forecasts"),
    "flash.kept": Meaning("× L2 / bytes", "how much repeated calls find in L2; left out of forecasts"),
    "flash.reuse": Meaning("× 32 B per clock", "what L2 then gives an SM; left out of forecasts"),
    "group.alpha": Meaning("", "share of the attainable rate that tiles reach", convert=share),
    "group.mu": Meaning("", _BANDWIDTH, convert=share),
    "group.vector": Meaning("", "share of the bandwidth that kernels between the products reach; of layers alone"),
    "group.start": Meaning("steps", "steps of the reduction in which a tile fills and drains"),
    "group.around": Meaning("us", f"around a layer of experts {_AT}; left out of forecasts"),
    "share": Meaning("", "share of the bandwidth that large kernels reach", convert=share),
    "sharpness": Meaning("", "how sharply the cache ends, as an exponent"),
    "cycles": Meaning("clocks", "waits of a block and of a load"),
    "power": Meaning("", "exponent that joins memory, waits and instructions", convert=above),
    "dispatch": Meaning("us", "dispatch of a call by itself, as tables time it; left out of forecasts", 1e6, float),
    "fraction": Meaning("", "share of the bandwidth of kernels without a class", convert=float),
}
_WAITS = {"fp32/softmax": ("block, long rows", "load, long rows", "block, short rows", "load, short rows")}


def constants(name: str, parameters: Parameters) -> Iterator[ChosenConstant]:
    """Yield the constants of the class `name` that all GPUs share, in units that formulas name."""
    for key, meaning in MEANINGS.items():
        if key in parameters:
            values = _members(name, np.asarray(parameters[key]))
            for label, value in zip(_labels(name, key, len(values)), values.tolist(), strict=True):
                yield ChosenConstant(label, meaning.convert(value) * meaning.scale, meaning.unit, meaning.text)


def speeds(parameters: Parameters) -> dict[tuple[str, str], float]:
    """Return the speed of each measured GPU's matrix units by (GPU, data type): 1 is what its datasheet promises."""
    found = {key.split(".", 1)[1]: value for key, value in parameters.items() if key.startswith("speed.")}
    return {_board(key): math.exp(float(np.ravel(value)[0])) for key, value in sorted(found.items())}


def _board(key: str) -> tuple[str, str]:
    gpu, _, dtype = key.rpartition(".")
    return gpu, dtype


def _members(name: str, value: Floats) -> Floats:
    """Return one value of each constant: that of the first member, of all GPUs, or the mean of an ensemble."""
    rows = value.reshape(len(value), -1) if value.ndim > 1 else value.reshape(1, -1)
    result: Floats = rows[0] if name in CLASSES else rows.mean(axis=0)
    return result


def _labels(name: str, key: str, count: int) -> list[str]:
    if count == 1:
        return [key]
    known = MEMORIES if key == "share" else _WAITS.get(name, ())
    return [f"{key} ({known[i] if i < len(known) else i})" for i in range(count)]
