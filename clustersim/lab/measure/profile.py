"""The loop of `clustersim lab profile`: the most valuable cases first, and each row saved at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clustersim.errors import ClustersimError, InputError, suggest
from clustersim.lab.data.own_measurements import COLUMNS
from clustersim.lab.measure import cases, log
from clustersim.lab.measure.cases import SUITES, TRIALS, Case, DutyCase, Trial, Unavailable
from clustersim.lab.measure.device import BoardMeter, Device, Reading, median_reading, source
from clustersim.lab.measure.timing import Chunk, CudaClock, KernelLaunch, Timing, summary

WorkItem = Case | DutyCase | Trial


DUTY = "duty"
EVERY = (*SUITES, *TRIALS, DUTY)
"""All suites, the default of a run."""


@dataclass(frozen=True, slots=True)
class MeasurementPlan:
    """Suites of a run, `seconds` after which nothing new starts, and `quick`: only tier 0."""

    suites: tuple[str, ...] = EVERY
    seconds: float = float("inf")
    quick: bool = False

    @classmethod
    def of(cls, names: str | None, minutes: float | None, quick: bool) -> MeasurementPlan:
        """Return the plan of a command line: suites (`names` with commas, None: all), minutes, `quick`. Raises InputError."""
        chosen = tuple(one.strip() for one in names.split(",")) if names else EVERY
        for suite in chosen:
            if suite not in EVERY:
                raise InputError(f"--suite: {suite!r} is not a suite; {suggest(suite, EVERY)}")
        if minutes is not None and not 0 < minutes < 1e6:
            raise InputError(f"--minutes is {minutes:g}; write a number above 0")
        return cls(chosen, 60 * minutes if minutes else float("inf"), quick)

    def work(self) -> list[WorkItem]:
        """Return the cases and trials, the lowest tier first."""
        every: list[WorkItem] = [
            *(cases.duties() if DUTY in self.suites else ()),
            *cases.cases(self.suites),
            *cases.trials(self.suites),
        ]
        return sorted((one for one in every if one.tier == 0 or not self.quick), key=lambda one: one.tier)


SAMPLES = 20
SETS = 32
"""Largest number of sets of operands."""


class Bench:
    """A device with its clock and the four files of its rows. `say` receives each line of progress."""

    def __init__(self, device: Device, out: Path, say: Callable[[str], None]) -> None:
        self.device, self.say = device, say
        self.kernels = log.MeasurementLog(out, COLUMNS, log.KEY)
        self.wholes = log.MeasurementLog(wholes_file(out), log.WHOLE_COLUMNS, log.WHOLE_KEY)
        self.clocks = log.MeasurementLog(sibling(out, "clock"), log.CLOCK_COLUMNS, log.CLOCK_KEY)
        self.traces = log.MeasurementLog(sibling(out, "trace"), log.TRACE_COLUMNS, log.TRACE_KEY)
        self.clock = CudaClock()
        self.look = source(device.real)

    def run(self, plan: MeasurementPlan) -> int:
        """Measure what the files do not have yet, and return the number of new rows. Cases that cannot run are reported and
        skipped."""
        work, end, before = plan.work(), time.monotonic() + plan.seconds, self._rows()
        for number, one in enumerate(work, 1):
            if time.monotonic() > end:
                self.say(f"time is up after {number - 1} of {len(work)}; run again to go on")
                break
            head = f"[{number}/{len(work)}] {log.name(one)}"
            for text in self._tried(one):
                self.say(f"{head} {text}")
            self.device.release()
        return self._rows() - before

    def _tried(self, item: WorkItem) -> Iterator[str]:
        """Yield a line per measured row, nothing for what the files have, or the reason without a row.

        A kernel that a GPU or torch refuses must not end the run.
        """
        try:
            if isinstance(item, Trial):
                yield from self._trial(item)
            else:
                yield from self._duty(item) if isinstance(item, DutyCase) else self._case(item)
        except ClustersimError:
            raise  # a file that cannot be written
        except Unavailable as reason:
            yield f"left out: {reason}"
        except Exception as error:
            yield f"left out: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"

    def _rows(self) -> int:
        """Return the number of rows in the files of kernels, steps and clocks."""
        return len(self.kernels.known) + len(self.wholes.known) + len(self.clocks.known)

    def _case(self, case: Case) -> Iterator[str]:
        """Measure a kernel in short bursts, and append its row. Yield its speed; nothing if its row is known."""
        row = log.kernel_row(case, "burst", self.device)
        if row not in self.kernels:
            timing = self.clock.time(self._launches(case), SAMPLES)
            self.kernels.append(row | log.measured(timing, Reading()))
            yield log.rate(case, "burst", timing, Reading())

    def _duty(self, duty: DutyCase) -> Iterator[str]:
        """Measure a kernel in a burst and over time, and append the rows. Yield both speeds; nothing of what is known."""
        yield from self._case(duty.case)
        cells = {"duty": float(duty.share), "filler": duty.filler}
        row = log.kernel_row(duty.case, "", self.device) | cells
        if row in self.clocks:
            return
        launches = self._launches(duty.case)
        with BoardMeter(self.look, FAST) as meter:
            begin, chunks = self.clock.series(launches, duty.share, duty.filler, duty.seconds)
        late = [chunk.seconds for chunk in chunks if chunk.start > duty.seconds / 2] or [chunks[-1].seconds]
        for measured in time_rows(chunks, [at - begin for at in meter.times], meter.readings):
            self.clocks.append(row | measured)
        reading = meter.reading(since=begin + duty.seconds / 2)
        yield log.rate(duty.case, "sustained", summary(late), reading)

    def _launches(self, case: Case) -> list[KernelLaunch]:
        """Return a launch of a kernel for each set of its operands: more than the L2 cache holds, far less than the memory."""
        from clustersim.lab.measure.runners import BUILDERS

        cached = min(2 * self.device.l2, self.device.memory / 8)
        sets = int(np.clip(cached / max(case.kernel.bytes, 1.0) + 1, 1, SETS))
        with self.clock.scope():
            return [BUILDERS[case.runner](case, self.device) for _ in range(sets)]

    def _trial(self, trial: Trial) -> Iterator[str]:
        """Measure a layer, a step, a launch or a copy, and append its row. Yield its time; nothing if its row is known."""
        from clustersim.lab.measure.trials import RUNS

        row = log.trial_row(trial, self.device)
        if row in self.wholes:
            return
        with BoardMeter(self.look) as meter:
            found = RUNS[trial.what](trial, self.device, self.clock)
        timing = Timing(*(found.pop(field) for field in Timing._fields))
        reading = meter.reading(*found.pop("between", ()))
        for kernel in found.pop("kernels", ()):
            self.traces.append(row | kernel)
        if found.get("tokens"):
            found["tokens_per_s"] = found["tokens"] / timing.seconds
        self.wholes.append(row | found | log.measured(timing, reading))
        speed = f", {found['tokens_per_s']:,.0f} tokens/s" if "tokens_per_s" in found else ""
        peak = f", {found['peak_memory_bytes'] / 2**30:.1f} GiB" if found.get("peak_memory_bytes") else ""
        yield f"{timing.seconds * 1e3:.4g} ms{speed}{peak}"


FAST = 0.01
"""Seconds between two readings of the board during a run over time."""
EARLY, FINE, COARSE = 1.0, 0.05, 0.5
"""Rows of a run over time cover `FINE` seconds during the first `EARLY` seconds, then `COARSE`."""


def time_rows(
    chunks: Sequence[Chunk], times: Sequence[float], readings: Sequence[Reading]
) -> Iterator[dict[str, object]]:
    """Yield {column of CLOCK_COLUMNS: value} for each interval with chunks. times: seconds since the start of each reading."""

    def piece(at: float) -> tuple[float, float]:
        """Return the start and length, in seconds, of the interval that contains the time `at`."""
        width = FINE if at < EARLY else COARSE
        return np.floor(at / width) * width, width

    pieces = dict.fromkeys(piece(chunk.start) for chunk in chunks)
    for begin, width in pieces:
        inside = [chunk for chunk in chunks if piece(chunk.start) == (begin, width)]
        reading = median_reading([one for at, one in zip(times, readings, strict=False) if begin <= at < begin + width])
        yield {
            "t_s": float(begin + width / 2),
            "latency_s": float(np.median([chunk.seconds for chunk in inside])),
            "busy": float(np.mean([chunk.busy for chunk in inside])),
            **dict(zip(("clock_mhz", "power_w", "temperature_c", "reasons"), reading, strict=True)),
        }


def sibling(out: Path, content: str) -> Path:
    """Return the path of a file for rows `content`: `kernels_clock.csv` for `kernels.csv` and `clock`."""
    return out.with_name(f"{out.stem}_{content}{out.suffix}")


def wholes_file(out: Path) -> Path:
    """Return the path for layers, steps and launches: `kernels_steps.csv` for `kernels.csv`."""
    return sibling(out, "steps")
