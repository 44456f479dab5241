"""The specification of several jobs on one cluster."""

from typing import Annotated

from pydantic import Field

from clustersim.config.fields import Count, Name, Spec, Time, between

Ranges = Annotated[str, Field(min_length=1, max_length=100_000, pattern=r"^[^\x00-\x1f\x7f]*$")]
StepCount = Annotated[int, Field(ge=1, le=10_000)]


class Entry(Spec):
    """One job."""

    workload: Name
    """Workload file, relative to this file, or a shipped name."""
    name: Name | None = None
    """Default: the workload's name, numbered if repeated."""
    nodes: Count | Ranges | None = None
    """Number of whole nodes, or which ones, from 0. Default: what `parallelism.dp` needs; with `dp: auto` an equal share of
    the rest."""
    start: Time = 0.0
    """Start of the first step."""
    set: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Workload keys to replace, as with `--set`."""


class Jobs(Spec):
    """Several jobs on one cluster."""

    placement: Name = "packed"
    """Nodes of jobs without `nodes`: `packed` (next free ones), `spread` (in turn), `random` or `random:7` (with a
    seed)."""
    steps: StepCount = 3
    """Steps that each job completes at least."""
    jobs: Annotated[tuple[Entry, ...], Field(strict=False), between(1, 1000)]
    """Jobs."""
