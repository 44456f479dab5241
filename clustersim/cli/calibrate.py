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
        measured = machine(runs, trace or (), nccl or (), progress)
    if out:
        save(out, machine_yaml(measured.fit, measured.gpu, measured.evidence, REMAINDER))
    output.show("calibrate", lambda: _fields(measured, out), lambda: _lines(measured, out))


def _fields(measured: MeasuredMachine, out: Path | None) -> dict[str, Any]:
    """Return the JSON data of `calibrate`: `gpu`, `evidence`, `file` (`out`), `likely`, `constants`, `measurements`, `refused`.

    `likely`: {family of constants: probability that it alone differs}. A constant has its `factor` on the usual value, and
    `spread`. A measurement has `error`: forecast / measured - 1, also `error_with_machine` and `error_left_out` (without
    itself), and its `weight`.
    """
    fit = measured.fit
    columns = ("name", "factor", "spread", "usual_spread", "keys")
    constants = [
        (constant.name, exp(x), fit.posterior.spread(constant.name), constant.spread, fit.keys_of(constant))
        for constant, x in zip(fit.constants, fit.logs.tolist(), strict=True)
    ]
    figures = ("name", "measured_s", "error", "error_with_machine", "error_left_out", "weight")
    errors = [[exp(-x) - 1 for x in logs.tolist()] for logs in (fit.before, fit.after, fit.left_out)]
    steps = [(step.name, step.measured) for step in fit.measurements]
    rows = [(*step, *rest) for step, *rest in zip(steps, *errors, fit.posterior.weights.tolist(), strict=True)]
    return {
        "gpu": measured.gpu,
        "evidence": list(measured.evidence),
        "file": str(out) if out else None,
        "likely": dict(fit.likely),
        "constants": [dict(zip(columns, row, strict=True)) for row in constants],
        "measurements": [dict(zip(figures, row, strict=True)) for row in rows],
        "refused": list(measured.refused),
    }


def _lines(measured: MeasuredMachine, out: Path | None) -> Iterator[str]:
    """Yield the text of an estimate: errors of the steps, what probably differs, and the constants."""
    from clustersim.report.terminal import wrapped

    fit = measured.fit
    yield from wrapped(f"{', '.join(measured.evidence)}; up to {measured.gpus:,} × {measured.gpu}")
    logs = fit.before, fit.after, fit.left_out
    errors = [sum(abs(exp(-x) - 1) for x in errors_log[: measured.steps]) / measured.steps for errors_log in logs]
    yield f"mean error of the steps: {errors[0]:.1%} without a machine file, {errors[1]:.1%} with it"
    if measured.steps > 1:
        yield f"each forecast from all the others: {errors[2]:.1%}"
    yield from ("", "if one thing alone differs, it is")
    likely = sorted(fit.likely.items(), key=lambda pair: -pair[1])
    yield from (f"  {name:<24} {share:4.0%}" for name, share in likely if share >= LEAST)
    width = max(len(constant.name) for constant in fit.constants)
    yield from ("", f"{'all together':<{width + 2}}  {'this machine':>14}  {'usually':>8}")
    for constant, x in zip(fit.constants, fit.logs.tolist(), strict=True):
        now = f"× {exp(x):.3f} ± {100 * fit.posterior.spread(constant.name):.0f} %"
        yield f"  {constant.name:<{width}}  {now:>14}  ± {100 * constant.spread:.0f} %"
    weights = zip(fit.measurements, fit.posterior.weights.tolist(), strict=True)
    outliers = [measurement.name for measurement, weight in weights if weight < ODD]
    if outliers:
        yield from wrapped(f"unlike the others, and counted less: {', '.join(outliers)}")
    if measured.refused:
        yield from wrapped(f"left out: {plural(len(measured.refused), 'row', 'rows')}, such as {measured.refused[0]}")
    if measured.steps == 1 and len(fit.measurements) == 1:
        yield from wrapped(
            "one step cannot tell its constants apart: add steps that differ in GPUs, model or split, --nccl or --trace"
        )
    yield f"written to {out}: run … --machine {out}" if out else "add --out mine.yaml to forecast with it"
