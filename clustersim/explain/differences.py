"""Differences between results: in their inputs, with all defaults filled in, and in where time goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from clustersim.config.results import RunSummary
from clustersim.errors import InputError
from clustersim.files import Inputs, digest, read_bytes
from clustersim.question import StepQuestion, StoredRun
from clustersim.report.store import run_summary
from clustersim.topology.build import described


class ComparedResult(NamedTuple):
    """A result of `run` in a comparison."""

    name: str
    """Its folder as the user wrote it."""
    inputs: Mapping[str, object]
    """All values that determine its numbers, by dotted key."""
    summary: RunSummary


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several results, compared with the first."""

    results: tuple[ComparedResult, ...]

    @property
    def differences(self) -> dict[str, tuple[object, ...]]:
        """{key: value of each result} of the keys that differ."""
        keys = dict.fromkeys(key for result in self.results for key in result.inputs)
        rows = {key: tuple(result.inputs.get(key) for result in self.results) for key in keys}
        return {key: values for key, values in rows.items() if any(value != values[0] for value in values)}

    def seconds(self, what: str) -> dict[str, tuple[float, ...]]:
        """Return {part: seconds in each result} of `breakdown_s`, `critical_path_s`, or the path's `by_stream_s` or `by_link`."""
        parts = [_parts(result.summary, what) for result in self.results]
        names = dict.fromkeys(name for part in parts for name in part)
        return {name: tuple(part.get(name, 0.0) for part in parts) for name in names}

    def facts(self) -> dict[str, Any]:
        """Return `results`, `differences` ({`key`, `values`}) and `breakdown_s`, … ({part: seconds by result}) as JSON data."""
        speed = ("step_time_s", "expected_step_time_s", "tokens_per_s", "mfu")
        cuts = ("breakdown_s", "critical_path_s", "by_stream_s", "by_link")
        seconds = {what: {key: list(values) for key, values in self.seconds(what).items()} for what in cuts}
        return {
            "results": [
                {"result": item.name, **{key: getattr(item.summary, key) for key in speed}} for item in self.results
            ],
            "differences": [{"key": key, "values": list(values)} for key, values in self.differences.items()],
            **{what: seconds[what] for what in cuts[:2]},
            "critical_path": {what: seconds[what] for what in cuts[2:]},
        }


def _parts(summary: RunSummary, what: str) -> Mapping[str, float]:
    """Return {part: seconds} of `what`, as in `Comparison.seconds`."""
    path = summary.critical_path
    if what == "by_link":
        return {row.link or row.what: row.path_s for row in path.by_link}
    seconds: Mapping[str, float] = getattr(path if what == "by_stream_s" else summary, what)
    return seconds


def compared(folders: Sequence[Path]) -> Comparison:
    """Return the comparison of results of `run`. Raises InputError for a folder without a result or summary."""
    return Comparison(tuple(_compared(folder) for folder in folders))


def _compared(folder: Path) -> ComparedResult:
    """Return the result in a folder, with its input files read. Raises InputError for an unreadable one."""
    stored, summary = StoredRun.of(folder), run_summary(folder)
    with stored.holding() as files:
        return ComparedResult(str(folder), dict(_inputs(stored, summary, files)), summary)


def from_step(name: str, question: StepQuestion, summary: Mapping[str, Any]) -> ComparedResult:
    """Return a simulated step for a comparison. name: its label. summary: summary of its result."""
    inputs = {"engine": question.engine, "fold": question.fold, **dict(_keys(question))}
    return ComparedResult(name, inputs, RunSummary.model_validate(summary))


def _inputs(stored: StoredRun, summary: RunSummary, files: Inputs) -> Iterator[tuple[str, object]]:
    """Yield (key, value) of both files as simulated; for files that have changed since, from the summary."""
    yield "version of clustersim", stored.manifest.clustersim
    yield "predictor", summary.predictor.name
    options = stored.manifest.options
    yield from (("fold", options.fold), ("ignore_memory", options.ignore_memory), ("flops", options.flops))
    yield from (("engine", options.engine), ("plugins", options.plugins))
    changed = [part for part, (path, sha) in stored.inputs.items() if not _unchanged(path, sha, files)]
    if not changed:
        yield from _keys(stored.question)
        return
    for part, (path, sha) in stored.inputs.items():
        yield f"{part} (its keys are not known: {path.name} has changed since)" if part in changed else part, sha[:12]
    yield from ((f"cluster.{key}", value) for key, value in summary.cluster.items())
    yield from ((f"parallelism.{key}", value) for key, value in summary.parallelism.items())


def _unchanged(path: Path, sha: str, files: Inputs) -> bool:
    """Return whether a file has the digest `sha`; files: contents that are already read."""
    try:
        return digest(files.get(str(path)) or read_bytes(path)) == sha
    except InputError:
        return False


def _keys(question: StepQuestion) -> Iterator[tuple[str, object]]:
    """Yield (dotted key, value) of the cluster and the workload of a question."""
    spec, specs = described(question.document)
    cluster: dict[str, Any] = {
        "cluster": {"nodes": spec.cluster.nodes, "node": specs.node.model_dump()},
        "fabric": spec.fabric,
        "faults": question.document.data.get("faults") or [],
        "nccl": spec.nccl.model_dump(),
    }
    yield from flat(cluster)
    job = question.job.spec.model_dump()
    del job["name"]
    yield from flat(job)


def flat(data: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    """Yield (dotted key, value) of nested mappings; lists are values. above: text before each key, such as `cluster.`."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", list(value) if isinstance(value, tuple) else value
