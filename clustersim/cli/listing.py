"""`clustersim list WHAT`: names that files and commands may use, with what they stand for."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal

from clustersim.cli.options import CommandOutput
from clustersim.report.table import table, terminal_width

What = Literal[
    "topologies", "workloads", "gpus", "nodes", "kinds", "schedules", "placements", "algorithms", "predictors"
]
ROOMS: Mapping[What, str] = {"kinds": "topology", "algorithms": "collectives"}
"""{what: its room}, where that has another name"""
NCCL = "nccl", "What NCCL's tuner would choose: algorithm, protocol and channels; the default"


def show_list(
    what: Annotated[What, "What to list.", "WHAT", {"show_default": False}],
    output: Annotated[CommandOutput, ("as_json",)],
) -> None:
    """List names: shipped topologies and workloads, GPUs, node types, kinds of fabric, algorithms and more."""
    head, *values = _rows(what)
    rows = [dict(zip(head, row, strict=True)) for row in values]
    output.show("list", lambda: {what: rows}, lambda: _table(rows))


def _rows(what: What) -> Iterator[tuple[Any, ...]]:
    """Yield the names of the columns of a list, then its rows."""
    from clustersim.config.shipped import files

    if what == "topologies":
        from clustersim.topology.build import described, document_of

        yield "name", "nodes", "gpus", "gpu", "what"
        for name, path in files(what).items():
            cluster = described(document_of(path))[1]
            yield name, cluster.nodes, cluster.gpus, cluster.gpu.name, _comment(path)
    elif what == "workloads":
        from clustersim.model.parameters import parameters
        from clustersim.parallel.load import load

        yield "name", "parameters", "layers", "gpus_per_replica", "what"
        for name, path in files(what).items():
            job = load(path)
            yield name, parameters(job.model), job.model.layers, job.parallelism.lanes, _comment(path)
    elif what == "gpus":
        from clustersim.hardware.gpus import everything

        yield "name", "vendor", "architecture", "memory_bytes", "bandwidth_bytes_per_s", "bf16_flop_per_s"
        for gpu in sorted(everything(), key=lambda gpu: gpu.name):
            rates = gpu.memory_bandwidth, gpu.matrix_peak("bf16")
            yield gpu.name, gpu.vendor, gpu.architecture, gpu.memory, *rates
    elif what == "nodes":
        from clustersim.config.yaml import read
        from clustersim.convert.override import presets

        yield "name", "gpus", "gpu", "what"
        for name, path in presets().items():
            gpus = read(path).data["gpus"]
            yield name, gpus["count"], gpus["model"], _comment(path)
    else:
        yield "name", "what"
        yield from [NCCL] if what == "algorithms" else []
        yield from _plugins(f"clustersim.{ROOMS.get(what, what)}")


def _plugins(room: str) -> Iterator[tuple[str, str]]:
    """Yield (name, first sentence of its file) of the built-in plugins of a room, then those of installed packages."""
    from clustersim import plugins

    for name, module in sorted(plugins.names(room).items()):
        yield name, _first_sentence(importlib.import_module(module).__doc__ or "")
    for name, package in sorted(plugins.installed(room).items()):  # not loaded: their code may be broken
        yield name, f"From the installed package {package}"


def _comment(path: Path) -> str:
    """Return the first sentence of the comment (`#`) at the start of a file; "" without one."""
    comment = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    return _first_sentence(" ".join(line.removeprefix("#").strip() for line in comment))


def _first_sentence(text: str) -> str:
    """Return the first sentence of a text, without its full stop."""
    return re.split(r"(?<!\bal)\.(?:\s+(?=[A-Z`\d])|$)", " ".join(text.partition("\n\n")[0].split()))[0]


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table: numbers aligned right, text left. Words beyond the terminal's width are left out, with `…`."""
    from clustersim.units import scaled

    heads = {"memory_bytes": "memory", "bandwidth_bytes_per_s": "bandwidth", "bf16_flop_per_s": "bf16"}
    units = {"bandwidth_bytes_per_s": "B/s", "bf16_flop_per_s": "FLOP/s"}

    def cell(key: str, value: Any) -> str:
        """Return a value as text with its unit, by its key."""
        if key == "memory_bytes":
            return f"{value / 2**30:.0f} GiB"
        if key == "parameters":
            return f"{value / 1e12:.3g} trillion" if value >= 1e12 else f"{value / 1e9:.3g} billion"
        return scaled(value, units[key]) if key in units else f"{value:,}" if isinstance(value, int) else str(value)

    head = [heads.get(key, key.replace("_", " ")) for key in rows[0]]
    sides = "".join("<" if isinstance(value, str) else ">" for value in rows[0].values())
    lines, room = table([head, *([cell(*pair) for pair in row.items()] for row in rows)], sides), terminal_width()
    return [line if len(line) <= room else re.sub(r"(?<=\S) +\S*$", " ", line[: int(room) - 1]) + "…" for line in lines]
