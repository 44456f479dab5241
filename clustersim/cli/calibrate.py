"""`clustersim calibrate RUNS.csv --out mine.yaml`: estimate a cluster's constants from measured steps, for later forecasts."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any
from typing import Annotated as Opt

from clustersim.cli.commands import option_group
from clustersim.cli.options import CommandOutput
from clustersim.units import plural

if TYPE_CHECKING:
    from clustersim.calibration.fit import MachineEstimate
    from clustersim.validate.machine import MeasuredMachine

ENDINGS = (".yaml", ".yml")


def calibrate(
    runs: Opt[Path, "Measured steps of one cluster, with the columns of `validate`.", "RUNS.csv"],
    *,
    trace: Opt[
        list[str] | None,
        "A trace of torch.profiler of one of these steps: of the row of that id, where there are several.",
        "[ID=]TRACE.json",
    ] = None,
    nccl: Opt[list[Path] | None, "Output of nccl-tests on this cluster; can be repeated.", "LOG"] = None,
    out: Opt[Path | None, "Write the machine file for --machine.", "FILE.yaml"] = None,
    output: Opt[CommandOutput, option_group(CommandOutput, "as_json", "quiet", "plugins")],
) -> None:
    """Say what probably differs on a cluster that ran these steps, how sure that is, and write it for `run --machine`.

    Clock under load, kernels, host, links and stragglers are looked at together: none of them alone explains all steps.
    """
    from clustersim.calibration.machine import written
    from clustersim.validate.machine import REMAINDER, machine
    from clustersim.writing import check_output, save

    if out:
        check_output("--out", out, ENDINGS, (runs, *(nccl or ())))
    with output.progress() as progress:
        found = machine(runs, trace or (), nccl or (), progress)
    if out:
        save(out, written(found.fit, found.gpu, found.evidence, REMAINDER))
    output.show("calibrate", lambda: _fields(found, out), lambda: _lines(found, out))


def _fields(found: MeasuredMachine, out: Path | None) -> dict[str, Any]:
    """Return the constants of a machine, and each measurement with its errors, as JSON data."""
    fit = found.fit
    rows = zip(fit.measurements, fit.before.tolist(), fit.after.tolist(), fit.left_out.tolist(), strict=True)
    return {
        "gpu": found.gpu,
        "evidence": list(found.evidence),
        "file": str(out) if out else None,
        "likely": dict(fit.likely),
        "constants": [
            {
                "name": one.name,
                "factor": exp(x),
                "spread": fit.found.spread(one.name),
                "usual_spread": one.spread,
                "keys": fit.keys_of(one),
            }
            for one, x in zip(fit.constants, fit.logs.tolist(), strict=True)
        ],
        "measurements": [
            {
                "name": one.name,
                "measured_s": one.measured,
                "error": exp(-before) - 1,
                "error_with_machine": exp(-after) - 1,
                "error_left_out": exp(-left_out) - 1,
                "weight": weight,
            }
            for (one, before, after, left_out), weight in zip(rows, fit.found.weights.tolist(), strict=True)
        ],
        "refused": list(found.refused),
    }


def _lines(found: MeasuredMachine, out: Path | None) -> Iterator[str]:
    """Yield the text of an estimate: errors of the steps, what probably differs, and the constants."""
    from clustersim.report.terminal import folded

    fit = found.fit
    yield from folded(f"{', '.join(found.evidence)}; up to {found.gpus:,} × {found.gpu}")
    errors = [
        sum(abs(exp(-x) - 1) for x in own[: found.steps]) / found.steps for own in (fit.before, fit.after, fit.left_out)
    ]
    yield f"mean error of the steps: {errors[0]:.1%} without a machine file, {errors[1]:.1%} with it"
    if found.steps > 1:
        yield f"each forecast from all the others: {errors[2]:.1%}"
    yield from ("", "if one thing alone differs, it is")
    likely = sorted(fit.likely.items(), key=lambda one: -one[1])
    yield from (f"  {name:<24} {share:4.0%}" for name, share in likely if share >= LEAST)
    yield from ("", *_constants(fit))
    odd = [one.name for one, weight in zip(fit.measurements, fit.found.weights.tolist(), strict=True) if weight < ODD]
    if odd:
        yield from folded(f"unlike the others, and counted less: {', '.join(odd)}")
    if found.refused:
        yield from folded(f"left out: {plural(len(found.refused), 'row', 'rows')}, such as {found.refused[0]}")
    if found.steps == 1 and len(fit.measurements) == 1:
        yield from folded(
            "one step cannot tell its constants apart: add steps that differ in GPUs, model or split, --nccl or --trace"
        )
    yield f"written to {out}: run … --machine {out}" if out else "add --out mine.yaml to forecast with it"


ODD = 0.5
"""Weight below which a measurement is named as an outlier."""


LEAST = 0.01
"""Share below which a hypothesis is not shown."""


def _constants(fit: MachineEstimate) -> Iterator[str]:
    """Yield the table of all constants: their factor on this machine, and how much they usually vary."""
    width = max(len(one.name) for one in fit.constants)
    yield f"{'all together':<{width + 2}}  {'this machine':>14}  {'usually':>8}"
    for one, x in zip(fit.constants, fit.logs.tolist(), strict=True):
        now = f"× {exp(x):.3f} ± {100 * fit.found.spread(one.name):.0f} %"
        yield f"  {one.name:<{width}}  {now:>14}  ± {100 * one.spread:.0f} %"
