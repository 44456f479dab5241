"""Numbers that stand in capitals and need no row in the table of constants, by the reason."""

from __future__ import annotations

from collections.abc import Mapping

OTHER: Mapping[str, tuple[str, ...]] = {
    "a definition, a unit or a count of operations": (
        *(
            "predictors.sums.WIDTH",
            "hardware.constants.BYTES",
            "single_gpu.tensor.BYTES",
            "single_gpu.memory.MOMENTS",
        ),
        *("model.elementwise.FORWARD", "model.elementwise.BACKWARD", "model.elementwise.KEPT"),
        *("model.norm._EAGER", "model.norm._EAGER_BACKWARD", "model.attention._EAGER"),
        *("collectives.nccl.constants.US", "collectives.nccl.constants.GB", "collectives.nccl.request._SCALE"),
        *(
            "collectives.nccl.measured_latency.MIB",
            "collectives.nccl.measured_latency.KIB",
            "collectives.nccl.request._ELEMENT",
        ),
        *(f"predictors.kinds.neusight.{file}.CLOCK" for file in ("attention", "gemm", "grouped")),
        "predictors.kinds.neusight.attention.L2_RATE",
        *(
            "single_gpu.job.ALONE",
            "single_gpu.job.VIEWS",
            "single_gpu.model.OUTSIDE",
            "single_gpu.request.SEQUENCE",
            "collectives.model.NETWORK",
        ),
    ),
    "a datasheet, or the source of a library": (
        *("model.linear.SMS", "model.linear.SPLITS", "parallel.deepspeed.IN_FLIGHT"),
        *("hardware.formats.FORMATS", "hardware.formats.FP8"),
        *("predictors.kinds.neusight.blocks._THREADS", "predictors.kinds.neusight.blocks._LOCAL"),
        *("predictors.kinds.neusight.blocks.PERSISTENT", "predictors.kinds.neusight.blocks.WARPS"),
        *("predictors.kinds.neusight.rates.LANES", "predictors.kinds.neusight.cores._SIDES"),
        *(f"predictors.kinds.neusight.cores.{name}" for name in ("SIMT", "WARP", "GROUP", "TENSOR_MEMORY", "BATCHED")),
        *(f"collectives.nccl.graphs.{name}" for name in ("HEADS", "MOST_CHANNELS")),
        *("collectives.nccl.measured_latency._SHRINK", "model.kernel.QUERY_BLOCK"),
        "collectives.nccl.measured_latency.CHUNKS_IN_FLIGHT",
    ),
    "a published chart, as it is": tuple(
        f"predictors.attention_generations.{name}"
        for name in (
            *("LENGTHS", "A100_FLASH1", "A100_FLASH2", "H100_FLASH2", "H100_FLASH3", "H100_CUDNN"),
            *("B200_FLASH2", "B200_CUDNN"),
        )
    ),
    "part of a table above": (
        "predictors.power.READ",
        *(f"collectives.nccl.constants.{name}" for name in ("_NONE", "_VOLTA", "_AMPERE", "_HOPPER", "RELEASES")),
        *(f"collectives.nccl.constants.{name}" for name in ("V2_28", "V2_22", "V2_19", "V2_18")),
        *(f"predictors.kinds.neusight.rates.{name}" for name in ("_LOSS", "_PARTS", "_NORM", "_TRAINING", "_RANDOM")),
        *(f"predictors.kinds.neusight.rates.{name}" for name in ("_PERMUTE", "_MASK", "_TRANSPOSE")),
        *("predictors.classes._BY_KIND", "predictors.power.STEP", "predictors.power.SEARCH", "predictors.power.TILE"),
        "predictors.power.LONG",
    ),
    "where learning begins": (
        *("predictors.kinds.neusight.attention.START", "predictors.kinds.neusight.grouped.START"),
        "predictors.kinds.neusight.gemm.GUESS",
    ),
    "the NeuSight paper's own, for its reproduction": (
        *(f"predictors.kinds.neusight_paper.board.{name}" for name in ("GIB", "MIB", "PUBLISHED")),
        *(f"predictors.kinds.neusight_paper.terms.{name}" for name in ("OPERATIONS", "ELEMENTS")),
        *(
            f"predictors.kinds.neusight_paper.wave.{name}"
            for name in ("INPUTS", "LAYERS", "WIDTH", "OUTPUTS", "WIDTHS")
        ),
        "predictors.kinds.neusight_paper.tiles.BLOCK",
    ),
    "a bound of work or memory, or a tolerance of floats": (
        *(f"collectives.all_to_all.{name}" for name in ("MANY", "SAMPLE", "BLOCK", "MOST", "_DENSE", "_FITS")),
        *(
            "collectives.idle.FEW",
            "collectives.loads._FEW",
            "collectives.loads._KINDS",
            "collectives.nccl.graphs._SLACK",
            "collectives.nccl.measured_latency._NEARLY",
        ),
        *(
            "collectives.nccl.nccl_tests_log._HUGE",
            "collectives.nccl.shape._DIGITS",
            "parallel.job.MAX_PASSES",
        ),
        *("predictors.kinds.neusight.gemm.SPLITS", "predictors.kinds.neusight.gemm.CANDIDATES"),
        *("predictors.kinds.neusight.products.CHUNK", "predictors.kinds.neusight.schedule.WAVES"),
        *("predictors.forecasts.KERNELS", "predictors.forecasts.CLOCKS"),
        *("predictors.outside._LONGEST", "predictors.uncertainty.EDGES", "predictors.weights_file.MAX_BYTES"),
    ),
}
"""Numbers in capitals that need no row, by the reason."""
ROOMS = ("collectives", "hardware", "model", "parallel", "predictors", "single_gpu")
"""Rooms in which every number in capitals is in one of the two; `topology`, `config` and `report` have mostly bounds."""
