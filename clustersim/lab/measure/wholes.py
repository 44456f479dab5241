"""The trials that `clustersim lab profile` runs, as plain data: launches, copies, layers, training steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from clustersim.lab.measure.case import Trial
from clustersim.lab.measure.shapes import LLAMA8, LLAMA70, SMALL
from clustersim.lab.measure.trials.step import FULL


def launches() -> Iterator[Trial]:
    """Yield what a launch costs, copies to and from the host, losses, and attention without a fused kernel."""
    for variant in ("dispatch", "stream", "graph"):
        yield Trial("launch", variant=variant)
    for variant in ("to_gpu", "from_gpu"):
        for amount in (2**16, 2**20, 2**24, 2**28, 2**30):
            yield Trial("copy", variant=variant, amount=amount, tier=0 if amount == 2**28 else 1)
    for entries in (32_000, 50_304, 128_256, 256_000):
        yield Trial("loss", amount=entries, tier=0 if entries == 128_256 else 1)
    for seq, heads in ((2048, 16), (4096, 16)):
        for variant in ("forward", "backward"):
            yield Trial("unfused", None, seq, 1, variant=variant, amount=heads, tier=1)


def steps() -> Iterator[Trial]:
    """Yield layers (eager, graph, compiled) and whole training steps at several micro-batches and recompute settings."""
    for tier, model in ((0, LLAMA8), (1, LLAMA70)):
        for seq, micro_batch in ((8192, 1), (4096, 2)):
            for mode in ("eager", "graph", "compiled"):
                yield Trial("layer", model, seq, micro_batch, mode, tier=tier + (seq < 8192))
    gpt, larger, llama = SMALL
    for tier, model, micro_batch, mode, variant in (
        (0, gpt, 4, "eager", ""),
        (0, gpt, 4, "eager", FULL),
        (0, llama, 2, "eager", ""),
        (1, larger, 4, "eager", ""),
        (1, gpt, 1, "eager", ""),
        (1, gpt, 8, "eager", ""),
        (1, gpt, 16, "eager", FULL),
        (1, larger, 8, "eager", FULL),
        (1, llama, 4, "eager", FULL),
        (2, gpt, 4, "compiled", ""),
        (2, llama, 2, "compiled", ""),
    ):
        yield Trial("step", model, 2048, micro_batch, mode, variant, tier=tier)


SUITES: dict[str, Callable[[], Iterable[Trial]]] = {"launch": launches, "step": steps}


def trials(names: Iterable[str]) -> list[Trial]:
    """Return the trials of some suites, those of the lowest tier first."""
    found = [trial for name in names if name in SUITES for trial in SUITES[name]()]
    return sorted(found, key=lambda trial: trial.tier)
