"""The loop of `clustersim lab profile`: most valuable cases first, every row saved as soon as it is measured."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from clustersim.errors import ClustersimError
from clustersim.lab.data.own_measurements import COLUMNS
from clustersim.lab.measure.case import Case, Trial, Unavailable
from clustersim.lab.measure.clock import clock
from clustersim.lab.measure.device import Device
from clustersim.lab.measure.log import MeasurementLog
from clustersim.lab.measure.meter import BoardMeter, Reading, source
from clustersim.lab.measure.plan import MeasurementPlan
from clustersim.lab.measure.rows import KEY, WHOLE_COLUMNS, WHOLE_KEY, kernel_row, measured, name, rate, trial_row
from clustersim.lab.measure.timing import Clock, KernelLaunch, Timing

SAMPLES = 20
SUSTAINED = 10.0
"""Seconds of a sustained run: boards reach their power limit within one, and their temperature's clocks within some."""
SETS = 32
"""Sets of operands at most."""


class Bench:
    """A device with its clock and the two files that rows go to."""

    def __init__(self, device: Device, out: Path, say: Callable[[str], None]) -> None:
        self.device, self.say = device, say
        self.kernels = MeasurementLog(out, COLUMNS, KEY)
        self.wholes = MeasurementLog(wholes_file(out), WHOLE_COLUMNS, WHOLE_KEY)
        self.clock: Clock = clock(device)
        self.look = source(device.real)

    def run(self, plan: MeasurementPlan) -> int:
        """Measure what is not there yet and return the number of new rows; what cannot run is said and left out."""
        work, end, before = plan.work(not self.device.real), time.monotonic() + plan.seconds, self._rows()
        for number, one in enumerate(work, 1):
            if time.monotonic() > end:
                self.say(f"time is up after {number - 1} of {len(work)}; run again to go on")
                break
            head = f"[{number}/{len(work)}] {name(one)}"
            for text in self._tried(one, plan):
                self.say(f"{head} {text}")
            self.device.release()
        return self._rows() - before

    def _tried(self, one: Case | Trial, plan: MeasurementPlan) -> Iterator[str]:
        """Yield what is measured, or why it is not: a kernel that a GPU or torch refuses must not end the run."""
        try:
            yield from self._one(one, plan)
        except ClustersimError:
            raise  # a file that cannot be written
        except Unavailable as reason:
            yield f"left out: {reason}"
        except Exception as error:
            yield f"left out: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"

    def _rows(self) -> int:
        return len(self.kernels.known) + len(self.wholes.known)

    def _one(self, one: Case | Trial, plan: MeasurementPlan) -> Iterator[str]:
        if isinstance(one, Trial):
            return self._trial(one)
        return self._case(one, plan.quick)

    def _case(self, case: Case, quick: bool) -> Iterator[str]:
        modes = ("burst", "sustained") if case.sustained and not quick else ("burst",)
        missing = [mode for mode in modes if kernel_row(case, mode, self.device) not in self.kernels]
        if not missing:
            return
        build = importlib.import_module(f"clustersim.lab.measure.runners.{case.runner}").build
        with self.clock.scope():
            launches = [build(case, self.device) for _ in range(self._sets(case))]
        for mode in missing:
            timing, reading = self._sustained(launches) if mode == "sustained" else (self._burst(launches), Reading())
            self.kernels.append(kernel_row(case, mode, self.device) | measured(timing, reading))
            yield rate(case, mode, timing, reading)

    def _sets(self, case: Case) -> int:
        """Return how many sets of operands there are: more than the L2 cache holds, far less than the memory."""
        bytes_ = max(case.kernel.bytes, 1.0)
        return int(np.clip(min(2 * self.device.l2, self.device.memory / 8) / bytes_ + 1, 1, SETS))

    def _burst(self, launches: Sequence[KernelLaunch]) -> Timing:
        return self.clock.time(launches, SAMPLES)

    def _sustained(self, launches: Sequence[KernelLaunch]) -> tuple[Timing, Reading]:
        with BoardMeter(self.look) as meter:
            chunks = self.clock.sustain(launches, SUSTAINED if self.device.real else 0.02)
        late = chunks[len(chunks) // 2 :]
        return Timing(float(np.median(late)), min(late), max(late), len(late)), meter.reading(skip=0.5)

    def _trial(self, trial: Trial) -> Iterator[str]:
        row = trial_row(trial, self.device)
        if row in self.wholes:
            return
        run = importlib.import_module(f"clustersim.lab.measure.trials.{trial.what}").run
        with BoardMeter(self.look) as meter:
            found = run(trial, self.device, self.clock)
        timing, reading = Timing(*(found.pop(field) for field in Timing._fields)), meter.reading()
        if found.get("tokens"):
            found["tokens_per_s"] = found["tokens"] / timing.seconds
        self.wholes.append(row | found | measured(timing, reading))
        speed = f", {found['tokens_per_s']:,.0f} tokens/s" if "tokens_per_s" in found else ""
        peak = f", {found['peak_memory_bytes'] / 2**30:.1f} GiB" if found.get("peak_memory_bytes") else ""
        yield f"{timing.seconds * 1e3:.4g} ms{speed}{peak}"


def wholes_file(out: Path) -> Path:
    """Return where layers, steps and launches go: `kernels_steps.csv` beside `kernels.csv`."""
    return out.with_name(f"{out.stem}_steps{out.suffix}")
