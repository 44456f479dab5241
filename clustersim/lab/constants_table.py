"""Every number in clustersim that is neither of a datasheet nor learned: unit, source, rows it was chosen on, effect on a step.

Values stay where they are used and are read from there; `scripts/update-constants` writes docs/constants.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

NCCL = "NVIDIA/nccl, src/graph/tuning.cc and topo.h, 2.18 to 2.30"
ONE_NODE = "nccl-tests of one node (ai-dynamo/aiconfigurator: A100, H100, H200, B200, GB200)"
PRODUCTS = "bf16, fp8 and fp4 products of 20 ms and more (ai-dynamo/aiconfigurator), AMD's clocks"
NOTHING = "none: as published"
STEPS = "published steps, each with its publisher left out (docs/validation.md)"
UNKNOWN = "not recorded"


class StatedConstant(NamedTuple):
    """One number, or one table of numbers that belong together."""

    name: str
    """Module and name below `clustersim`, such as `hardware.constants.FIBRE`."""
    unit: str
    """Of the value; empty for shares, exponents and counts."""
    source: str
    """Where it is from, or what it stands for."""
    rows: str
    """What it was chosen on; `none: as published` where nothing was chosen."""

    @property
    def value(self) -> Any:
        """The value that the code has now."""
        module, _, name = self.name.rpartition(".")
        return getattr(import_module(f"clustersim.{module}"), name)


def _checked(rows: str, less: float, now: float, more: float) -> str:
    """Return what is known of a constant whose choice nobody wrote down: mean errors in percent at -10 %, 0 and +10 %."""
    return f"{UNKNOWN}; {rows}: {less:g}, {now:g}, {more:g} %"


def _of(module: str, *rows: tuple[str, str, str, str]) -> tuple[StatedConstant, ...]:
    return tuple(StatedConstant(f"{module}.{name}", unit, source, chosen) for name, unit, source, chosen in rows)


CONSTANTS: tuple[StatedConstant, ...] = (
    *_of(
        "hardware.constants",
        ("FIBRE", "s/m", "group index of Corning SMF-28", NOTHING),
        ("NVLINK_LATENCY", "s", NCCL, NOTHING),
        ("PCIE_LATENCY", "s", NCCL, NOTHING),
        ("LEAF_LATENCY", "s", NCCL, NOTHING),
        ("POST", "s", NCCL, NOTHING),
        ("POST_AMD", "s", NCCL, NOTHING),
        (
            "LAUNCH",
            "s",
            "floor of products in CUDA graphs, 2 to 3 us (ai-dynamo/aiconfigurator)",
            "small products of that table",
        ),
        (
            "CALL",
            "s",
            "NeuSight's traces: 9, 12, 13 and 13 us on A100, T4, V100, P100",
            "calls on a handful of elements",
        ),
        ("PRODUCT_CALL", "s", "NeuSight's traces: 38 us, less two views and the module", "linear layers of one row"),
        ("GRAPH_LAUNCH", "s", "below 1 us a node of a CUDA graph; only with cuda_graphs: layer", "none: as published"),
        ("VIEW_CALL", "s", "NeuSight's traces: 2 to 5 us", "view, unsqueeze, expand"),
    ),
    *_of(
        "config.topology",
        (
            "NIC_EFFICIENCY",
            "",
            "46 to 48 GB/s of 400 Gb/s (NVIDIA/nccl, issue 290); a file may say its own",
            "those figures",
        ),
        ("NIC_LATENCY", "s", f"{NCCL}; a file may say its own", NOTHING),
        ("COLLECTIVE_LAUNCH", "s", f"{NCCL}; not with algorithm nccl", NOTHING),
        ("PCIE_LANE", "B/s", f"{NCCL}; generation 4", NOTHING),
    ),
    *_of(
        "config.fabric",
        ("SWITCH_LATENCY", "s", "claims of 90 to 150 ns, users' 330 ns; a file may say its own", "between them"),
    ),
    *_of("topology.specs", ("_CUT", "", "48 of 48.5 GB/s are no limit worth a word", NOTHING)),
    *_of(
        "collectives.plan",
        ("BUFFERED", "", "NVIDIA/nccl, src/device/prims_simple.h; only with overlap.memory: nccl", NOTHING),
    ),
    *_of(
        "collectives.nccl.constants",
        ("V2_30", "us, GB/s", NCCL, NOTHING),
        ("TREE_CORRECTION", "", NCCL, NOTHING),
    ),
    *_of(
        "collectives.nccl.graphs",
        ("_INTRA", "GB/s", "NVIDIA/nccl, src/graph/search.cc", NOTHING),
        ("_INTER", "GB/s", "NVIDIA/nccl, src/graph/search.cc", NOTHING),
        ("HEADS_BETWEEN", "", "published runs of several racks of GB200 (CoreWeave, OCI)", "their bus bandwidths"),
    ),
    *_of(
        "collectives.nccl.measured_latency",
        ("NET_LL", "us", "NVIDIA/nccl-tests issue 309; NCCL has 5", "one sweep of two InfiniBand nodes"),
        ("_AMPERE", "us, B/s", "least relative error, rounded", ONE_NODE),
        ("_HOPPER", "us, B/s", "least relative error, rounded; LL128's hop is NCCL's", ONE_NODE),
        ("_BLACKWELL", "us, B/s", "least relative error, rounded; LL128 near NCCL's own", ONE_NODE),
        (
            "LATE_LOOPS",
            "",
            "two all-reduces of 4 GiB on 8 nodes of AWS p5 (NVIDIA/nccl, pull request 1112)",
            "those two; 1 GiB in the best jobs of 4 to 64 such nodes (ULTRA) is 3 to 6 % off",
        ),
        ("_CDNA", "us, B/s", "ROCm/rccl, src/graph/tuning.cc, model 5; copies and messages as Ampere's", NOTHING),
    ),
    *_of(
        "collectives.nccl.p2p",
        ("LL_BYTES", "B", "NCCL_P2P_LL_THRESHOLD", NOTHING),
        ("SLOWER", "B/s", "NCCL_P2P_PER_CHANNEL_NET_BW", NOTHING),
        (
            "COPIED",
            "B/s",
            "sendrecv in a node with few channels (xxrjun: H100, Vultr: B200)",
            "18.7 to 21.2 GB/s a channel",
        ),
        ("PEERS", "", "NVIDIA/nccl, src/include/device.h: NCCL_MAX_DEV_WORK_P2P_PER_BATCH", NOTHING),
        ("STEP", "B", "NCCL_P2P_NET_CHUNKSIZE", NOTHING),
        ("NVLINK_STEP", "B", "NCCL_P2P_NVL_CHUNKSIZE", NOTHING),
        ("LOOP", "B", "bytes of an all_to_all under way", _checked("304 runs of all_to_all", 11.5, 11.6, 11.7)),
        (
            "FILL",
            "",
            "part of their time that ends of an all_to_all waste",
            _checked("304 runs of all_to_all", 11.5, 11.6, 11.8),
        ),
    ),
    *_of(
        "parallel.memory", ("FRAMEWORK", "B", "CUDA context 0.5 GiB, cuBLAS 32 MiB a stream, NCCL's buffers", NOTHING)
    ),
    *_of("parallel.optimizer", ("MOMENTS", "", "two of Adam, one of SGD", NOTHING)),
    *_of(
        "predictors.power",
        ("STATIC", "", "idle boards at full clocks: 11 to 16 % of the limit", "nvidia-smi of six GPUs"),
        (
            "EXPONENT",
            "",
            "one kernel at 750 and at 1000 W: 1.5 to 1.7, more near the boost clock",
            "AMD's clocks, MI300X and MI325X",
        ),
        ("ENERGY", "pJ/FLOP at 1 GHz", "long products over the forecast at boost clocks", PRODUCTS),
        ("WIDTH", "", "0.45 to 0.62 for fp8", PRODUCTS),
        ("NODE_GAIN", "", "30 % less energy a process node (TSMC)", NOTHING),
        ("NEWEST_GAIN", "", "30 % less energy a process node (TSMC)", NOTHING),
        (
            "SIMT_WATTS",
            "pJ/FLOP at 12 nm",
            "T4 at 70 W sustains 4.1 of 8.1 TFLOP/s",
            "fp32 products of T4, NeuSight's training table",
        ),
        (
            "SEARCHED",
            "",
            "line through the published searches (MAMF), all within 7 %",
            "A100, H100, B200, B300, GB200; bf16 and fp8",
        ),
        ("IN_TILE", "", "exponent of SEARCHED; the factor is corrected by learning", "as SEARCHED"),
        (
            "SLOWED_BOARD",
            "pJ/FLOP, GHz",
            "H100: what long products in tables are relative to, absorbed by learning",
            NOTHING,
        ),
        (
            "SLOWED_EXPONENTS",
            "",
            "dynamic power with clock · voltage²; supply with the root of the watts",
            _checked("products of 7 GPUs", 4.7, 4.7, 4.7),
        ),
    ),
    *_of(
        "predictors.clocks",
        (
            "FULL",
            "",
            "share of the peak of large products at boost clocks",
            _checked("83 published steps", 12.7, 12.9, 13.3),
        ),
        ("SHARPNESS", "", "how sharply computing and memory bound a kernel", UNKNOWN),
    ),
    *_of(
        "predictors.kinds.neusight.attainable",
        ("ISSUE", "", "64 FFMA, 4 loads and 8 more a step of an 8×8 register tile", NOTHING),
        (
            "SIMT_SHARPNESS",
            "",
            "how sharply issue slots and power join",
            _checked("FP32 products of 10 GPUs", 16.1, 16.0, 15.9),
        ),
    ),
    *_of(
        "predictors.kinds.neusight.cores",
        (
            "EXPOSED",
            "",
            "share of an epilogue; tensor memory holds two accumulators",
            _checked("products of B200, B300, GB200", 5.3, 5.3, 5.3),
        ),
    ),
    *_of(
        "predictors.kinds.neusight.gemm",
        ("WGRAD", "", "4 % on A100; Blackwell's are counted by bytes", "MooreThreads/SimuMax, configs/system"),
        (
            "OVERLAP",
            "",
            "nearly the larger where loads are asynchronous, nearly the sum elsewhere",
            _checked("products of 17 GPUs", 6.3, 6.1, 6.2),
        ),
        (
            "LEAST",
            "steps",
            "shortest part of a reduction that is split",
            _checked("products of 17 GPUs", 5.7, 5.7, 5.7),
        ),
    ),
    *_of(
        "predictors.kinds.neusight.products",
        (
            "REACH",
            "log",
            "most that a GPU's own network may move a forecast",
            _checked("products of 7 GPUs", 4.9, 4.7, 4.6),
        ),
    ),
    *_of(
        "predictors.kinds.neusight.attention",
        ("EXPONENTIALS", "1/clock/SM", "CUDA programming guide, arithmetic instructions", NOTHING),
        ("MORE_EXPONENTIALS", "1/clock/SM", "NVIDIA on B300: twice", NOTHING),
        (
            "BACKWARD",
            "",
            "FlashAttention-2, section 3.1.2: five products for two; settled on its chart",
            "A100's chart, B200's in view",
        ),
        ("P", "", "how sharply work and memory join", _checked("attention of 7 GPUs", 8.7, 8.7, 8.7)),
    ),
    *_of(
        "predictors.kinds.neusight.schedule",
        (
            "SPLIT",
            "",
            "a lone block may split its keys in inference; no training step has one",
            _checked("attention of 7 GPUs", 8.7, 8.7, 8.7),
        ),
        (
            "FA2",
            "",
            "FlashAttention-2: blocks and their order; overlap, tail and fill chosen",
            _checked("attention of A100, L40S", 15.2, 11.7, 13.3),
        ),
        (
            "FA3",
            "",
            "FlashAttention-3 (hopper/tile_size.h); overlap and tail chosen",
            _checked("attention of H100, H200", 16.8, 7.2, 9.3),
        ),
        (
            "FA4",
            "",
            "Blackwell's kernels: two blocks in flight; overlap and tail chosen",
            _checked("attention of B200, B300, GB200", 21.4, 9.0, 12.2),
        ),
    ),
    *_of(
        "predictors.attention_generations",
        ("A100_CUDNN", "", "cuDNN over FlashAttention-2 on A100 (NVIDIA/cudnn-frontend, benchmark results)", NOTHING),
        ("TRITON", "", "FlashAttention in Triton over FlashAttention-2 (Dao 2023, section 4.1)", NOTHING),
    ),
    *_of(
        "predictors.kinds.neusight.grouped",
        ("TILES", "", "tiles that CUTLASS ships", NOTHING),
        ("P", "", "how sharply work and memory join", _checked("experts of 6 GPUs", 16.2, 15.9, 15.7)),
        ("EDGE", "columns", "operands to load for a step", _checked("experts of 6 GPUs", 15.8, 15.9, 16.0)),
    ),
    *_of(
        "predictors.kinds.neusight.blocks",
        ("KEPT", "", "as many bytes are written meanwhile as are read", NOTHING),
        ("LOCAL", "", "what is written passes the L1 by", _checked("softmax and norms, NeuSight", 7.2, 7.2, 7.2)),
    ),
    *_of(
        "predictors.kinds.neusight.rates",
        (
            "INSTRUCTIONS",
            "slots/element",
            "each with its source in the file",
            "vidur (A100, H100); aiconfigurator; NeuSight",
        ),
        (
            "NARROW",
            "slots/element",
            "each with its source in the file",
            "estimate-train-time (A100); Liger-Kernel (B200)",
        ),
        (
            "PER_BYTE",
            "slots/B",
            "each with its source in the file",
            "SimuMax (A100 PCIe, B200); Liger-Kernel (A100, H100)",
        ),
        ("SHARE", "", "each with its source in the file", "SimuMax (A100 PCIe, B200); estimate-train-time (A100)"),
    ),
    *_of(
        "predictors.kinds.neusight.vector",
        (
            "SHARES",
            "",
            "GDDR, Pascal and HBM learned from here; Blackwell and AMD published",
            "stas00/ml-engineering; NeuSight",
        ),
        ("GDDR", "B/s", "A10 with GDDR6 has 600 GB/s, V100 with HBM2 900", NOTHING),
        ("PASSES", "", "values that a later pass reads again", NOTHING),
    ),
    *_of("planning.batches", ("LEARNED", "tokens", "Li et al. 2025 (Step Law), arXiv 2503.04715", NOTHING)),
    *_of(
        "predictors.learned",
        ("BORROWED", "", "interval of vector kernels: errors of 7 to 16 %", "published kernels on A100, H100"),
    ),
    *_of(
        "predictors.uncertainty",
        ("NEAR", "log", "distance of GPUs left out from each other", "kernels of GPUs left out"),
    ),
    *_of(
        "report.calibration",
        ("UNSEEN", "", "width of what no publisher's steps had; between 0.5 and 1.5 as many lie inside", STEPS),
        (
            "DOUBLING",
            "",
            "width of a doubling of GPUs beyond the evidence: MLPERF's largest are 1.3 times as far off",
            STEPS,
        ),
        ("HOST", "", "width of the host-bound share: at 12 to 30 % steps are twice as far off", STEPS),
    ),
    *_of(
        "report.verdicts",
        (
            "FULLEST",
            "",
            "Nemotron-4 340B on 128 H100 (NVIDIA DGX Cloud benchmarking 24.11)",
            "the fullest published step that ran",
        ),
        ("LIKELY", "", "more than half of published mappings as full ran", NOTHING),
    ),
    *_of("single_gpu.memory", ("FRAMEWORK", "B", "CUDA context 0.5 GiB, cuBLAS 32 MiB", NOTHING)),
    *_of("single_gpu.price_vectors", ("CACHED", "B", "a repeated operand that stays in L2", "NeuSight's traces")),
)
"""All of them, by room."""
