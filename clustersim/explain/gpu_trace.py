"""A trace of PyTorch's profiler (Kineto's Chrome trace): activity on the streams of a GPU, by class of kernel.

The format is that of `torch.profiler.profile(...).export_chrome_trace`, plain or gzipped: complete events (`ph: X`) with `ts` and
`dur` in microseconds; kernels have `cat: kernel` (copies `gpu_memcpy`, `gpu_memset`) with their `stream` in `args`;
`ProfilerStep#n` marks a step; `distributedInfo` says the rank. A trace of a CPU alone has operators (`cat: cpu_op`), which nest.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from clustersim.errors import InputError
from clustersim.files import read_bytes
from clustersim.report.jobs import merged

LATEST = 1e18
"""Largest time in microseconds, and largest rank, in a trace."""
MOST = 2 * 2**30
"""Largest size of a trace in bytes, compressed or not."""
SMALL, DENSEST = 32 * 2**20, 100
"""Bytes that are always unpacked, and the largest compression ratio of a trace; torch.profiler's have 10 to 25."""
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
CLASSES = {
    "communication": r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|c10d::",
    "optimizer": r"multi_tensor_apply|fused_?adam|_foreach|optimizer|lamb(?!da)|Optimizer\.step",
    "attention": r"flash|fmha|attention|sdpa|mha_",
    "products": r"gemm|cutlass|cublas|xmma|nvjet|wgmma|addmm|::mm|::bmm|matmul|::linear|conv",
    "norm and softmax": r"norm|softmax|nll_loss|cross_?entropy",
    "element-wise and memory": r"elementwise|vectorized|reduce|copy|fill|memcpy|memset|gelu|silu|relu|add|mul|div|sub|cat|index|"
    r"embedding|triton|dropout|sum|zero|transpose|permute|empty|rand|view|reshape|expand|pow|sqrt|tanh|exp",
}
"""{class: pattern in the names of its kernels, in any case}; the first match counts."""
OTHER = "other"
_CLASS = {name: re.compile(text, re.IGNORECASE) for name, text in CLASSES.items()}
COLLECTIVES = {
    "all_reduce": r"all_?reduce",
    "all_gather": r"all_?gather",
    "reduce_scatter": r"reduce_?scatter",
    "all_to_all": r"all_?to_?all",
    "broadcast": r"broadcast",
    "send": r"send|recv",
}
_OPS = {name: re.compile(text, re.IGNORECASE) for name, text in COLLECTIVES.items()}
_STEP = re.compile(r"ProfilerStep#\d+")


class Ran(NamedTuple):
    """An activity, with times in seconds of the trace."""

    stream: str
    kind: str
    """Class, such as `products`."""
    op: str
    """Collective of a communication; otherwise empty."""
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """The step in a trace: the mean of the marked steps."""

    rank: int | None
    """Rank of the process, if the trace has it."""
    steps: int
    """Number of marked steps; 0: none, and the whole trace counts as one step."""
    on_gpu: bool
    """Whether the trace has kernels of a GPU; if not, operators of a CPU."""
    step_time: float
    by_class: Mapping[str, float]
    """{class: seconds of its kernels}, over all streams."""
    by_collective: Mapping[str, float]
    by_stream: Mapping[str, float]
    exposed: float
    """Seconds of communication without concurrent computation."""
    idle: float
    """Seconds without any activity."""
    gaps: int
    """Number of idle intervals per step."""
    longest_gap: float
    """Seconds of the longest idle interval."""


def measured(path: Path) -> MeasuredStep:
    """Return the measured step in a trace. Raises InputError for another file, or a trace without kernels and operators."""
    data = _read(path)
    events = [event for item in data["traceEvents"] if (event := _event(item))]
    marks = _marks(events)
    kernels = [event for event in events if event.category in ON_GPU]
    ran = [_ran(run, run.args, str(run.args.get("stream", run.thread)), run.start, run.end) for run in kernels]
    on_gpu = bool(ran)
    ran = ran or _operators(events)
    if not ran and isinstance(other := data.get("otherData"), dict) and "clustersim" in other:
        raise InputError(f"{path}: is a forecast, which clustersim wrote; give a measured trace, of torch.profiler")
    if not ran:
        raise InputError(
            f"{path}: has neither kernels (cat: kernel) nor operators (cat: cpu_op); profile with torch.profiler"
        )
    first, last = (marks[0][0], marks[-1][1]) if marks else (min(r.start for r in ran), max(r.end for r in ran))
    inside = [item for item in ran if first <= item.start < last]
    if not inside:
        raise InputError(f"{path}: nothing ran between its marks ProfilerStep#…; profile a whole step")
    last = max(last, *(item.end for item in inside)) if len(marks) < 2 else last
    return _summed(inside, first, last, len(marks), on_gpu, _rank(data))


def _read(path: Path) -> dict[str, Any]:
    """Return the trace in a file, gzipped or not, with a list of `traceEvents`. Raises InputError."""
    raw = read_bytes(path, "a trace of torch.profiler", MOST)
    try:
        if raw[:2] == b"\x1f\x8b":
            _check_size(path, raw)
            raw = gzip.decompress(raw)
        data = json.loads(raw)
    except (ValueError, RecursionError, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: not valid JSON ({str(error)[:60]}); give what torch.profiler exports") from error
    data = {"traceEvents": data} if isinstance(data, list) else data
    if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
        raise InputError(f"{path}: has no traceEvents; give what `export_chrome_trace` of torch.profiler writes")
    return data


def _check_size(path: Path, packed: bytes) -> None:
    """Raise InputError for gzip data that unpacks to more than a trace may have, before unpacking it all."""
    size, file = 0, gzip.GzipFile(fileobj=BytesIO(packed))
    while chunk := file.read(1 << 20):
        size += len(chunk)
        if size > MOST:
            raise InputError(f"{path}: has more than {MOST // 2**30} GiB unpacked; profile fewer steps")
        if size > SMALL and size > DENSEST * len(packed):
            known = "give what torch.profiler exports"
            raise InputError(f"{path}: unpacks to over {DENSEST} times its size, as no trace does; {known}")


class TraceEvent(NamedTuple):
    """A complete event of a trace; times in seconds."""

    category: str
    name: str
    thread: str
    start: float
    end: float
    args: Mapping[str, object]


def _event(written: object) -> TraceEvent | None:
    """Return a complete event as written in a trace, with checked types; None for any other."""
    if not isinstance(written, dict) or written.get("ph") != "X":
        return None
    start, took, args = written.get("ts"), written.get("dur"), written.get("args")
    if not isinstance(start, int | float) or not isinstance(took, int | float):
        return None
    if not abs(start) < LATEST or not 0 <= took < LATEST:
        return None
    category, name, thread = (str(written.get(key)) for key in ("cat", "name", "tid"))
    return TraceEvent(category, name, thread, start / 1e6, (start + took) / 1e6, args if isinstance(args, dict) else {})


def _marks(events: Iterable[TraceEvent]) -> list[tuple[float, float]]:
    """Return (start, end) of the marked steps: as seen by the GPU, if known."""
    marks: dict[str, list[tuple[float, float]]] = {"gpu_user_annotation": [], "user_annotation": []}
    for event in events:
        if event.category in marks and _STEP.fullmatch(event.name):
            marks[event.category].append((event.start, event.end))
    return sorted(marks["gpu_user_annotation"] or marks["user_annotation"])


def _ran(event: TraceEvent, args: Mapping[str, object], stream: str, start: float, end: float) -> Ran:
    """Return an event as `Ran` with its class, and for communication its collective, `other` if unknown."""
    name = event.name
    kind = next((kind for kind, wanted in _CLASS.items() if wanted.search(name)), OTHER)
    called = str(args.get("Collective name", "")) or name
    op = next((op for op, wanted in _OPS.items() if wanted.search(called)), OTHER) if kind == "communication" else ""
    return Ran(stream, kind, op, start, end)


def _operators(events: Iterable[TraceEvent]) -> list[Ran]:
    """Return the operators of each thread with the time outside nested operators, laid end to end from their start."""
    threads: defaultdict[str, list[TraceEvent]] = defaultdict(list)
    for event in events:
        if event.category == "cpu_op":
            threads[f"thread {event.thread}"].append(event)
    return [run for thread, nested in threads.items() for run in _exclusive(thread, nested)]


def _exclusive(thread: str, operators: Sequence[TraceEvent]) -> list[Ran]:
    """Return each interval of a thread's operators in which no nested operator runs."""
    runs: list[Ran] = []
    open_: list[TraceEvent] = []
    now = 0.0

    def until(time: float) -> None:
        """Add a run of the innermost open operator from `now` to `time`."""
        nonlocal now
        if open_ and time > now:
            runs.append(_ran(open_[-1], {}, thread, now, time))
        now = max(now, time)

    for event in sorted(operators, key=lambda event: (event.start, -event.end)):
        while open_ and open_[-1].end <= event.start:
            until(open_[-1].end)
            open_.pop()
        until(event.start) if open_ else None
        now = max(now, event.start)
        open_.append(event)
    while open_:
        until(open_[-1].end)
        open_.pop()
    return runs


def _rank(data: Mapping[str, Any]) -> int | None:
    """Return the rank that a trace (`data`) names; None if it names none or an impossible one."""
    info = data.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return rank if isinstance(rank, int) and 0 <= rank < LATEST else None


def _summed(ran: Sequence[Ran], first: float, last: float, steps: int, on_gpu: bool, rank: int | None) -> MeasuredStep:
    """Return the mean step of activities from `first` to `last` seconds. steps: number of marked steps; 0: one unmarked."""
    count = max(steps, 1)
    sums: dict[str, defaultdict[str, float]] = {key: defaultdict(float) for key in ("kind", "op", "stream")}
    for run in ran:
        for key, total in sums.items():
            if getattr(run, key):
                total[getattr(run, key)] += (run.end - run.start) / count
    every = merged((run.start, min(run.end, last)) for run in ran)
    computing = merged((run.start, min(run.end, last)) for run in ran if run.kind != "communication")
    breaks = _gaps(every, first, last)
    return MeasuredStep(
        rank,
        steps,
        on_gpu,
        (last - first) / count,
        dict(sums["kind"]),
        dict(sums["op"]),
        dict(sums["stream"]),
        (_total_seconds(every) - _total_seconds(computing)) / count,
        sum(breaks) / count,
        round(len(breaks) / count),
        max(breaks, default=0.0),
    )


def _gaps(busy: Sequence[tuple[float, float]], first: float, last: float) -> list[float]:
    """Return the seconds of each gap between merged, sorted intervals from `first` to `last`."""
    edges = [first, *(time for pair in busy for time in pair), last]
    return [end - start for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start]


def _total_seconds(intervals: Iterable[tuple[float, float]]) -> float:
    return sum(end - start for start, end in intervals)
