"""The answer as a person reads it in a terminal; plain text when the output is no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from clustersim.predictors.uncertainty import between
from clustersim.units import duration, gibibytes, scaled, seconds

NAMES = {
    "compute": "compute",
    "tp": "tensor-parallel communication",
    "pp": "pipeline communication",
    "dp": "data-parallel communication",
    "ep": "expert-parallel communication",
    "cp": "context-parallel communication",
    "optimizer": "gradient norm and optimizer",
    "bubble": "bubble (waiting for other ranks)",
}

SOURCES = {
    "measured": "of a short burst's rate, measured on this GPU",
    "law": "of a short burst's rate, from this GPU's power and not measured",
    "given": "of a short burst's rate, as given",
}
"""What a share of the clock is from, where the reader must know."""


def lines(summary: dict[str, Any], took: float) -> list[str]:
    """Return the summary as lines of text; `took` is the wall time of the simulation in seconds."""
    parts = (_head(summary), _warned(summary), _why(summary), _memory(summary), _network(summary), _how(summary, took))
    found = [*parts, _ignored(summary.get("ignored_arguments", {}))]
    return [line for part in found if part for line in (*part, "")][:-1]


def _count(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _ignored(arguments: dict[str, tuple[str, ...]]) -> list[str]:
    """Return which of Megatron's arguments were left out, once each."""
    said = {"no_effect": "no effect on the time of a step", "not_modelled": "not modelled"}
    return [f"ignored, {why}: {', '.join(arguments[key])}" for key, why in said.items() if arguments.get(key)]


def _rows(pairs: Iterable[tuple[str, str]]) -> list[str]:
    pairs = list(pairs)
    width = max(len(name) for name, _ in pairs)
    return [f"  {name:<{width}}  {value}" for name, value in pairs]


def _head(summary: dict[str, Any]) -> list[str]:
    cluster, split = summary["cluster"], summary["parallelism"]
    ep = f" (ep {split['ep']})" if split["ep"] > 1 else ""
    layout = f"tp {split['tp']} × pp {split['pp']} × dp {split['dp']}{ep}, {split['schedule']}"
    if split["vpp"] > 1:
        layout += f" × {split['vpp']} chunks"
    batch = (
        f"{_count(split['global_batch'], 'sequence', 'sequences')} in "
        f"{_count(split['microbatches'], 'microbatch', 'microbatches')} of {split['micro_batch']} a replica"
    )
    peak = f"{summary['peak_tflops_per_gpu']:.0f} ({split['precision']})"
    rate = f"{summary['model_tflops_per_gpu']:.1f} TFLOP/s a GPU, MFU {100 * summary['mfu']:.1f} % of {peak}"
    return [
        f"{summary['name']} on {cluster['name']}: {_gpus(summary)} × {cluster['gpu']}",
        *_rows(
            [
                ("split", layout),
                ("batch", batch),
                ("step time", duration(summary["step_time_s"]) + _between(summary)),
                ("throughput", f"{summary['tokens_per_s']:,.0f} tokens/s, {summary['tokens_per_s_per_gpu']:.1f} a GPU"),
                *_idle(summary),
                ("model FLOP", rate),
                *_clocks(summary),
            ]
        ),
    ]


def _idle(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield how many GPUs idle, what that costs, and what would use them."""
    idle, gpus = summary["idle"], summary["cluster"]["gpus"]
    if idle["gpus"]:
        cost = f"{summary['tokens_per_s_per_owned_gpu']:.1f} tokens/s for each of the {gpus} owned"
        yield "idle", f"{idle['gpus']} of {gpus} GPUs ({100 * idle['share']:.1f} %): {cost}"
        if idle["suggestion"]:
            yield "", f"{idle['suggestion']['options']} uses {idle['suggestion']['gpus']} of {gpus}"


def _clocks(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what share of a short burst's rate the products keep, and whether that was measured on this GPU."""
    shares = summary["predictor"]["clock_shares"]
    if said := [
        f"{k} products at {100 * v['share']:.0f} % {SOURCES[v['source']]}"
        for k, v in shares.items()
        if v["source"] in SOURCES
    ]:
        yield "clocks", ", ".join(said)


def _warned(summary: dict[str, Any]) -> list[str]:
    return [f"warning: {warning}" for warning in summary["warnings"]]


def _between(summary: dict[str, Any]) -> str:
    return between(summary["step_time_low_s"], summary["step_time_high_s"])


def _gpus(summary: dict[str, Any]) -> str:
    every, ranks = summary["cluster"]["gpus"], summary["simulated"]["ranks"]
    return f"{every}" if ranks == every else f"{ranks} of {every}"


def _why(summary: dict[str, Any]) -> list[str]:
    """Show where the step goes: the mean of all ranks, and the critical path, which alone makes the step shorter."""
    mean, path, total = summary["breakdown_s"], summary["critical_path_s"], summary["step_time_s"]
    names = [k for k in dict.fromkeys([*mean, *path]) if max(mean.get(k, 0.0), path.get(k, 0.0)) > 1e-9 * total]
    cells = [(NAMES.get(k, k), *(_part(parts.get(k), total) for parts in (mean, path))) for k in names]
    width = max(len(name) for name, _, _ in cells)
    return [
        f"{'where the step goes':<{width + 2}}  {'mean of ranks':>18}   {'critical path':>18}",
        *(f"  {name:<{width}}  {one}   {other}".rstrip() for name, one, other in cells),
    ]


def _part(seconds: float | None, total: float) -> str:
    return "" if seconds is None else f"{duration(seconds):>9}  {100 * seconds / total:5.1f} %"


def _memory(summary: dict[str, Any]) -> list[str]:
    memory = summary["memory"]
    peak = max(memory["by_pipeline_rank"], key=lambda m: m["total_bytes"])
    verdict = {"fits": "fits", "close": "too close to tell"}.get(memory["verdict"], "DOES NOT FIT")
    share = 100 * memory["peak_bytes"] / memory["capacity_bytes"]
    head = (
        f"memory: {verdict}, {gibibytes(memory['peak_bytes'])} of {gibibytes(memory['capacity_bytes'])} ({share:.0f} %)"
    )
    kinds = [(k.removesuffix("_bytes"), f"{gibibytes(v):>10}") for k, v in peak.items() if k != "total_bytes" and v]
    return [f"{head} on pipeline rank {memory['by_pipeline_rank'].index(peak)}", *_rows(kinds)]


def _network(summary: dict[str, Any]) -> list[str]:
    links = summary["busiest_links"]
    if not links:
        return ["no link carried anything"]
    rows = [
        (
            f"{one['link']}: {one['from']} to {one['to']}",
            f"{scaled(one['bytes'], 'B'):>9}  {100 * one['utilization']:5.1f} % of the step"
            + _limits(one["limiting_s"]),
        )
        for one in links
    ]
    return ["busiest link of each tier, those first that limit the critical path", *_rows(rows)]


def _limits(time: float) -> str:
    return f", limits {duration(time)} of it" if time > 1e-9 else ""


def _how(summary: dict[str, Any], took: float) -> list[str]:
    s, cluster = summary["simulated"], summary["cluster"]
    alike = "class" if s["rank_classes"] == 1 else "classes"
    predictor = summary["predictor"]
    return [
        f"simulated {s['ranks']:,} ranks as {s['rank_classes']:,} {alike}; {cluster['cables']:,} cables, "
        f"{cluster['links']:,} directed links or bundles; {s['events']:,} events in {seconds(took)}",
        f"kernel times by {predictor['name']}; error on held-out kernels:",
        *(f"  {line}" for line in predictor["error"]),
        f"interval of the step time: {summary['step_time_interval']}",
        f"clocks: {predictor['clocks']}",
        "not modelled: " + "; ".join(summary["not_modelled"]),
    ]
