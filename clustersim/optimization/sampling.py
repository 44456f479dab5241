"""The best of spaces that are too large to list: optuna proposes points, lower bounds and simulations judge them.

Nothing is proved here of points that nobody proposed. The sampler is optuna's tree-structured Parzen estimator (Bergstra et al.
2011) with a fixed seed, so the same question has the same answer. A point whose lower bound is worse than what is known already
is not simulated; its bound is what the sampler learns of it.
"""

from __future__ import annotations

from typing import Any

from clustersim import extras
from clustersim.config.overrides import parted
from clustersim.errors import InputError
from clustersim.optimization.best import Answers, Best
from clustersim.optimization.bound import LowerBounds
from clustersim.optimization.candidates import may_fit
from clustersim.optimization.objective import Objective, ObjectiveValue
from clustersim.optimization.refused import Refused
from clustersim.optimization.search import SearchProgress, SearchResult
from clustersim.sweeps.evaluate import SweepInputs, evaluate
from clustersim.sweeps.legal import LegalValues, in_order
from clustersim.sweeps.space import Point, SweepSpace

SEED = 1


def sampled(
    case: SweepInputs,
    asked: SweepSpace,
    wanted: Objective,
    trials: int,
    top: int = 5,
    show: SearchProgress = lambda *_: None,
    anytime: bool = False,
) -> SearchResult:
    """Return the best of `trials` points of a space that a sampler proposes, and what became of the others.

    anytime: Ctrl-C ends the drawing, once something is found. Raises InputError where optuna is not installed, or a key has no
    list of legal values.
    """
    extras.need("optuna", "--trials")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=SEED))
    judge, legal = _Judge(case, wanted, top), LegalValues(case, asked.auto)
    keys = in_order(asked.auto)
    number, gap = 0, None
    try:
        for number in range(trials):
            show(judge.simulated, trials - number)
            trial = study.ask()
            value = judge.value(_drawn(legal, asked, keys, trial))
            if value is None:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            else:
                study.tell(trial, value[0])
    except KeyboardInterrupt:
        if not (anytime and judge.answers.found):
            raise
        gap = 1.0  # nothing is known of what would have been drawn
    left = 0 if gap is None else trials - number
    points, best = len(judge.seen), judge.answers.best()
    return SearchResult(best, points, judge.simulated, judge.bounded, 0, judge.out, wanted.name, left, gap)


def _drawn(legal: LegalValues, asked: SweepSpace, keys: list[str], trial: Any) -> Point:
    """Return the point of a trial; where what it has leaves no legal value for another key, the workload's own says why."""
    point: Point = dict(asked.fixed)
    for key, values in asked.axes.items():
        point[key] = values[trial.suggest_int(key, 0, len(values) - 1)]
    for key in keys:
        try:
            values = legal.of(point, key)
        except InputError:  # no cluster, whatever the others are
            return point
        if not values:
            return point
        point[key] = values[min(int(trial.suggest_float(key, 0.0, 1.0) * len(values)), len(values) - 1)]
    return point


class _Judge:
    """What is known of the points so far."""

    def __init__(self, case: SweepInputs, wanted: Objective, top: int) -> None:
        self.case, self.wanted, self.answers = case, wanted, Answers(top)
        self.seen: dict[str, ObjectiveValue | None] = {}
        self.out = Refused()
        self.bounds: dict[str, LowerBounds] = {}
        self.simulated = self.bounded = 0

    def value(self, point: Point) -> ObjectiveValue | None:
        """Return what is minimized at a point, or its lower bound; None where there is no such step."""
        key = repr(sorted(point.items()))
        if key not in self.seen:
            self.seen[key] = self._judged(point)
        return self.seen[key]

    def _judged(self, point: Point) -> ObjectiveValue | None:
        try:
            least = self._least(point)
        except InputError as error:
            self.out.add("illegal", str(error))
            return None
        if least is None:
            self.out.add("does not fit")
            return None
        if least > self.answers.worst:
            self.bounded += 1
            return least
        row = evaluate(self.case, point)
        if row["status"] != "ok":
            self.out.add(row["status"], row["reason"])
            return None
        self.simulated += 1
        job = self.case.cluster(point).simulator.placed(self.case.job(point))
        value = self.wanted.value(self.case.cluster(point), job, row["step_time_s"])
        if value[0] == float("inf"):
            return None
        self.answers.add(Best(value, (len(self.seen),), point, row))
        return value

    def _least(self, point: Point) -> ObjectiveValue | None:
        """Return the lower bound of what is minimized at a point, None where its memory is proved to be too much."""
        cluster = self.case.cluster(point)
        job = cluster.simulator.placed(self.case.job(point))
        own = self.bounds.setdefault(repr(parted(point)[0]), LowerBounds(cluster.simulator.preparation)).of(job)
        return self.wanted.value(cluster, job, own.step(job)) if may_fit(own, job, cluster) else None
