"""`clustersim show`: a cluster in figures, or drawn, or for another program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clustersim import writing
from clustersim.cli import schedule as schedules
from clustersim.cli.answer import print_json
from clustersim.cli.options import (
    Changes,
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

FORMATS = {"ns3": (".txt", ".topo", ""), "graphml": (".graphml", ".xml")}
"""Endings of files of other programs."""


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
    schedule: Annotated[str | None, typer.Option(hidden=True)] = None,  # as `clustersim schedule` was called
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
    plugins: Plugins = None,
    as_json: Json = False,
) -> None:
    """Print what a topology file describes, or what it would with other nodes: switches, cables, bisection.

    ASTRA-sim's network.yml and the XML of NCCL_TOPO_DUMP_FILE are topology files too.
    """
    if schedule:
        schedules.check_size(stages, microbatches, chunks)
    if (draw or export) and not topology:
        raise InputError("nothing to draw or export; give a topology file first")
    if draw and topology:
        from clustersim.drawing.picture import check

        check("--draw", draw, [topology])
    if export and export[0] not in FORMATS:
        raise InputError(f"--export {export[0]}: no such format; {suggest(export[0], FORMATS)}")
    if export and topology:
        writing.check_output(f"--export {export[0]}", export[1], FORMATS[export[0]], [topology])
    with keeping_inputs():
        wanted = overrides(changes or {}, settings)
        document = _document(topology, wanted) if topology else None
        _show(document, schedule, stages, microbatches, chunks, draw, export, as_json)


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
    as_json: bool,
) -> None:
    if topology and draw:
        _draw(topology, draw)
    if topology and export:
        _export(topology, *export)
    if not schedule and not topology:
        raise InputError("nothing to show; give a topology file (`clustersim schedule 1f1b` draws a schedule)")
    if as_json:
        drawn = schedules.facts(schedule, stages, microbatches, chunks) if schedule else {}
        print_json("show", drawn | (_cluster_facts(topology) if topology else {}))
        return
    if schedule:
        with naming("--schedule"):
            typer.echo(schedules.text(schedule, stages, microbatches, chunks))
    if topology:
        _cluster(topology)


def _cluster_facts(document: Document) -> dict[str, Any]:
    from clustersim.report.summary import gpu_facts
    from clustersim.topology.build import build
    from clustersim.topology.describe import diameter

    topology = build(document)
    head = {"name": topology.name, "kind": topology.kind, **gpu_facts(topology)}
    longest = diameter(topology)
    reach = {"diameter_links": longest.hops, "diameter_latency_s": longest.latency, "reduction": topology.reduction}
    units = {"bisection": "bisection_bytes_per_s", "power": "power_w"}
    counts = {units.get(key, key): number for key, number in topology.counts.items() if key != "ends"}
    return {**head, **counts, **reach, "warnings": list(topology.warnings)}


def _cluster(document: Document) -> None:
    from clustersim.topology.build import build
    from clustersim.topology.describe import describe

    rows = describe(build(document))
    width = max(len(label) for label, _ in rows)
    typer.echo("\n".join(f"{label:<{width}}  {value}" for label, value in rows))


def _draw(document: Document, target: Path) -> None:
    from clustersim.drawing.picture import write
    from clustersim.topology.drawing.draw import picture

    write(target, picture(document))
    typer.echo(f"written to {target}", err=True)


def _export(document: Document, form: str, target: Path) -> None:
    from clustersim.topology.build import build
    from clustersim.topology.export import graphml, ns3
    from clustersim.topology.export.cables import cabled

    text = ns3.text(cabled(document)) if form == "ns3" else graphml.text(build(document))
    _write(target, text.encode())


def _write(target: Path, content: bytes) -> None:
    writing.save(target, content)
    typer.echo(f"written to {target}", err=True)
