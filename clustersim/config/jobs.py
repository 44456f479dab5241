"""The specification of several jobs on one cluster."""

from typing import Annotated

from pydantic import Field

from clustersim.config.fields import Count, Name, Spec, Time, between

Ranges = Annotated[str, Field(min_length=1, max_length=100_000, pattern=r"^[^\x00-\x1f\x7f]*$")]
StepCount = Annotated[int, Field(ge=1, le=10_000)]


class Entry(Spec):
    """One of the jobs."""

    workload: Name
    """Its file, relative to this one, or the name of a shipped one."""
    name: Name | None = None
    """Default that of the workload, numbered when several have it."""
    nodes: Count | Ranges | None = None
    """How many whole nodes it gets, or as text which, counted from 0, such as `0-7` or `0-3,8-11`; default: what
    `parallelism.dp` needs, or with `dp: auto` an equal share of what the others leave."""
    start: Time = 0.0
    """When its first step begins."""
    set: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Keys of the workload that are replaced, as by `--set`."""


class Jobs(Spec):
    """A whole file of jobs, for `clustersim jobs`."""

    placement: Name = "packed"
    """Which nodes the jobs get that do not say which: `packed`, the next free ones in order; `spread`, given out in turn, so
    that every leaf is shared; `random`, or `random:7` with a seed."""
    steps: StepCount = 3
    """How many each job completes at least."""
    jobs: Annotated[tuple[Entry, ...], Field(strict=False), between(1, 1000)]
    """One entry a job."""
