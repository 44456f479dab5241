"""`clustersim calibrate RUNS.csv --out mine.yaml`: estimate a cluster's constants from measured steps, for later forecasts."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from clustersim.cli.options import CommandOutput
from clustersim.units import plural
from clustersim.writing import check_output, save

if TYPE_CHECKING:
    from clustersim.validate.machine import MeasuredMachine

ODD = 0.5
"""Weight below which a measurement is named as an outlier."""
LEAST = 0.01
"""Share below which a hypothesis is not shown."""


def calibrate(
    runs: Annotated[Path, "Measured steps of one cluster, with the columns of `validate`.", "RUNS.csv"],
    *,
    trace: Annotated[
        list[str] | None,
        "A trace of torch.profiler of one of these steps: of the row of that id, where there are several.",
        "[ID=]TRACE.json",
    ] = None,
    nccl: Annotated[list[Path] | None, "Output of nccl-tests on this cluster; can be repeated.", "LOG"] = None,
    out: Annotated[Path | None, "Write the machine file for --machine.", "FILE.yaml"] = None,
    output: Annotated[CommandOutput, ("as_json", "quiet", "plugins")],
) -> None:
    """Say what probably differs on a cluster that ran these steps, how sure that is, and write it for `run --machine`.

    Clock under load, kernels, host, links and stragglers are looked at together: none of them alone explains all steps.
    """
    from clustersim.calibration.machine import machine_yaml
    from clustersim.validate.machine import REMAINDER, machine

    if out:
        check_output("--out", out, (".yaml", ".yml"), (runs, *(nccl or ())))
    with output.progress() as progress:
        found = machine(runs, trace or (), nccl or (), progress)
    if out:
        save(out, machine_yaml(found.fit, found.gpu, found.evidence, REMAINDER))
    output.show("calibrate", lambda: _fields(found, out), lambda: _lines(found, out))


def _fields(found: MeasuredMachine, out: Path | None) -> dict[str, Any]:
    """Return the constants of a machine, and each measurement with its errors, as JSON data."""
    fit = found.fit
    constant = ("name", "factor", "spread", "usual_spread", "keys")
    constants = [
        (one.name, exp(x), fit.posterior.spread(one.name), one.spread, fit.keys_of(one))
        for one, x in zip(fit.constants, fit.logs.tolist(), strict=True)
    ]
    measurement = ("name", "measured_s", "error", "error_with_machine", "error_left_out", "weight")
    errors = [[exp(-x) - 1 for x in own.tolist()] for own in (fit.before, fit.after, fit.left_out)]
    steps = [(one.name, one.measured) for one in fit.measurements]
    rows = [(*step, *rest) for step, *rest in zip(steps, *errors, fit.posterior.weights.tolist(), strict=True)]
    return {
        "gpu": found.gpu,
        "evidence": list(found.evidence),
        "file": str(out) if out else None,
        "likely": dict(fit.likely),
        "constants": [dict(zip(constant, one, strict=True)) for one in constants],
        "measurements": [dict(zip(measurement, one, strict=True)) for one in rows],
        "refused": list(found.refused),
    }


def _lines(found: MeasuredMachine, out: Path | None) -> Iterator[str]:
    """Yield the text of an estimate: errors of the steps, what probably differs, and the constants."""
    from clustersim.report.terminal import wrapped

    fit = found.fit
    yield from wrapped(f"{', '.join(found.evidence)}; up to {found.gpus:,} × {found.gpu}")
    logs = fit.before, fit.after, fit.left_out
    errors = [sum(abs(exp(-x) - 1) for x in one[: found.steps]) / found.steps for one in logs]
    yield f"mean error of the steps: {errors[0]:.1%} without a machine file, {errors[1]:.1%} with it"
    if found.steps > 1:
        yield f"each forecast from all the others: {errors[2]:.1%}"
    yield from ("", "if one thing alone differs, it is")
    likely = sorted(fit.likely.items(), key=lambda one: -one[1])
    yield from (f"  {name:<24} {share:4.0%}" for name, share in likely if share >= LEAST)
    width = max(len(one.name) for one in fit.constants)
    yield from ("", f"{'all together':<{width + 2}}  {'this machine':>14}  {'usually':>8}")
    for one, x in zip(fit.constants, fit.logs.tolist(), strict=True):
        now = f"× {exp(x):.3f} ± {100 * fit.posterior.spread(one.name):.0f} %"
        yield f"  {one.name:<{width}}  {now:>14}  ± {100 * one.spread:.0f} %"
    weights = zip(fit.measurements, fit.posterior.weights.tolist(), strict=True)
    odd = [measurement.name for measurement, weight in weights if weight < ODD]
    if odd:
        yield from wrapped(f"unlike the others, and counted less: {', '.join(odd)}")
    if found.refused:
        yield from wrapped(f"left out: {plural(len(found.refused), 'row', 'rows')}, such as {found.refused[0]}")
    if found.steps == 1 and len(fit.measurements) == 1:
        yield from wrapped(
            "one step cannot tell its constants apart: add steps that differ in GPUs, model or split, --nccl or --trace"
        )
    yield f"written to {out}: run … --machine {out}" if out else "add --out mine.yaml to forecast with it"
