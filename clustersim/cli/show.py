"""`clustersim show`: a cluster in figures, as a picture, or for another program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clustersim import writing
from clustersim.cli import schedule as schedules
from clustersim.cli.answer import print_json
from clustersim.cli.options import (
    Changes,
    CostsOption,
    Json,
    Plugins,
    Setting,
    cluster_options,
    completing,
    naming,
    overrides,
    topology_file,
)
from clustersim.errors import InputError, suggest
from clustersim.files import keeping_inputs

if TYPE_CHECKING:
    from clustersim.config.yaml import Document
    from clustersim.costs.bill import Item

FORMATS = {"ns3": (".txt", ".topo", ""), "graphml": (".graphml", ".xml")}
"""Suffixes of files of other programs."""


@cluster_options()
def show(
    topology: Annotated[
        Path | None,
        typer.Argument(
            metavar="TOPOLOGY",
            help="A topology file, or the name of a shipped one.",
            parser=topology_file,
            autocompletion=completing("topologies"),
        ),
    ] = None,
    changes: Changes = None,  # type: ignore[assignment]  # the options of a cluster
    settings: Setting = None,
    schedule: Annotated[str | None, typer.Option(hidden=True)] = None,  # former name of `clustersim schedule`
    stages: Annotated[int, typer.Option(min=1, max=512, hidden=True)] = 4,
    microbatches: Annotated[int, typer.Option(min=1, max=4096, hidden=True)] = 8,
    chunks: Annotated[int, typer.Option(min=1, max=64, hidden=True)] = 1,
    draw: Annotated[
        Path | None, typer.Option(help="Write a picture of the topology to this .svg, .png or .pdf file.")
    ] = None,
    export: Annotated[
        tuple[str, Path] | None,
        typer.Option(
            help="Write the topology for another program: ns3 (SimAI, ASTRA-sim) or graphml.", metavar="FORMAT FILE"
        ),
    ] = None,
    costs: CostsOption = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> None:
    """Print what a topology file describes, or what it would with other nodes: switches, cables, bisection, and its bill.

    ASTRA-sim's network.yml and the XML of NCCL_TOPO_DUMP_FILE are topology files too.
    """
    if schedule:
        schedules.check_size(stages, microbatches, chunks)
    if (draw or export) and not topology:
        raise InputError("nothing to draw or export; give a topology file first")
    if draw and topology:
        from clustersim.figures.files import check

        check("--draw", draw, [topology])
    if export and export[0] not in FORMATS:
        raise InputError(f"--export {export[0]}: no such format; {suggest(export[0], FORMATS)}")
    if export and topology:
        writing.check_output(f"--export {export[0]}", export[1], FORMATS[export[0]], [topology])
    with keeping_inputs():
        wanted = overrides(changes or {}, settings)
        document = _document(topology, wanted) if topology else None
        _show(document, schedule, stages, microbatches, chunks, draw, export, costs, as_json)


def _document(path: Path, wanted: Mapping[str, object]) -> Document:
    from clustersim.topology.build import document_of, overridden

    return overridden(document_of(path), wanted)


def _show(
    topology: Document | None,
    schedule: str | None,
    stages: int,
    microbatches: int,
    chunks: int,
    draw: Path | None,
    export: tuple[str, Path] | None,
    costs: Path | None,
    as_json: bool,
) -> None:
    if not schedule and not topology:
        raise InputError("nothing to show; give a topology file (`clustersim schedule 1f1b` draws a schedule)")
    with naming("--schedule"):  # before anything is written
        size = (stages, microbatches, chunks)
        facts = schedules.facts(schedule, *size) if schedule and as_json else {}
        text = schedules.text(schedule, *size) if schedule and not as_json else ""
    if topology and draw:
        _draw(topology, draw)
    if topology and export:
        _export(topology, *export)
    if as_json:
        print_json("show", facts | (_cluster_facts(topology, costs) if topology else {}))
        return
    if schedule:
        typer.echo(text)
    if topology:
        _cluster(topology, costs)


def _cluster_facts(document: Document, costs: Path | None) -> dict[str, Any]:
    from clustersim.costs.bill import bill
    from clustersim.costs.figures import load
    from clustersim.report.summary import gpu_facts
    from clustersim.topology.build import build
    from clustersim.topology.describe import diameter

    topology = build(document)
    head = {"name": topology.name, "kind": topology.kind, **gpu_facts(topology)}
    longest = diameter(topology)
    reach = {"diameter_links": longest.hops, "diameter_latency_s": longest.latency, "reduction": topology.reduction}
    units = {"bisection": "bisection_bytes_per_s", "power": "power_w"}
    counts = {units.get(key, key): number for key, number in topology.counts.items() if key != "ends"}
    items = [
        {
            "what": i.what,
            "each": i.each,
            "number": i.number,
            "usd_each": i.price,
            "power_w_each": i.power,
            "date": i.date,
        }
        for i in bill(topology, load(costs))
    ]
    return {**head, **counts, **reach, "bill": items, "warnings": list(topology.warnings)}


def _cluster(document: Document, costs: Path | None) -> None:
    from clustersim.costs.bill import bill
    from clustersim.costs.figures import load
    from clustersim.topology.build import build
    from clustersim.topology.describe import describe

    topology = build(document)
    rows = describe(topology)
    width = max(len(label) for label, _ in rows)
    typer.echo("\n".join(f"{label:<{width}}  {value}" for label, value in rows))
    typer.echo("\n".join(["", *_bill(bill(topology, load(costs)))]))


def _bill(items: Sequence[Item]) -> list[str]:
    """Return a bill as a table with sums; items without a price are left out of the sums, with a note."""
    cells = [("what it takes", "", "number", "USD each", "USD", "kW", "prices of")]
    for one in items:
        each, usd = ("-", "-") if one.price is None else (f"{one.price:,.0f}", f"{one.usd:,.0f}")
        power = f"{one.number * one.power / 1e3:,.1f}" if one.power else ""
        cells.append((one.what, one.each, f"{one.number:,.0f}", each, usd, power, one.date))
    dollars, watts = math.fsum(one.usd or 0.0 for one in items), math.fsum(one.number * one.power for one in items)
    label = "in all that has a price" if any(one.price is None for one in items) else "in all"
    cells.append((label, "", "", "", f"{dollars:,.0f}" if dollars else "-", f"{watts / 1e3:,.1f}", ""))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    side = "<<>>>><"
    return ["  ".join(f"{c:{s}{w}}" for c, s, w in zip(line, side, widths, strict=True)).rstrip() for line in cells]


def _draw(document: Document, target: Path) -> None:
    from clustersim.figures.cluster import picture
    from clustersim.figures.files import write

    write(target, picture(document))
    typer.echo(f"written to {target}", err=True)


def _export(document: Document, form: str, target: Path) -> None:
    from clustersim.topology import export
    from clustersim.topology.build import build
    from clustersim.topology.export import cabled

    text = export.ns3(cabled(document)) if form == "ns3" else export.graphml(build(document))
    _write(target, text.encode())


def _write(target: Path, content: bytes) -> None:
    writing.save(target, content)
    typer.echo(f"written to {target}", err=True)
