"""The loop of `clustersim predictor profile`: most valuable cases first, every row saved as soon as it is measured."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clustersim.errors import ClustersimError, InputError, suggest
from clustersim.predictors.measurements import COLUMNS
from clustersim.profiling import suites, tiny, wholes
from clustersim.profiling.case import Case, Trial, Unavailable
from clustersim.profiling.clock import Clock, Timing, clock
from clustersim.profiling.device import Device
from clustersim.profiling.log import Log
from clustersim.profiling.meter import Meter, Reading, source

SUITES = (*suites.SUITES, *wholes.SUITES)
SAMPLES = 20
SUSTAINED = 10.0
"""Seconds of a sustained run: boards reach their power limit within one, and their temperature's clocks within some."""
SETS = 32
"""Sets of operands at most."""
KEY = ("gpu", "kind", "op", "dtype", "layout", "batch", "m", "n", "k", "heads", "kv_heads", "causal", "mode", "note")
WHOLE_COLUMNS = (
    *("gpu", "what", "variant", "mode", "model", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq"),
    *("micro_batch", "amount", "tokens", "parameters", "latency_s", "low_s", "high_s", "samples", "tokens_per_s"),
    *("peak_memory_bytes", "clock_mhz", "power_w", "torch", "cuda"),
)
WHOLE_KEY = ("gpu", "what", "variant", "mode", "model", "seq", "micro_batch", "amount")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run measures: suites by name; `seconds` after which it starts nothing new; `quick`: tier 0, bursts only."""

    suites: tuple[str, ...] = SUITES
    seconds: float = float("inf")
    quick: bool = False

    @classmethod
    def of(cls, names: str | None, minutes: float | None, quick: bool) -> Plan:
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


class Bench:
    """A device with its clock and the two files that rows go to."""

    def __init__(self, device: Device, out: Path, say: Callable[[str], None]) -> None:
        self.device, self.say = device, say
        self.kernels = Log(out, COLUMNS, KEY)
        self.wholes = Log(wholes_file(out), WHOLE_COLUMNS, WHOLE_KEY)
        self.clock: Clock = clock(device)
        self.look = source(device.real)

    def run(self, plan: Plan) -> int:
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

    def _tried(self, one: Case | Trial, plan: Plan) -> Iterator[str]:
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

    def _one(self, one: Case | Trial, plan: Plan) -> Iterator[str]:
        if isinstance(one, Trial):
            return self._trial(one)
        return self._case(one, plan.quick)

    def _case(self, case: Case, quick: bool) -> Iterator[str]:
        modes = ("burst", "sustained") if case.sustained and not quick else ("burst",)
        missing = [mode for mode in modes if self._kernel_row(case, mode) not in self.kernels]
        if not missing:
            return
        build = importlib.import_module(f"clustersim.profiling.runners.{case.runner}").build
        with self.clock.scope():
            launches = [build(case, self.device) for _ in range(self._sets(case))]
        for mode in missing:
            timing, reading = self._burst(launches) if mode == "burst" else self._sustained(launches)
            self.kernels.append(self._kernel_row(case, mode) | _measured(timing, reading))
            yield _rate(case, mode, timing, reading)

    def _sets(self, case: Case) -> int:
        """Return how many sets of operands there are: more than the L2 cache holds, far less than the memory."""
        bytes_ = max(case.kernel.bytes, 1.0)
        return int(np.clip(min(2 * self.device.l2, self.device.memory / 8) / bytes_ + 1, 1, SETS))

    def _burst(self, launches: Sequence[Callable[[], object]]) -> tuple[Timing, Reading]:
        timing = self.clock.time(launches, SAMPLES)
        return timing, self.look() if self.look else Reading()

    def _sustained(self, launches: Sequence[Callable[[], object]]) -> tuple[Timing, Reading]:
        with Meter(self.look) as meter:
            chunks = self.clock.stretch(launches, SUSTAINED if self.device.real else 0.02)
        late = chunks[len(chunks) // 2 :]
        return Timing(float(np.median(late)), min(late), max(late), len(late)), meter.reading(skip=0.5)

    def _kernel_row(self, case: Case, mode: str) -> dict[str, object]:
        kernel = case.kernel._asdict() | {"flop": float(case.kernel.flop), "bytes": float(case.kernel.bytes)}
        return kernel | self._place() | {"layout": case.layout, "mode": mode, "note": case.note}

    def _trial(self, trial: Trial) -> Iterator[str]:
        row = self._trial_row(trial)
        if row in self.wholes:
            return
        run = importlib.import_module(f"clustersim.profiling.trials.{trial.what}").run
        with Meter(self.look) as meter:
            found = run(trial, self.device, self.clock)
        timing, reading = Timing(*(found.pop(field) for field in Timing._fields)), meter.reading()
        if found.get("tokens"):
            found["tokens_per_s"] = found["tokens"] / timing.seconds
        self.wholes.append(row | found | _measured(timing, reading))
        speed = f", {found['tokens_per_s']:,.0f} tokens/s" if "tokens_per_s" in found else ""
        peak = f", {found['peak_memory_bytes'] / 2**30:.1f} GiB" if found.get("peak_memory_bytes") else ""
        yield f"{timing.seconds * 1e3:.4g} ms{speed}{peak}"

    def _trial_row(self, trial: Trial) -> dict[str, object]:
        model = trial.model._asdict() | {"model": trial.model.name} if trial.model else {}
        facts = {key: value for key, value in trial._asdict().items() if key != "model" and value not in ("", 0)}
        return {**model, **facts, "mode": trial.mode, **self._place()}

    def _place(self) -> dict[str, Any]:
        return {"gpu": self.device.gpu, "torch": self.device.torch, "cuda": self.device.cuda}


def wholes_file(out: Path) -> Path:
    """Return where layers, steps and launches go: `kernels_steps.csv` beside `kernels.csv`."""
    return out.with_name(f"{out.stem}_steps{out.suffix}")


def name(one: Case | Trial) -> str:
    """Return a case or trial in a few words."""
    if isinstance(one, Trial):
        model = f"{one.model.name} seq {one.seq} × {one.micro_batch}" if one.model else ""
        parts: tuple[str, ...] = (
            one.what,
            model,
            one.mode if one.model else "",
            one.variant,
            f"{one.amount:,}" if one.amount else "",
        )
    else:
        k = one.kernel
        shape = "×".join(str(size) for size in (k.batch, k.m, k.n, k.k) if size)
        parts = (k.kind, k.op, k.dtype, one.layout, shape, one.note)
    return " ".join(part for part in parts if part)


def _measured(timing: Timing, reading: Reading) -> dict[str, object]:
    times: dict[str, object] = {
        "latency_s": timing.seconds,
        "low_s": timing.low,
        "high_s": timing.high,
        "samples": timing.samples,
    }
    return times | {"clock_mhz": reading.clock, "power_w": reading.power}


def _rate(case: Case, mode: str, timing: Timing, reading: Reading) -> str:
    kernel = case.kernel
    compute, moved = kernel.flop / timing.seconds / 1e12, kernel.bytes / timing.seconds / 1e9
    speed = f"{compute:.4g} TFLOP/s" if kernel.kind in _MATRIX else f"{moved:.4g} GB/s"
    watts = f", {reading.clock:.0f} MHz, {reading.power:.0f} W" if mode == "sustained" and reading.power > 0 else ""
    return f"{timing.seconds * 1e6:.4g} us, {speed}{watts}" + (" sustained" if mode == "sustained" else "")


_MATRIX: Iterable[str] = ("linear", "bmm", "grouped_gemm", "flash_attention")
