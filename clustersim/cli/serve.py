"""`clustersim serve [FOLDER]`: results in a browser, and runs, sweeps, searches and plans from forms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from clustersim.cli.options import quantity
from clustersim.cli.progress import cores
from clustersim.errors import InputError
from clustersim.extras import need

LEAST = 1 << 30
"""Bytes of address space that Python and its libraries take."""


def serve(
    results: Annotated[Path, "Folder of results.", "FOLDER"] = Path("results"),
    *,
    host: Annotated[str, "Address to listen on; addresses that other machines reach need a token."] = "127.0.0.1",
    port: Annotated[int, "Port; 0: any free port.", {"min": 0, "max": 65535}] = 8765,
    token: Annotated[
        str,
        "Secret that clients need; safer in CLUSTERSIM_TOKEN, which no process list shows.",
        {"envvar": "CLUSTERSIM_TOKEN"},
    ] = "",
    topologies: Annotated[
        list[Path] | None, "Additional topology in the form; can be repeated.", "FILE", "--topology"
    ] = None,
    workloads: Annotated[
        list[Path] | None, "Additional workload in the form; can be repeated.", "FILE", "--workload"
    ] = None,
    at_once: Annotated[
        int | None, "Number of concurrent runs; default: one per core. Others wait.", {"min": 1, "max": 1024}
    ] = None,
    waiting: Annotated[int, "Number of runs that may wait; more are refused.", {"min": 0, "max": 1000}] = 20,
    memory: Annotated[str, "Memory limit of each process of a run."] = "8GiB",
    seconds: Annotated[int, "Time limit of a run in seconds.", {"min": 1}] = 600,
) -> None:
    """Show results in a browser: reports, comparisons, and forms of run, sweep, optimize and plan. Ctrl-C ends it.

    Only this machine reaches it, unless there is a token. It runs nothing but commands of clustersim on files that it lists.
    """
    need("uvicorn", "`clustersim serve`")
    from clustersim.cli.app import app
    from clustersim.serve.children import ChildLimits
    from clustersim.serve.form import FORMS, RunForm
    from clustersim.serve.server import Address, serve

    size = int(quantity("--memory", memory, "size"))
    if size < LEAST:
        raise InputError(f"--memory {memory}: a run needs {LEAST >> 30} GiB to begin with; give as much or more")
    at_once = at_once or cores()
    limits = ChildLimits(at_once, waiting, size, seconds)
    commands = {name: app((name,)).registered_commands[0].callback or serve for name in FORMS}
    form = replace(RunForm.of(topologies or (), workloads or (), commands), workers=max(1, cores() // at_once))
    serve(
        results,
        Address(host, port, token),
        form,
        limits,
        lambda url: typer.echo(f"{results}/ at {url} (Ctrl-C ends it)"),
    )
