"""`clustersim show` and `clustersim schedule`: a cluster in figures, as a picture or for another program; a pipeline schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clustersim import writing
from clustersim.cli.options import TOPOLOGY, ClusterChanges, CostsOption, JsonOutput, naming
from clustersim.errors import InputError, suggest
from clustersim.files import keeping_inputs
from clustersim.report.table import table

if TYPE_CHECKING:
    from clustersim.costs.bill import Item
    from clustersim.topology.model import Topology

FORMATS = {"ns3": (".txt", ".topo", ""), "graphml": (".graphml", ".xml")}
"""Suffixes of files of other programs."""
MOST_PASSES = 20_000
"""Largest number of passes of a schedule that is drawn."""


def show(
    topology: Annotated[Path | None, TOPOLOGY] = None,
    *,
    changes: ClusterChanges,
    schedule: Annotated[str | None, {"hidden": True}] = None,  # former name of `clustersim schedule`
    stages: Annotated[int, {"min": 1, "max": 512, "hidden": True}] = 4,
    microbatches: Annotated[int, {"min": 1, "max": 4096, "hidden": True}] = 8,
    chunks: Annotated[int, {"min": 1, "max": 64, "hidden": True}] = 1,
    draw: Annotated[Path | None, "Write a picture of the topology to this .svg, .png or .pdf file."] = None,
    export: Annotated[
        tuple[str, Path] | None,
        "Write the topology for another program: ns3 (SimAI, ASTRA-sim) or graphml.",
        "FORMAT FILE",
    ] = None,
    costs: CostsOption = None,
    output: JsonOutput,
) -> None:
    """Print what a topology file describes, or what it would with other nodes: switches, cables, bisection, and its bill.

    ASTRA-sim's network.yml and the XML of NCCL_TOPO_DUMP_FILE are topology files too.
    """
    from clustersim.costs.bill import bill
    from clustersim.costs.figures import load
    from clustersim.figures.cluster import picture
    from clustersim.figures.files import check, write
    from clustersim.schedules.draw import schedule_facts, schedule_text
    from clustersim.topology.build import build, document_of, overridden
    from clustersim.topology.describe import describe
    from clustersim.topology.export import graphml, ns3, with_single_cables

    size = stages, microbatches, chunks
    if schedule:
        _check_size(*size)
    if (draw or export) and not topology:
        raise InputError("nothing to draw or export; give a topology file first")
    if draw and topology:
        check("--draw", draw, [topology])
    if export and topology:
        if export[0] not in FORMATS:
            raise InputError(f"--export {export[0]}: no such format; {suggest(export[0], FORMATS)}")
        writing.check_output(f"--export {export[0]}", export[1], FORMATS[export[0]], [topology])
    with keeping_inputs():
        document = overridden(document_of(topology), changes) if topology else None
        if not schedule and not document:
            raise InputError("nothing to show; give a topology file (`clustersim schedule 1f1b` draws a schedule)")
        with naming("--schedule"):  # before anything is written
            facts = {"schedule": schedule_facts(schedule, *size)} if schedule and output.as_json else {}
            text = [schedule_text(schedule, *size)] if schedule and not output.as_json else []
        if document and draw:
            write(draw, picture(document))
            typer.echo(f"written to {draw}", err=True)
        if document and export:
            form, target = export
            writing.save(target, ns3(with_single_cables(document)) if form == "ns3" else graphml(build(document)))
            typer.echo(f"written to {target}", err=True)
        cluster = build(document) if document else None
        items = bill(cluster, load(costs)) if cluster else []
        fields = facts | (_facts(cluster, items) if cluster else {})
        text += [*table(describe(cluster), "<"), "", *_bill(items)] if cluster else []
        output.show("show", lambda: fields, lambda: text)


def _facts(topology: Topology, items: Sequence[Item]) -> dict[str, Any]:
    """Return the JSON data of `show`: `name`, `kind`, `gpu_facts`, counts, `diameter_…`, `reduction`, `bill` and `warnings`."""
    from clustersim.report.summary import gpu_facts
    from clustersim.topology.describe import diameter

    head = {"name": topology.name, "kind": topology.kind, **gpu_facts(topology)}
    longest = diameter(topology)
    reach = {"diameter_links": longest.hops, "diameter_latency_s": longest.latency, "reduction": topology.reduction}
    units = {"bisection": "bisection_bytes_per_s", "power": "power_w"}
    counts = {units.get(key, key): number for key, number in topology.counts.items() if key != "ends"}
    names = ("what", "each", "number", "usd_each", "power_w_each", "date")
    rows = [dict(zip(names, (i.what, i.each, i.number, i.price, i.power, i.date), strict=True)) for i in items]
    return {**head, **counts, **reach, "bill": rows, "warnings": [*topology.notes, *topology.warnings]}


def _bill(items: Sequence[Item]) -> list[str]:
    """Return a bill as a table with sums; items without a price are left out of the sums, with a note."""
    cells = [("what it takes", "", "number", "USD each", "USD", "kW", "prices of")]
    for item in items:
        each, usd = ("-", "-") if item.price is None else (f"{item.price:,.0f}", f"{item.usd:,.0f}")
        power = f"{item.number * item.power / 1e3:,.1f}" if item.power else ""
        cells.append((item.what, item.each, f"{item.number:,.0f}", each, usd, power, item.date))
    dollars, watts = math.fsum(item.usd or 0.0 for item in items), math.fsum(item.number * item.power for item in items)
    label = "in all that has a price" if any(item.price is None for item in items) else "in all"
    cells.append((label, "", "", "", f"{dollars:,.0f}" if dollars else "-", f"{watts / 1e3:,.1f}", ""))
    return table(cells, "<<>>>><")


def schedule(
    name: Annotated[str, "The schedule, such as 1f1b.", "NAME"],
    *,
    pp: Annotated[int, "Pipeline ranks.", {"min": 1, "max": 512}] = 4,
    microbatches: Annotated[int, "Microbatches per step.", {"min": 1, "max": 4096}] = 8,
    vpp: Annotated[int, "Model chunks per rank (interleaved).", {"min": 1, "max": 64}] = 1,
    output: JsonOutput,
) -> None:
    """Draw a pipeline schedule as text: the passes of each rank over time, its bubble, and the activations each rank keeps."""
    from clustersim.schedules.draw import schedule_facts, schedule_text

    size = pp, microbatches, vpp
    _check_size(*size)
    with naming("schedule"):
        output.show("schedule", lambda: {"schedule": schedule_facts(name, *size)}, lambda: [schedule_text(name, *size)])


def _check_size(stages: int, microbatches: int, chunks: int) -> None:
    """Raise InputError if a schedule has too many passes to draw."""
    if stages * microbatches * chunks > MOST_PASSES:
        size = f"{stages} stages × {microbatches} microbatches × {chunks} chunks"
        raise InputError(f"{size} are too many to draw; lower one")
