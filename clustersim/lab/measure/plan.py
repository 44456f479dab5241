"""What a run measures, in which order."""

from __future__ import annotations

from dataclasses import dataclass

from clustersim.errors import InputError, suggest
from clustersim.lab.measure import suites, tiny, wholes
from clustersim.lab.measure.case import Case, Trial

SUITES = (*suites.SUITES, *wholes.SUITES)


@dataclass(frozen=True, slots=True)
class MeasurementPlan:
    """What a run measures: suites by name; `seconds` after which it starts nothing new; `quick`: tier 0, bursts only."""

    suites: tuple[str, ...] = SUITES
    seconds: float = float("inf")
    quick: bool = False

    @classmethod
    def of(cls, names: str | None, minutes: float | None, quick: bool) -> MeasurementPlan:
        """Return the plan of a command line: suites separated by commas, minutes. Raises InputError."""
        chosen = tuple(name.strip() for name in names.split(",")) if names else SUITES
        for name in chosen:
            if name not in SUITES:
                raise InputError(f"--suite: {name!r} is no suite; {suggest(name, SUITES)}")
        if minutes is not None and not 0 < minutes < 1e6:
            raise InputError(f"--minutes is {minutes:g}; write a number above 0")
        return cls(chosen, 60 * minutes if minutes else float("inf"), quick)

    def work(self, small: bool) -> list[Case | Trial]:
        """Return the cases and trials, tier by tier; `small` ones for a CPU."""
        cases: list[Case | Trial] = [*suites.cases(self.suites)]
        both = [one for one in (*cases, *wholes.trials(self.suites)) if one.tier == 0 or not self.quick]
        both = tiny.distinct(both) if small else both
        return sorted(both, key=lambda one: one.tier)
