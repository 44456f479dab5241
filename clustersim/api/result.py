"""Results for scripts and notebooks: of a step, a sweep, an explanation, a comparison, a search and a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any

from clustersim import simulation
from clustersim.errors import InputError
from clustersim.optimization.search import SearchResult
from clustersim.optimization.why import why
from clustersim.planning.answer import Answer
from clustersim.sweeps.evaluate import Row, named
from clustersim.sweeps.space import Point
from clustersim.sweeps.table import frame, ranked
from clustersim.units import scaled, seconds

if TYPE_CHECKING:
    import polars as pl

    from clustersim.explain.differences import Comparison
    from clustersim.explain.explanation import Explanation
    from clustersim.planning.planner import TrainingPlan
    from clustersim.question import StepQuestion
    from clustersim.report.parquet import TableColumns


def _frame(columns: TableColumns) -> pl.DataFrame:
    """Return a table as polars reads it from its parquet file."""
    import polars as pl

    from clustersim.report.parquet import encoded

    return pl.read_parquet(BytesIO(encoded(columns)))


@dataclass(frozen=True, slots=True)
class Result:
    """One simulated training step. `found` has everything that the simulation recorded."""

    found: simulation.StepResult
    question: StepQuestion | None = None
    """The simulated question; None for a cluster that the caller has built."""

    @property
    def summary(self) -> dict[str, Any]:
        """Content of `summary.json`; keys carry their units."""
        return self.found.summary

    @property
    def step_time(self) -> float:
        """Simulated seconds of one training step."""
        return float(self.summary["step_time_s"])

    @property
    def expected_step_time(self) -> float:
        """Expected seconds of a step: the simulated time, corrected by the median error on published steps of its kind."""
        return float(self.summary["expected_step_time_s"])

    @property
    def interval(self) -> tuple[float, float] | None:
        """Seconds (low, high) between which 80 % of published steps of this kind lie; None without such steps."""
        low, high = self.summary["step_time_low_s"], self.summary["step_time_high_s"]
        return None if low is None or high is None else (float(low), float(high))

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all GPUs of the job."""
        return float(self.summary["tokens_per_s"])

    @property
    def mfu(self) -> float:
        """Model FLOP/s divided by the peak of the GPUs used, from 0 to 1."""
        return float(self.summary["mfu"])

    @property
    def memory(self) -> float:
        """Peak memory of the fullest GPU in bytes."""
        return float(self.summary["memory"]["peak_bytes"])

    @property
    def fits(self) -> bool:
        """Whether the job likely fits: more than half of published runs at this memory level succeeded."""
        return bool(self.summary["memory"]["fits"])

    @property
    def breakdown(self) -> dict[str, float]:
        """{part: seconds of the step}, mean of all ranks."""
        return dict(self.summary["breakdown_s"])

    @property
    def critical_path(self) -> dict[str, float]:
        """{part: seconds} of the chain of work over many ranks that sets the length of the step."""
        return dict(self.summary["critical_path_s"])

    @property
    def spans(self) -> pl.DataFrame:
        """Activities of all ranks, one row per span, as in `spans.parquet`. Built on access."""
        from clustersim.report.tables import spans_table

        return _frame(spans_table(self.found.record))

    @property
    def links(self) -> pl.DataFrame:
        """Traffic of each directed link that carried bytes, one row per link, as in `links.parquet`. Built on access."""
        from clustersim.report.tables import links_table

        return _frame(links_table(self.found.record))

    def explain(self) -> ExplainResult:
        """Return why the step takes as long as it does and what would shorten it, as `clustersim explain`.

        Every what-if is simulated. Raises InputError for a cluster that the caller has built.
        """
        from clustersim.explain.explanation import explained

        return ExplainResult(explained(self._question, known=self.found))

    def compare(self, *others: Result) -> CompareResult:
        """Return the differences between this result and others, as `clustersim compare`. Raises InputError as `explain`."""
        from clustersim.explain.differences import Comparison, from_step

        results = enumerate((self, *others), 1)
        steps = [from_step(f"result {number}", result._question, result.summary) for number, result in results]
        return CompareResult(Comparison(tuple(steps)))

    @property
    def _question(self) -> StepQuestion:
        """The simulated question. Raises InputError for a cluster that the caller has built."""
        if self.question is None:
            raise InputError("the cluster was built before; give cs.simulate a file, a shipped name or a mapping")
        return self.question

    def __repr__(self) -> str:
        """Return the main figures in one line."""
        return f"Result({self._title}: {', '.join(f'{name} {text}' for name, text in self._figures.items())})"

    def _repr_html_(self) -> str:
        """Return the main figures as an HTML table for notebooks."""
        cells = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in self._figures.items())
        return f"<table><caption>{escape(self._title)}</caption>{cells}</table>"

    @property
    def _title(self) -> str:
        """Name of the job and of the cluster."""
        return f"{self.summary['name']} on {self.summary['cluster']['name']}"

    @property
    def _figures(self) -> dict[str, str]:
        """{name: text} of the main figures."""
        return {
            "step time": seconds(self.expected_step_time),
            "throughput": f"{self.tokens_per_s:,.0f} tokens/s",
            "MFU": f"{self.mfu:.1%}",
            "memory": f"{scaled(self.memory, 'B')} ({self.summary['memory']['verdict']})",
        }


@dataclass(frozen=True, slots=True)
class ExplainResult:
    """Why a step takes as long as it does. `print` shows it as `clustersim explain` does."""

    found: Explanation

    @property
    def what_ifs(self) -> pl.DataFrame:
        """One row per what-if, the shortest step first: `name`, `step_time_s`, `gain_s`, `flags` that apply it, and `note`."""
        import polars as pl

        rows = self.found.facts()["what_ifs"]
        return pl.DataFrame(
            [{key: row[key] for key in ("name", "step_time_s", "gain_s", "flags", "note")} for row in rows]
        )

    def __str__(self) -> str:
        """Return the explanation as lines of text."""
        from clustersim.explain.text import lines

        return "\n".join(lines(self.found))


@dataclass(frozen=True, slots=True)
class CompareResult:
    """Differences between results. `print` shows them as `clustersim compare` does."""

    found: Comparison

    @property
    def differences(self) -> dict[str, tuple[object, ...]]:
        """{key: value of each result} of the keys that differ."""
        return self.found.differences

    def __str__(self) -> str:
        """Return the differences as lines of text."""
        from clustersim.explain.text import compared

        return "\n".join(compared(self.found))


class _Table:
    """A result whose table `points` notebooks show."""

    points: Any

    def _repr_html_(self) -> str:
        """Return the table as HTML for notebooks."""
        return str(self.points._repr_html_())


@dataclass(frozen=True, slots=True)
class SweepResult(_Table):
    """All points of a sweep."""

    asked: tuple[Point, ...]
    """Overrides of each point by dotted key, in the order of the axes, the last axis fastest."""
    rows: tuple[Row, ...]
    """One row per point of the sweep. `status`: ok, illegal, does not fit or failed; `reason`: why a point has no result."""

    @property
    def points(self) -> pl.DataFrame:
        """All points as in `points.parquet`, the fastest per token first, those without a result last. Built on access."""
        return frame(self.rows)

    @property
    def best(self) -> dict[str, Any]:
        """Keywords of the fastest point, for `simulate`. Raises InputError with a reason if no point has a result."""
        order = ranked(self.rows)
        if not order:
            reason = f"the first one: {self.rows[0]['reason']}" if self.rows else "it has no points"
            raise InputError(f"no point of the sweep has a result; {reason}")
        first = next(i for i, row in enumerate(self.rows) if row is order[0])
        return named(self.asked[first])

    def __repr__(self) -> str:
        """Return the number of points and the best one in one line."""
        order = ranked(self.rows)
        best = f", the best {seconds(order[0]['expected_step_time_s'])} with {self.best}" if order else ""
        return f"SweepResult({len(self.rows)} points, {len(order)} with a result{best})"


@dataclass(frozen=True, slots=True)
class OptimizeResult(_Table):
    """The best splits of a search. `found` has the numbers of bounded, simulated and excluded splits."""

    found: SearchResult

    @property
    def rows(self) -> list[Row]:
        """The best splits in order, with the columns of a sweep, and `why` each is behind the first."""
        best, goal = self.found.best, self.found.goal
        return [{**s.row, "why": why(best[0].row, s.row, goal) if place else ""} for place, s in enumerate(best)]

    @property
    def points(self) -> pl.DataFrame:
        """The rows as a polars table."""
        return frame(self.rows)

    @property
    def best(self) -> dict[str, Any]:
        """Keywords of the best split, for `simulate`."""
        return named(self.found.best[0].point)


@dataclass(frozen=True, slots=True)
class PlanResult(_Table):
    """The plan of each kind of cluster, the best first. `found` has all details."""

    found: Answer

    @property
    def days(self) -> float:
        """Days of the best plan, including failures and checkpoints."""
        return self.found.plans[0][1].days

    @property
    def nodes(self) -> int:
        """Number of nodes of the best plan, without spares."""
        return self.found.plans[0][1].nodes

    @property
    def usd(self) -> float | None:
        """Rent of the best plan in USD, including spares; None without a known price."""
        return self.found.plans[0][1].usd

    @property
    def best(self) -> dict[str, Any]:
        """Keywords of the best plan's step, for `simulate` on the topology of the plan."""
        return named(self.found.plans[0][1].point)

    @property
    def points(self) -> pl.DataFrame:
        """One row per kind of cluster, the best first: days, nodes, cost and energy of its plan, and the columns of its step."""
        return _plans(self.found.plans)

    @property
    def front(self) -> pl.DataFrame:
        """One row, as in `points`, per plan that no other beats, the smallest first; empty without `pareto=True`."""
        return _plans(self.found.front)


def _plans(plans: Sequence[tuple[Point, TrainingPlan]]) -> pl.DataFrame:
    """Return one row per plan: its days, size, goodput, costs and energy, and the columns of its step."""
    import polars as pl

    def row(plan: TrainingPlan) -> Row:
        size = {"days": plan.days, "nodes": plan.nodes, "spares": plan.goodput.spares, "goodput": plan.goodput.share}
        return size | {key: getattr(plan, key) for key in ("usd", "usd_owned", "kwh", "co2_kg")} | plan.row

    return pl.DataFrame([row(plan) for _, plan in plans])
