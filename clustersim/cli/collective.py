"""`clustersim collective`: the table that nccl-tests would print on a cluster, next to measured figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from clustersim.cli.options import TOPOLOGY, ClusterChanges, JsonOutput, naming
from clustersim.errors import InputError

MOST_LINES = 200


def collective(
    op: Annotated[
        str,
        "all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, dispatch, combine, or send: "
        "each GPU to the one with the next number, the last to the first, all at once, as sendrecv_perf.",
    ],
    *,
    topology: Annotated[Path, TOPOLOGY, "-t"],
    changes: ClusterChanges,
    begin: Annotated[str, "Smallest size: 8, 1M (2^20, as nccl-tests has it), 1MB (10^6), 1MiB.", "-b"] = "8",
    end: Annotated[str, "Largest size. Sizes are cut to whole floats, 4 bytes.", "-e"] = "16G",
    factor: Annotated[float, "Factor from one size to the next.", "-f", {"min": 1.01}] = 2.0,
    gpus: Annotated[int | None, "Number of GPUs, the first ones. [default: all]", "-g", {"min": 2}] = None,
    ranks: Annotated[str | None, "GPUs to use, such as 0-7,16-23 or 0-1023:8 (one per node of 8)."] = None,
    algo: Annotated[str | None, "Force an algorithm of NCCL, such as ring, or one of clustersim/collectives."] = None,
    proto: Annotated[str | None, "Force a protocol: LL, LL128 or Simple."] = None,
    version: Annotated[str | None, "NCCL's release, such as 2.27.", "--nccl"] = None,
    launch: Annotated[str | None, "Time before each collective, such as 24us for eager PyTorch."] = None,
    nvls: Annotated[bool | None, "Let NVSwitches reduce, or not: NCCL_NVLS_ENABLE.", "--nvls/--no-nvls"] = None,
    imbalance: Annotated[
        float, "Rows of the busiest GPU over the mean (Zipf), of all_to_all, dispatch or combine."
    ] = 1.0,
    why: Annotated[bool, "Print the alternatives for the last size, and the busiest link."] = False,
    measured: Annotated[
        Path | None, "Output of nccl-tests, or a CSV with size_bytes and time_us, to compare with."
    ] = None,
    in_place: Annotated[bool, "Use the in-place times of the nccl-tests output."] = False,
    source: Annotated[str | None, "Part of the source's name, for a CSV with several sources."] = None,
    output: JsonOutput,
) -> None:
    """Print nccl-tests' table for a collective: size, algorithm, protocol, time, algbw, busbw."""
    from clustersim.collectives.nccl import request, table
    from clustersim.collectives.nccl.nccl_tests_log import measured as read
    from clustersim.collectives.nccl.table import considered
    from clustersim.topology.build import load

    with naming("--algo"):
        named = request.named(algo, proto)
    cluster = request.forced(load(topology, changes), None if named else algo, proto, version, launch, nvls)
    group = request.members(cluster, gpus, ranks)
    shares = request.shares(op, len(group), imbalance)
    times = read(measured, op, len(group), source, in_place) if measured else {}
    wanted = sorted(times) if times else request.sizes(begin, end, factor)
    if len(wanted) > MOST_LINES:
        remedy = f"use a larger --factor, or a shorter span (at most {MOST_LINES})"
        raise InputError(f"{len(wanted)} sizes are too many; {remedy}")
    with naming("--algo"):
        lines = [table.line(cluster, group, op, size, times.get(size), shares, named) for size in wanted]

    def text() -> Iterator[str]:
        """Yield the title, the table, and with `why` NCCL's candidates."""
        yield from (table.title(cluster, group, op), table.text(lines))
        if why:
            yield considered(cluster, group, op, lines[-1], shares)

    output.show("collective", lambda: table.document(cluster, group, op, lines), text)
