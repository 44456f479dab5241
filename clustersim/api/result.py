"""What a simulated step, and a sweep, are to a script or a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any

from clustersim import simulation
from clustersim.errors import InputError
from clustersim.optimization.search import SearchResult
from clustersim.optimization.why import why
from clustersim.planning.answer import Answer
from clustersim.sweeps.evaluate import COLUMNS, Row
from clustersim.sweeps.space import Point
from clustersim.sweeps.table import frame, ranked
from clustersim.units import scaled, seconds

if TYPE_CHECKING:
    import polars as pl

    from clustersim.explain.differences import Comparison
    from clustersim.explain.explanation import Explanation
    from clustersim.question import StepQuestion
    from clustersim.report.parquet import TableColumns


def _frame(columns: TableColumns) -> pl.DataFrame:
    """Return a table as polars reads it from its file."""
    import polars as pl

    from clustersim.report.parquet import encoded

    return pl.read_parquet(BytesIO(encoded(columns)))


@dataclass(frozen=True, slots=True)
class Result:
    """One simulated training step; `found` is all that the simulation knows of it."""

    found: simulation.StepResult
    question: StepQuestion | None = None
    """What was simulated; None for a cluster that was built before."""

    @property
    def summary(self) -> dict[str, Any]:
        """What `summary.json` holds, without its top; keys carry their units."""
        return self.found.summary

    @property
    def step_time(self) -> float:
        """Seconds of one training step."""
        return float(self.summary["step_time_s"])

    @property
    def interval(self) -> tuple[float, float] | None:
        """Seconds between which 80 of 100 steps of this kind lie, None where no published step is of its kind."""
        low, high = self.summary["step_time_low_s"], self.summary["step_time_high_s"]
        return None if low is None or high is None else (float(low), float(high))

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second, of all GPUs that the job uses."""
        return float(self.summary["tokens_per_s"])

    @property
    def mfu(self) -> float:
        """Model FLOP/s over the peak of the GPUs used, from 0 to 1."""
        return float(self.summary["mfu"])

    @property
    def memory(self) -> float:
        """Bytes that the fullest GPU holds at its peak."""
        return float(self.summary["memory"]["peak_bytes"])

    @property
    def fits(self) -> bool:
        """Whether that likely fits: more than half of published mappings this full ran."""
        return bool(self.summary["memory"]["fits"])

    @property
    def breakdown(self) -> dict[str, float]:
        """Seconds of a step by what they go to, the mean of all ranks."""
        return dict(self.summary["breakdown_s"])

    @property
    def critical_path(self) -> dict[str, float]:
        """Seconds of the chain of work over many ranks that makes the step as long as it is, by what they go to."""
        return dict(self.summary["critical_path_s"])

    @property
    def spans(self) -> pl.DataFrame:
        """The activities of all ranks, one row a span, as `spans.parquet`; made when asked for."""
        from clustersim.report.tables import spans_table

        return _frame(spans_table(self.found.record, self.found.plan))

    @property
    def links(self) -> pl.DataFrame:
        """What each directed link carried, one row a link that carried something, as `links.parquet`; made when asked for."""
        from clustersim.report.tables import links_table

        return _frame(links_table(self.found.plan, self.found.topology, self.found.record.end))

    def explain(self) -> ExplainResult:
        """Return why the step takes as long as it does, and what would make it shorter, as `clustersim explain`.

        Every what-if is simulated. Raises InputError for a cluster that was built before.
        """
        from clustersim.explain.explanation import explained

        return ExplainResult(explained(self._question, known=self.found))

    def compare(self, *others: Result) -> CompareResult:
        """Return what differs between this result and others, as `clustersim compare`. Raises InputError as `explain`."""
        from clustersim.explain.differences import Comparison, of_step

        steps = [(f"result {n}", one) for n, one in enumerate((self, *others), 1)]
        return CompareResult(Comparison(tuple(of_step(name, one._question, one.summary) for name, one in steps)))

    @property
    def _question(self) -> StepQuestion:
        if self.question is None:
            raise InputError("the cluster was built before; give cs.simulate a file, a shipped name or a mapping")
        return self.question

    def __repr__(self) -> str:
        """Return the figures in one line; all that the simulation knows would be megabytes."""
        return f"Result({self._title}: {', '.join(f'{name} {text}' for name, text in self._figures.items())})"

    def _repr_html_(self) -> str:
        """Return the figures as a table, which notebooks show."""
        cells = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in self._figures.items())
        return f"<table><caption>{escape(self._title)}</caption>{cells}</table>"

    @property
    def _title(self) -> str:
        return f"{self.summary['name']} on {self.summary['cluster']['name']}"

    @property
    def _figures(self) -> dict[str, str]:
        return {
            "step time": seconds(self.step_time),
            "throughput": f"{self.tokens_per_s:,.0f} tokens/s",
            "MFU": f"{self.mfu:.1%}",
            "memory": f"{scaled(self.memory, 'B')} ({self.summary['memory']['verdict']})",
        }


@dataclass(frozen=True, slots=True)
class ExplainResult:
    """Why a step takes as long as it does; `print` shows it as `clustersim explain` does."""

    found: Explanation

    @property
    def what_ifs(self) -> pl.DataFrame:
        """One row a what-if, the shortest step first: `name`, `step_time_s`, `gain_s` and the `flags` that make it."""
        import polars as pl

        rows = self.found.facts()["what_ifs"]
        return pl.DataFrame(
            [{key: row[key] for key in ("name", "step_time_s", "gain_s", "flags", "note")} for row in rows]
        )

    def __str__(self) -> str:
        """Return it as lines of text."""
        from clustersim.explain.text import lines

        return "\n".join(lines(self.found))


@dataclass(frozen=True, slots=True)
class CompareResult:
    """What differs between results; `print` shows it as `clustersim compare` does."""

    found: Comparison

    @property
    def differences(self) -> dict[str, tuple[object, ...]]:
        """The keys that are not the same everywhere, with the value of each result."""
        return self.found.differences

    def __str__(self) -> str:
        """Return it as lines of text."""
        from clustersim.explain.text import compared

        return "\n".join(compared(self.found))


@dataclass(frozen=True, slots=True)
class SweepResult:
    """All points of a sweep."""

    asked: tuple[Point, ...]
    """The overrides of each point by dotted key, in the order of the axes, the last one fastest."""
    rows: tuple[Row, ...]
    """What became of each: `status` is ok, illegal, does not fit or failed, and `reason` says why there is no result."""

    @property
    def points(self) -> pl.DataFrame:
        """All points, fastest per token first and those without a result last, as `points.parquet`; made when asked for."""
        return frame(self.rows)

    @property
    def best(self) -> dict[str, Any]:
        """The keywords of the fastest point, for `cs.simulate`. Raises InputError, with a reason, when no point has a result."""
        order = ranked(self.rows)
        if not order:
            reason = f"the first one: {self.rows[0]['reason']}" if self.rows else "it has no points"
            raise InputError(f"no point of the sweep has a result; {reason}")
        first = next(i for i, row in enumerate(self.rows) if row is order[0])
        return _keywords(self.asked[first])

    def __repr__(self) -> str:
        """Return how many points there are, and the best, in one line."""
        found = ranked(self.rows)
        best = f", the best {seconds(found[0]['step_time_s'])} with {self.best}" if found else ""
        return f"SweepResult({len(self.rows)} points, {len(found)} with a result{best})"

    def _repr_html_(self) -> str:
        """Return the table, which notebooks show."""
        return str(self.points._repr_html_())


@dataclass(frozen=True, slots=True)
class OptimizeResult:
    """The best splits of all that were asked for; `found` has how many were bounded, simulated and out."""

    found: SearchResult

    @property
    def rows(self) -> list[Row]:
        """The best, in order, with the columns of a sweep and `why` each is behind the first."""
        best, goal = self.found.best, self.found.goal
        return [{**one.row, "why": why(best[0].row, one.row, goal) if place else ""} for place, one in enumerate(best)]

    @property
    def points(self) -> pl.DataFrame:
        """The same as a polars table."""
        return frame(self.rows)

    @property
    def best(self) -> dict[str, Any]:
        """The keywords of the best point, for `cs.simulate`."""
        return _keywords(self.found.best[0].point)

    def _repr_html_(self) -> str:
        """Return the table, which notebooks show."""
        return str(self.points._repr_html_())


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The plans of every kind of cluster that was asked for, the best first; `found` has all that is known of them."""

    found: Answer

    @property
    def days(self) -> float:
        """Days of the best plan, failures and checkpoints counted in."""
        return self.found.plans[0][1].days

    @property
    def nodes(self) -> int:
        """Nodes of the best plan, without its spares."""
        return self.found.plans[0][1].nodes

    @property
    def usd(self) -> float | None:
        """USD of the best plan, rented, spares too; None where no price is known."""
        return self.found.plans[0][1].usd

    @property
    def best(self) -> dict[str, Any]:
        """The keywords of the best plan's step, for `cs.simulate` on the topology that was planned for."""
        return _keywords(self.found.plans[0][1].point)

    @property
    def points(self) -> pl.DataFrame:
        """One row a kind of cluster, the best first: what a plan comes to, and the columns of its step."""
        rows = [
            {
                "days": one.days,
                "nodes": one.nodes,
                "spares": one.goodput.spares,
                "goodput": one.goodput.share,
                "usd": one.usd,
                "usd_owned": one.usd_owned,
                "kwh": one.kwh,
                "co2_kg": one.co2_kg,
                **one.row,
            }
            for _, one in self.found.plans
        ]
        import polars as pl

        return pl.DataFrame(rows)

    def _repr_html_(self) -> str:
        """Return the table, which notebooks show."""
        return str(self.points._repr_html_())


def _keywords(point: Point) -> dict[str, Any]:
    return {COLUMNS.get(key, key): value for key, value in point.items()}
