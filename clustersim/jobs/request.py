"""Reads the jobs that share a cluster from the files on a command line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from clustersim import plugins
from clustersim.config import shipped
from clustersim.config.fields import validate
from clustersim.config.jobs import Entry, Jobs
from clustersim.config.node_ranges import parse
from clustersim.config.yaml import KEY, Document, read
from clustersim.errors import ConfigError, InputError, PluginError, UnknownNameError, shown
from clustersim.files import exists
from clustersim.parallel.job import Job
from clustersim.parallel.load import build


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A job and the nodes that it requests."""

    name: str
    job: Job
    nodes: int | tuple[int, ...] | None = None
    """Number of nodes, or their indices. None: enough for the parallel degrees, or a share of the free nodes if dp is `auto`."""
    start: float = 0.0
    """Start of its first step, in seconds."""
    listed: tuple[Document, int] | None = None
    """File of jobs that contains the job, and its index there."""

    def error(self, key: str, message: str) -> InputError:
        """Return an error at the job's `key`, such as `nodes`, in the file of jobs; without such a file, at its workload."""
        if self.listed is None:
            return InputError(f"{self.job.document.path}: {message}")
        document, index = self.listed
        return document.error(("jobs", index, key), f"jobs.{index}.{key}: {message}")


class JobsRequest(NamedTuple):
    """Jobs to simulate, their placement, and the number of steps that each must complete."""

    requests: tuple[PlacementRequest, ...]
    placement: str
    """Name of the placement, such as `packed` or `random:7`."""
    steps: int
    inputs: dict[str, Path]
    """{`jobs` or `workload 1`, `workload 2`, …: file that it was read from}"""


def load(
    files: Sequence[Path], overrides: Mapping[str, object], placement: str | None = None, steps: int | None = None
) -> JobsRequest:
    """Return the jobs of `files`: one file of jobs (with the key `jobs`), or workloads.

    `overrides`, by dotted key, replace values in every workload. `placement` and `steps` replace those of the file of jobs or the
    defaults. Raises InputError for bad input; it is a ConfigError with the position if the error is in a file.
    """
    files = [shipped.find("workloads", path) for path in files]
    documents = [read(path) for path in files]
    lists = [path for path, document in zip(files, documents, strict=True) if "jobs" in document.data]
    if lists and len(files) > 1:
        raise InputError(f"{lists[0]}: is a file of jobs; name it alone, or name workloads only")
    if lists:
        return _listed(files[0], documents[0], overrides, placement, steps)
    requests = [PlacementRequest(job.name, job) for job in (build(document, overrides) for document in documents)]
    default = Jobs.model_fields
    return JobsRequest(
        _numbered(requests),
        placement or default["placement"].default,
        steps or default["steps"].default,
        {f"workload {number}": path for number, path in enumerate(files, 1)},
    )


def _listed(
    path: Path, document: Document, overrides: Mapping[str, object], placement: str | None, steps: int | None
) -> JobsRequest:
    """Return the request of a file of jobs. Raises ConfigError or InputError for an invalid name or placement."""
    spec = validate(Jobs, document)
    _check_names(document, spec)
    try:
        placement_named(placement or spec.placement)
    except InputError as error:
        raise error if placement else document.error(("placement",), f"placement: {error}") from error
    requests = [_request(document, index, entry, overrides) for index, entry in enumerate(spec.jobs)]
    files = {f"workload {number}": _file(document, entry) for number, entry in enumerate(spec.jobs, 1)}
    return JobsRequest(_numbered(requests), placement or spec.placement, steps or spec.steps, {"jobs": path, **files})


def _check_names(document: Document, spec: Jobs) -> None:
    """Raise ConfigError if two jobs have the same name."""
    used: set[str] = set()
    for index, name in enumerate(entry.name for entry in spec.jobs):
        if name is not None and name in used:
            raise document.error(("jobs", index, "name"), f"jobs.{index}.name: {name} is taken; give each job its own")
        used |= {name} if name else set()


def _file(document: Document, entry: Entry) -> Path:
    """Return an entry's workload file: in the folder of the file of jobs, else shipped; if neither exists, the former."""
    path = Path(document.path).parent / entry.workload
    return path if exists(path) else shipped.files("workloads").get(entry.workload, path)


def _request(document: Document, index: int, entry: Entry, overrides: Mapping[str, object]) -> PlacementRequest:
    """Return the request of entry `index`; `overrides` precede its `set`. Raises ConfigError for invalid workloads or nodes."""
    set_keys = {key: ("jobs", index, "set", key) for key in entry.set if key not in overrides}
    places = {key: (document.path, *document.positions[(*loc, KEY)][:2]) for key, loc in set_keys.items()}
    path = _file(document, entry)
    if not exists(path):
        problem = f"jobs.{index}.workload: no file {path}; paths are relative to this file"
        raise document.error(("jobs", index, "workload"), f"{problem}, or give its whole path")
    try:
        job = build(read(path), {**entry.set, **overrides}, places)
    except ConfigError:
        raise
    except InputError as error:
        raise document.error(("jobs", index, "set"), f"jobs.{index}: {error}") from error
    request = PlacementRequest(entry.name or job.name, job, None, entry.start, (document, index))
    return replace(request, nodes=_nodes(request, entry))


def _nodes(request: PlacementRequest, entry: Entry) -> int | tuple[int, ...] | None:
    """Return an entry's number of nodes, the numbers of its nodes, or None. Raises ConfigError for an invalid list."""
    if not isinstance(entry.nodes, str):
        return entry.nodes
    try:
        return parse(entry.nodes)
    except InputError as error:
        raise request.error("nodes", str(error)) from error


def _numbered(requests: Sequence[PlacementRequest]) -> tuple[PlacementRequest, ...]:
    """Return the jobs with distinct names: jobs that share a name become name-1, name-2, …, without names in use."""
    taken = Counter(request.name for request in requests)
    numbers: Counter[str] = Counter()
    result = []
    for request in requests:
        name = request.name
        if taken[name] > 1:
            numbers[name] += 1
            while taken[f"{name}-{numbers[name]}"]:
                numbers[name] += 1
            name = f"{name}-{numbers[name]}"
        result.append(replace(request, name=name))
    return tuple(result)


# A placement by its name: `packed`, `random:7` or `package.module:function`.

Placement = Callable[[Sequence[int], Sequence[int]], list[list[int]]]
"""Function (number of nodes of each job, free nodes) -> ascending nodes of each job."""
ROOM = "clustersim.placements"
_DIGITS = 18


class PlacementKind(Protocol):
    """Function that assigns nodes to jobs: the `place` of each file in `placements/`, or any function with this signature."""

    def __call__(self, wanted: Sequence[int], free: Sequence[int], seed: int) -> Sequence[Sequence[int]]:
        """Return `wanted[i]` of the `free` nodes for each job i, without repetition.

        `free` is in ascending order and has at least sum(wanted) nodes. `seed` is the number in `random:7`, else 0.
        """
        ...


def placement_named(placement: str) -> Placement:
    """Return the placement with that name. Raises UnknownNameError if there is none.

    The returned function raises InputError if an outside placement fails or returns an invalid assignment.
    """
    name, _, seed = placement.rpartition(":")
    numbered = bool(name) and seed.isdecimal() and len(seed) <= _DIGITS
    if name in plugins.names(ROOM) and not numbered:
        raise UnknownNameError(
            f"{placement}: {shown(seed)} is not a seed; write a whole number of at most {_DIGITS} digits, such as {name}:7"
        )
    place: PlacementKind = plugins.load(ROOM, name if numbered else placement, "place")

    def place_and_check(wanted: Sequence[int], free: Sequence[int]) -> list[list[int]]:
        try:
            with plugins.blaming(ROOM, name if numbered else placement):
                assigned = [sorted(map(int, nodes)) for nodes in place(wanted, free, int(seed) if numbered else 0)]
        except PluginError as error:
            raise PluginError(f"placement {error}") from error
        taken = [node for nodes in assigned for node in nodes]
        if [len(nodes) for nodes in assigned] != list(wanted) or len(set(taken)) < len(taken) or set(taken) - set(free):
            raise InputError(
                f"placement {placement} does not give each job its own free nodes, as many as it wants; see a built-in one"
            )
        return assigned

    return place_and_check
