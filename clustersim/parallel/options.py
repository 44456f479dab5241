"""Workload keys that have a command-line option of their own, shorter than `--set`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from clustersim.config.options import Option
from clustersim.topology.options import OPTIONS as OF_TOPOLOGY

OPTIONS = (
    Option("tp", "parallelism.tp", "count", "1,2,4", "Tensor-parallel degree."),
    Option("pp", "parallelism.pp", "count", "1,2,4", "Pipeline-parallel degree."),
    Option("dp", "parallelism.dp", "degree", "8,16,auto", "Data-parallel degree, or auto."),
    Option("cp", "parallelism.cp", "count", "1,2,4", "Context-parallel degree."),
    Option("ep", "parallelism.ep", "count", "1,2,4", "Expert-parallel degree."),
    Option("vpp", "parallelism.vpp", "count", "1,2,4", "Model chunks a pipeline rank (interleaved)."),
    Option("schedule", "parallelism.schedule", "word", "1f1b,gpipe", "Pipeline schedule, such as 1f1b."),
    Option(
        "zero",
        "parallelism.zero",
        "number",
        "0,1,3",
        "1: shard the optimizer over data-parallel ranks; 2: gradients too; 3: parameters too.",
    ),
    Option("micro_batch", "training.micro_batch", "count", "1,2,4", "Sequences in a microbatch."),
    Option("global_batch", "training.global_batch", "count", "512,1024", "Sequences in a step."),
    Option("seq", "training.seq", "count", "2048,4096", "Tokens in a sequence."),
    Option(
        "recompute", "training.recompute", "word", "none,full", "Activations to recompute: none, selective or full."
    ),
    Option("precision", "training.precision", "word", "bf16,fp8", "Data type of matrix products, such as bf16."),
    Option(
        *("predictor", "predictor", "word", "neusight,roofline"),
        "Kernel predictor, such as neusight or roofline.",
        swept=False,
    ),
    Option("clocks", "clocks", "word", "sustained,0.85", "sustained, boost, or a share such as 0.85.", swept=False),
)
"""Options for keys of the workload, in the order of `--help`."""

NAMES = {option.key: option.name for option in OPTIONS}
"""Dotted key of the workload → name of its option."""

KEYS = {option.name: option.key for option in OPTIONS}
"""Name of an option → dotted key of the workload."""

RUN_OPTIONS = (*OF_TOPOLOGY, *OPTIONS)
"""Options of `clustersim run` that set a key, options of the topology first."""

FLAGS = {option.key: option.flag for option in RUN_OPTIONS}
"""Option of a command, such as `--tp`, by dotted key of a topology or a workload."""


def change_words(changes: Mapping[str, object], by_set: Collection[str] = ()) -> list[str]:
    """Return the words of a command line that set keys to values, such as [`--tp`, `4`, `--set`, `parallelism.ep=2`].

    changes: values by dotted key. by_set: keys that are set by `--set` although they have options of their own.
    """
    from clustersim.config.overrides import as_text

    words: list[str] = []
    for key, value in changes.items():
        text = as_text(value)
        words += ["--set", f"{key}={text}"] if key in by_set or key not in FLAGS else [FLAGS[key], text]
    return words
