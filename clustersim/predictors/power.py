"""Power: the share of their peak that a board's power limit leaves to GEMMs. One law, with separate figures for each use.

    share = factor · (supply / demand)^exponent
    supply = (1 - static) · watts of the board
    demand = energy · width · (clock / at)^rise · peak

Energy is in pJ per 16-bit FLOP by architecture, and rises with the clock as voltage does. `STEP` is for steps of seconds, the
only one in forecasts of jobs. The others are for tables of kernels, timed in microseconds to seconds at the clocks of that
moment. docs/decisions/0008-power.md says why their figures differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, NamedTuple

from clustersim.config.evidence import Declared, StepEvidence
from clustersim.config.gpu import Gpu

STATIC: Annotated[float, Declared(chosen_on="nvidia-smi of six GPUs")] = 0.14
"""Share of the power limit that does not follow the clock: leakage, memory, links. nvidia-smi shows idle boards at 54 of
400 W (A100), 75 of 700 (H200), 145 of 1000 (B200), 180 of 1100 (B300), 160 of 1200 (GB200), 172 of 1400 W (GB300)."""
EXPONENT: Annotated[float, Declared(chosen_on="AMD's clocks, MI300X and MI325X")] = 1.8
"""g of dynamic power ~ clock^g: 1 at a fixed voltage, 3 where voltage follows the clock. The same kernels at 750 and at
1000 W (MI300X, MI325X; AMD, "Measuring Max-Achievable FLOPs", 2025) run at 1115 and 1354 MHz in fp16, 1207 and 1447 in bf16,
1230 and 1464 in fp8: g = 1.5 to 1.7 at half of the boost clock, and more nearer to it, where the voltage rises."""
ENERGY: Mapping[str, float] = {
    "volta": 2.35,
    "turing": 2.35,
    "ampere": 0.996,
    "ada": 0.788,
    "hopper": 0.581,
    "blackwell": 0.378,
    "blackwell-ultra": 0.378,
    "cdna1": 0.965,
    "cdna2": 0.99,
    "cdna3": 0.725,
    "cdna4": 0.44,
}
"""Picojoules per dense 16-bit FLOP at 1 GHz, for the whole board; they grow with clock^(g - 1). From GEMMs of 20 ms and more on
V100, A100, H100, H200, L40S, B200, B300 and GB200, which reach 0.77, 0.91, 0.80, 0.81, 0.68, 0.77, 0.75 and 0.74 of the forecast
at boost clocks, and from AMD's clocks above. V100-SXM2: 89.4 TFLOP/s at 10,240 per side, thirty times in a row
(zzc0721/torch-performance-test-data issue 140, whose A100s agree with this table); 60 % less power at 7 than at 16 nm (TSMC)
gives 2.5. Turing uses the same 12 nm process. CDNA 1 and 2 are a full node away from the architectures above: 30 % less energy
at the newer node (TSMC), as in `NODE_GAIN`. With CDNA 4's, the best products of MI300X, MI325X and MI355X (668, 785 and 1565
TFLOP/s, stas00/ml-engineering) are one share of their rates, 0.88. Hopper's is a tenth above its GEMMs' 0.527, to match training
steps (`READ`)."""
READ: Mapping[str, StepEvidence] = {
    "hopper": StepEvidence(
        source="share at which steps of up to 64 GPUs are right, over that of products of 20 ms: 0.945 (DGXC), 0.90 (LLMFOUNDRY, "
        "up to 4,096 tokens), 0.91 (NEMO2407), 1.04 (MBRIDGE); their geometric mean to the power of -g",
        read_from=("DGXC", "LLMFOUNDRY", "NEMO2407", "MBRIDGE"),
        otherwise={"DGXC": 0.580, "LLMFOUNDRY": 0.563, "NEMO2407": 0.567, "MBRIDGE": 0.615},
    )
}
"""{architecture: evidence} of the figures of ENERGY that are fitted to measured training steps."""
NEWEST: Mapping[str, float] = {"nvidia": ENERGY["blackwell"], "amd": ENERGY["cdna3"]}
"""{vendor: pJ per 16-bit FLOP} of architectures that are not listed."""
WIDTH: Annotated[
    Mapping[str, float],
    Declared(chosen_on="bf16, fp8 and fp4 products of 20 ms and more (ai-dynamo/aiconfigurator), AMD's clocks"),
] = {"tf32": 2.0, "fp16": 1.0, "bf16": 1.0, "fp8": 0.55, "fp4": 0.55**2}
"""Energy of a FLOP relative to 16 bits: operands halve, accumulators do not. For fp8, AMD's clocks above give 0.48, and the long
GEMMs of H200, B300, B200 and GB200 give 0.45, 0.48, 0.57 and 0.62. Below 0.5, fp8 would run at a higher clock than bf16."""
NODE_GAIN: Annotated[Mapping[str, float], Declared(scope="part")] = {
    "pascal": 1.0,
    "volta": 1.0,
    "turing": 1.0,
    "ampere": 1 / 0.7,
}
"""Operations per joule by architecture, relative to 16/12 nm: each full process node uses 30 % less energy (TSMC)."""
NEWEST_GAIN: Annotated[float, Declared()] = 1 / 0.49
"""Operations per joule of the newest process node, relative to 16/12 nm: each full node uses 30 % less energy (TSMC on N7 to N5).

AMD's matrix cores at 7 nm count as one node newer, because they share operands that SIMT lanes fetch one by one.
"""
SIMT_WATTS: Annotated[float, Declared("pJ/FLOP at 12 nm", "fp32 products of T4, NeuSight's training table")] = 17.0
"""Picojoules per FLOP of FP32 GEMMs at 12 nm, whole board: T4 (70 W) sustains 4.1 of 8.1 TFLOP/s (NeuSight's training table)."""
SEARCHED: Annotated[tuple[float, float], Declared(chosen_on="A100, H100, B200, B300, GB200; bf16 and fp8")] = (
    0.77,
    0.13,
)
"""(factor, exponent) of the share that published searches (MAMF) attain on tensor cores, at 1 pJ a FLOP and 12 nm: the line
through A100, H100, B200, B300 and GB200, bf16 and fp8, all within 7 %."""
IN_TILE: Annotated[tuple[float, float], Declared(chosen_on="as SEARCHED")] = (0.92, 0.13)
"""(factor, exponent) of the share that tensor cores reach inside a tile in a kernel of microseconds, before the power
controller acts. Learning corrects the factor (`gemm.level`); the exponent is that of SEARCHED."""
SLOWED_BOARD: Annotated[tuple[float, float], Declared("pJ/FLOP, GHz")] = (0.7, 1.9)
"""Reference board for long GEMMs in tables: picojoules per FLOP at 4 nm, and boost clock in GHz."""
SLOWED_EXPONENTS: Annotated[
    tuple[float, float], Declared(chosen_on="not recorded; products of 7 GPUs: 4.7, 4.7, 4.7 %")
] = (0.5, 5.0)
"""(exponent, rise) for long GEMMs in tables. The share grows with the root of the supply, because boards with more power also
have more lanes; dynamic power is proportional to clock · voltage², and voltage to the clock."""


class PowerLaw(NamedTuple):
    """Parameters of the power law of this module for one use, such as training steps (`STEP`)."""

    energy: Mapping[str, float]
    """{architecture: pJ per 16-bit FLOP}"""
    newest: Mapping[str, float]
    """{vendor: pJ per 16-bit FLOP} of architectures that are not listed."""
    width: Mapping[str, float] = MappingProxyType({})
    """{data type: energy relative to 16 bits}; 1 for types that are not listed."""
    static: float = 0.0
    """Share of the board's power that does not go into GEMMs."""
    rise: float = 0.0
    """Exponent by which energy grows with the clock relative to `at`."""
    at: float = 1.0
    """Clock in GHz at which the energies hold."""
    factor: float = 1.0
    """Share at which supply equals demand."""
    exponent: float = 1.0
    """Exponent of supply over demand."""

    def share(self, gpu: Gpu, dtype: str) -> float:
        """Return the share of `gpu.matrix_peak(dtype)`, at the boost clock, that the board's power allows for GEMMs of `dtype`.

        A value above 1 means that power does not limit the rate. Raises KeyError for a vendor without a figure.
        """
        energy = self.energy.get(gpu.architecture, self.newest[gpu.vendor]) * self.width.get(dtype, 1.0)
        demand = energy * (gpu.clock * 1e-9 / self.at) ** self.rise * (gpu.matrix_peak(dtype) * 1e-12)
        return self.factor * float(((1 - self.static) * gpu.power / demand) ** self.exponent)

    def limited(self, gpu: Gpu) -> float:
        """Return the factor, at most 1, by which the power limit set by the GPU's owner lowers `share`; 1 without a limit. Static
        power stays as it is."""
        dynamic = (gpu.power_limit or gpu.power) / gpu.power - self.static
        return float((dynamic / (1 - self.static)) ** self.exponent)


def _by_node(picojoules: float, width: Mapping[str, float] = MappingProxyType({})) -> PowerLaw:
    """Return the law with an energy of `picojoules` per FLOP at 12 nm, and less at newer process nodes (`NODE_GAIN`).

    width: {data type: energy relative to 16 bits}.
    """
    energy = {name: picojoules / gain for name, gain in NODE_GAIN.items()}
    return PowerLaw(energy, dict.fromkeys(NEWEST, picojoules / NEWEST_GAIN), width)


STEP = PowerLaw(ENERGY, NEWEST, WIDTH, static=STATIC, rise=EXPONENT - 1, exponent=1 / EXPONENT)
"""Law for steps of seconds: P_static + energy · clock^(g - 1) · rate = watts, solved for the clock."""


def step_without(gpu: Gpu, publisher: str) -> PowerLaw:
    """Return the law `STEP` for a GPU, fitted without the training steps of one publisher, such as `DGXC`."""
    evidence = READ.get(gpu.architecture)
    if evidence is None or publisher not in evidence.read_from:
        return STEP
    return STEP._replace(energy={**STEP.energy, gpu.architecture: evidence.without(publisher)})


SIMT = _by_node(SIMT_WATTS)
"""Law for FP32 GEMMs on SIMT units in tables, which time them in loops of seconds."""
SEARCH = _by_node(1.0)._replace(factor=SEARCHED[0], exponent=SEARCHED[1])
"""Law for published searches over shapes on tensor cores."""
TILE = _by_node(1.0)._replace(factor=IN_TILE[0], exponent=IN_TILE[1])
"""Law for tensor cores inside a tile."""
LONG = _by_node(SLOWED_BOARD[0] * NEWEST_GAIN, WIDTH)._replace(
    at=SLOWED_BOARD[1], exponent=SLOWED_EXPONENTS[0], rise=SLOWED_EXPONENTS[1]
)
"""Law for long GEMMs in tables, relative to a 4 nm board with 0.7 W per TFLOP/s at 1.9 GHz."""
