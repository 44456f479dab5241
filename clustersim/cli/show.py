"""`clustersim show`: a cluster in figures, or drawn, or for another program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from clustersim import writing
from clustersim.cli import schedule as schedules
from clustersim.cli.answer import print_json
from clustersim.cli.options import Json, Plugins, completing, naming, topology_file
from clustersim.errors import InputError, suggest
from clustersim.files import keeping_inputs

FORMATS = {"ns3": (".txt", ".topo", ""), "graphml": (".graphml", ".xml")}
"""Endings of files of other programs."""
PICTURES = (".svg", ".png")


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
    schedule: Annotated[str | None, typer.Option(hidden=True)] = None,  # as `clustersim schedule` was called
    stages: Annotated[int, typer.Option(min=1, max=512, hidden=True)] = 4,
    microbatches: Annotated[int, typer.Option(min=1, max=4096, hidden=True)] = 8,
    chunks: Annotated[int, typer.Option(min=1, max=64, hidden=True)] = 1,
    draw: Annotated[
        Path | None, typer.Option(help="Write a picture of the topology to this .svg or .png file.")
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
    """Print what a topology file describes: switches, cables, bisection.

    ASTRA-sim's network.yml and the XML of NCCL_TOPO_DUMP_FILE are topology files too.
    """
    if schedule:
        schedules.check_size(stages, microbatches, chunks)
    if (draw or export) and not topology:
        raise InputError("nothing to draw or export; give a topology file first")
    if draw and topology:
        _drawable(draw, topology)
    if export and export[0] not in FORMATS:
        raise InputError(f"--export {export[0]}: no such format; {suggest(export[0], FORMATS)}")
    if export and topology:
        writing.check_output(f"--export {export[0]}", export[1], FORMATS[export[0]], [topology])
    with keeping_inputs():
        _show(topology, schedule, stages, microbatches, chunks, draw, export, as_json)


def _show(
    topology: Path | None,
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


def _cluster_facts(path: Path) -> dict[str, Any]:
    from clustersim.topology.build import load
    from clustersim.topology.describe import diameter

    topology = load(path)
    head = {"name": topology.name, "kind": topology.kind, "gpu": topology.gpu.name}
    longest = diameter(topology)
    reach = {"diameter_links": longest.hops, "diameter_latency_s": longest.latency, "reduction": topology.reduction}
    units = {"bisection": "bisection_bytes_per_s", "power": "power_w"}
    counts = {units.get(key, key): number for key, number in topology.counts.items() if key != "ends"}
    return {**head, **counts, **reach, "warnings": list(topology.warnings)}


def _cluster(path: Path) -> None:
    from clustersim.topology.build import load
    from clustersim.topology.describe import describe

    rows = describe(load(path))
    width = max(len(label) for label, _ in rows)
    typer.echo("\n".join(f"{label:<{width}}  {value}" for label, value in rows))


def _drawable(target: Path, topology: Path) -> None:
    """Raise InputError for a picture of another kind, or one that cannot be drawn here."""
    from clustersim.topology.drawing import png

    writing.check_output("--draw", target, PICTURES, [topology])
    if target.suffix.lower() == ".png":
        png.available()


def _draw(path: Path, target: Path) -> None:
    from clustersim.topology.build import document_of
    from clustersim.topology.drawing import png, svg
    from clustersim.topology.drawing.draw import picture

    canvas = picture(document_of(path))
    _write(target, png.image(canvas) if target.suffix.lower() == ".png" else svg.text(canvas).encode())


def _export(path: Path, form: str, target: Path) -> None:
    from clustersim.topology.build import document_of, load
    from clustersim.topology.export import graphml, ns3
    from clustersim.topology.export.cables import cabled

    text = ns3.text(cabled(document_of(path))) if form == "ns3" else graphml.text(load(path))
    _write(target, text.encode())


def _write(target: Path, content: bytes) -> None:
    writing.save(target, content)
    typer.echo(f"written to {target}", err=True)
