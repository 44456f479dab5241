"""`clustersim list WHAT`: names that files and commands may use, with what they stand for."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated as Opt
from typing import Any, Literal

from clustersim.cli.commands import option_group
from clustersim.cli.options import CommandOutput

What = Literal[
    "topologies", "workloads", "gpus", "nodes", "kinds", "schedules", "placements", "algorithms", "predictors"
]
ListRow = dict[str, Any]


def show_list(
    what: Opt[What, "What to list.", "WHAT", {"show_default": False}],
    output: Opt[CommandOutput, option_group(CommandOutput, "as_json")],
) -> None:
    """List names: shipped topologies and workloads, GPUs, node types, kinds of fabric, algorithms and more."""
    rows = _LISTS[what]()
    width = get_terminal_size().columns if sys.stdout.isatty() else None
    output.show("list", lambda: {what: rows}, lambda: [line[:width] for line in _table(rows)])


def _topologies() -> list[ListRow]:
    """Return the shipped topologies with their sizes."""
    from clustersim.config.shipped import files
    from clustersim.topology.build import described, document_of

    found = []
    for name, path in files("topologies").items():
        cluster = described(document_of(path))[1]
        found.append(
            {
                "name": name,
                "nodes": cluster.nodes,
                "gpus": cluster.gpus,
                "gpu": cluster.gpu.name,
                "what": _comment(path),
            }
        )
    return found


def _workloads() -> list[ListRow]:
    """Return the shipped workloads with the sizes of their models."""
    from clustersim.config.shipped import files
    from clustersim.model.parameters import parameters
    from clustersim.parallel.load import load

    jobs = {name: (path, load(path)) for name, path in files("workloads").items()}
    return [
        {
            "name": name,
            "parameters": parameters(job.model),
            "layers": job.model.layers,
            "gpus_per_replica": job.parallelism.lanes,
            "what": _comment(path),
        }
        for name, (path, job) in jobs.items()
    ]


def _gpus() -> list[ListRow]:
    """Return the GPUs with the main figures of their datasheets."""
    from clustersim.hardware import gpus

    return [
        {
            "name": gpu.name,
            "vendor": gpu.vendor,
            "architecture": gpu.architecture,
            "memory_bytes": gpu.memory,
            "bandwidth_bytes_per_s": gpu.memory_bandwidth,
            "bf16_flop_per_s": gpu.matrix_peak("bf16"),
        }
        for gpu in sorted(gpus.everything(), key=lambda gpu: gpu.name)
    ]


def _nodes() -> list[ListRow]:
    """Return the shipped types of node with their GPUs."""
    from clustersim.config.yaml import read
    from clustersim.convert.override import presets

    return [
        {"name": name, "gpus": gpus["count"], "gpu": gpus["model"], "what": _comment(path)}
        for name, path in presets().items()
        for gpus in [read(path).data["gpus"]]
    ]


def _plugins(room: str) -> Callable[[], list[ListRow]]:
    """Return the list of a folder of plugins with the first sentences of their files, and of those in installed packages."""

    def found() -> list[ListRow]:
        from clustersim import plugins

        modules = sorted(plugins.names(f"clustersim.{room}").items())
        own = [(name, _first(importlib.import_module(module).__doc__ or "")) for name, module in modules]
        others = sorted(plugins.installed(f"clustersim.{room}").items())  # not loaded: their code may be broken
        outside = [(name, f"From the installed package {package}") for name, package in others]
        return [{"name": name, "what": what} for name, what in (*own, *outside)]

    return found


def _algorithms() -> list[ListRow]:
    """Return the algorithms of collectives: NCCL's choice, and the plugins."""
    nccl = {"name": "nccl", "what": "What NCCL's tuner would choose: algorithm, protocol and channels; the default"}
    return [nccl, *_plugins("collectives")()]


def _comment(path: Path) -> str:
    """Return the first sentence of the comment at the start of a file."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return _first(" ".join(lines))


def _first(text: str) -> str:
    """Return the first sentence of a text, without its full stop."""
    return re.split(r"(?<!\bal)\.(?:\s+(?=[A-Z`\d])|$)", " ".join(text.partition("\n\n")[0].split()))[0]


_LISTS: Mapping[What, Callable[[], list[ListRow]]] = {
    "topologies": _topologies,
    "workloads": _workloads,
    "gpus": _gpus,
    "nodes": _nodes,
    "kinds": _plugins("topology"),
    "schedules": _plugins("schedules"),
    "placements": _plugins("placements"),
    "algorithms": _algorithms,
    "predictors": _plugins("predictors"),
}


def _table(rows: list[ListRow]) -> list[str]:
    """Return the lines of a table: numbers aligned right, text left."""
    from clustersim.report.table import table
    from clustersim.units import scaled

    heads = {"memory_bytes": "memory", "bandwidth_bytes_per_s": "bandwidth", "bf16_flop_per_s": "bf16"}
    units = {"bandwidth_bytes_per_s": "B/s", "bf16_flop_per_s": "FLOP/s"}

    def cell(key: str, value: Any) -> str:
        if key == "memory_bytes":
            return f"{value / 2**30:.0f} GiB"
        if key == "parameters":
            return f"{value / 1e12:.3g} trillion" if value >= 1e12 else f"{value / 1e9:.3g} billion"
        return scaled(value, units[key]) if key in units else f"{value:,}" if isinstance(value, int) else str(value)

    head = [heads.get(key, key.replace("_", " ")) for key in rows[0]]
    sides = "".join("<" if isinstance(value, str) else ">" for value in rows[0].values())
    return table([head, *([cell(*pair) for pair in row.items()] for row in rows)], sides)
