"""Comparison of a forecast with a trace of the step: seconds by kernel class, by collective, exposed communication, idle time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from clustersim.engine.groups import roles
from clustersim.engine.program import COMPUTE, Span
from clustersim.errors import InputError
from clustersim.explain.gpu_trace import MeasuredStep
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Collective
from clustersim.parallel.optimizer import UPDATES
from clustersim.simulation import StepResult

CLASS_OF = {
    "linear": "products",
    "bmm": "products",
    "grouped_gemm": "products",
    "flash_attention": "attention",
    "softmax": "norm and softmax",
    "layernorm": "norm and softmax",
    "elementwise": "element-wise and memory",
    "memory": "element-wise and memory",
}
"""{kind of kernel: class in a trace}"""
OP_OF = {"dispatch": "all_to_all", "combine": "all_to_all"}
"""{collective: the one that NCCL runs for it}, if these differ."""


class TraceRow(NamedTuple):
    """A row: seconds of the forecast, seconds of the trace, and their ratio."""

    name: str
    forecast: float
    trace: float

    @property
    def ratio(self) -> float | None:
        """Trace over forecast; None if nothing was forecast."""
        return self.trace / self.forecast if self.forecast else None


@dataclass(frozen=True, slots=True)
class TraceComparison:
    """A forecast and a trace of the same step."""

    result: StepResult
    trace: MeasuredStep
    rank: int
    """Rank of the forecast."""

    @property
    def rows(self) -> dict[str, list[TraceRow]]:
        """Rows by section: the step, kernels by class, communication by collective."""
        parts = self.result.parts[self._cell]
        exposed = sum(s for name, s in parts.items() if name not in ("compute", "optimizer", "bubble", "host"))
        idle = parts["bubble"] + parts.get("host", 0.0)
        step_rows = [
            TraceRow("step", self.result.record.end, self.trace.step_time),
            TraceRow("exposed communication", exposed, self.trace.exposed),
            TraceRow("idle", idle, self.trace.idle),
        ]
        kinds = {name: seconds for name, seconds in self.trace.by_class.items() if name != "communication"}
        return {
            "the step": step_rows,
            "kernels": _comparison_rows(self._kernels(), kinds),
            "communication": _comparison_rows(self._collectives(), self.trace.by_collective),
        }

    def facts(self) -> dict[str, Any]:
        """Return {section: rows of `name`, `forecast_s`, `trace_s`, `ratio`}, `rank`, `trace_gaps`, … as JSON data."""
        rows = {
            section: [
                {"name": row.name, "forecast_s": row.forecast, "trace_s": row.trace, "ratio": row.ratio} for row in part
            ]
            for section, part in self.rows.items()
        }
        trace = self.trace
        return {
            "rank": self.rank,
            "steps_in_trace": trace.steps,
            "on_gpu": trace.on_gpu,
            **{section.replace("the ", ""): part for section, part in rows.items()},
            "trace_by_stream_s": dict(trace.by_stream),
            "trace_gaps": {"count": trace.gaps, "longest_s": trace.longest_gap},
        }

    @property
    def _cell(self) -> int:
        """Index of the class of ranks that was simulated for the rank."""
        return int(self.result.plan.network.cells.ranks.of[self.rank])

    def _kernels(self) -> dict[str, float]:
        """Return {class: seconds} of the rank's kernels."""
        work = self.result.work
        script = work.scripts[int(roles(work.job)[self.rank])]
        slowdown = float(self.result.topology.slowdown[work.gpus[self.rank]])
        seconds = work.seconds[int(self.result.topology.kind_of(work.gpus[self.rank]))]
        sums: defaultdict[str, float] = defaultdict(float)
        tasks = (task for key, _ in script.passes() for task in script.layout.parts[key])
        for kernel in (item for task in tasks for item in task.items if isinstance(item, Kernel)):
            name = "optimizer" if kernel.op in UPDATES else CLASS_OF[kernel.kind]
            sums[name] += seconds[kernel] * slowdown
        return dict(sums)

    def _collectives(self) -> dict[str, float]:
        """Return {collective: seconds} of the rank's communication, without waiting for peers."""
        sums: defaultdict[str, float] = defaultdict(float)
        for span in self.result.record.spans:
            if span.rank == self._cell:
                for op, seconds in self._moved(span):
                    sums[OP_OF.get(op, op)] += seconds
        return dict(sums)

    def _moved(self, span: Span) -> Iterator[tuple[str, float]]:
        """Yield (collective, seconds) of a span. Those inside a pass share its remaining time by their idle times."""
        if span.stream in ("wait", "host") or span.activity is None:
            return
        took = span.end - span.start
        if span.stream != COMPUTE:
            yield span.kind, took
            return
        source = span.activity.timing.source
        calls = [item for item in source.items if isinstance(item, Collective)] if source else []
        idle = [
            sum(flow.idle for flow in source.flows[call]) if source and call in source.flows else 0.0 for call in calls
        ]
        rest, total = max(took - span.activity.timing.compute, 0.0), sum(idle) or 1.0
        yield from ((call.op, rest * seconds / total) for call, seconds in zip(calls, idle, strict=True))


def _comparison_rows(forecast: Mapping[str, float], trace: Mapping[str, float]) -> list[TraceRow]:
    """Return rows for {name: seconds} of both, the longest first, then their sums as `all` if several."""
    names = dict.fromkeys((*forecast, *trace))
    rows = [TraceRow(name, forecast.get(name, 0.0), trace.get(name, 0.0)) for name in names]
    total = (
        [TraceRow("all", sum(row.forecast for row in rows), sum(row.trace for row in rows))] if len(rows) > 1 else []
    )
    return [*sorted(rows, key=lambda row: -max(row.forecast, row.trace)), *total]


def comparison(result: StepResult, trace: MeasuredStep, rank: int | None) -> TraceComparison:
    """Pair a forecast with a trace. rank: of the forecast; None: the trace's, or 0. Raises InputError if it is unknown."""
    chosen = rank if rank is not None else trace.rank or 0
    if not 0 <= chosen < result.job.mesh.size:
        raise InputError(f"--rank {chosen}: the job has the ranks 0 to {result.job.mesh.size - 1}; give one of them")
    return TraceComparison(result, trace, chosen)
