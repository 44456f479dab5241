"""Commands of clustersim as processes of their own: so many at once, others wait, each with limits, and any can be stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from clustersim.serve import PROGRESS, PROGRESS_LINE

KEPT = 100
"""How many that are over are remembered."""
TEXT = 4 << 20
"""Bytes of what a command prints that are kept, the first ones."""
SENTENCES = 8000
"""Letters of what it says on standard error that are kept, the last ones."""
GRACE = 3.0
"""Seconds in which a command that is to stop may clear up."""
State = Literal["waiting", "running", "done", "failed", "stopped"]
SECRET = "CLUSTERSIM_TOKEN"
"""The variable of the environment with the server's token, which no command gets."""


class ChildLimits(NamedTuple):
    """What commands may take."""

    at_once: int
    """Commands that run at one time."""
    waiting: int
    """Commands that may wait for those."""
    memory: int
    """Bytes of address space of each."""
    seconds: int
    """Seconds that each may take."""


@dataclass(slots=True)
class Child:
    """A command that was asked for, and what became of it."""

    number: int
    words: tuple[str, ...]
    """After `clustersim`, as they are run."""
    shown: str
    """The command as a person writes it."""
    cwd: Path | None
    """Where it runs; None: where the server does."""
    state: State = "waiting"
    step: str = ""
    """What it is doing, such as `simulate 40%`."""
    begun: float | None = None
    ended: float | None = None
    """Unix times."""
    out: str = ""
    """What it printed."""
    error: str = ""
    """Why there is no answer: a sentence, and what may help in lines below it."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def facts(self) -> dict[str, Any]:
        """What a page shows of it."""
        took = None if self.begun is None else (self.ended or time.time()) - self.begun
        said = {"number": self.number, "command": self.shown, "state": self.state, "step": self.step}
        return {**said, "took_s": took, "error": self.error}


class Children:
    """The commands of a server. To be used inside one event loop."""

    def __init__(self, limits: ChildLimits) -> None:
        self.limits = limits
        self.all: dict[int, Child] = {}
        self._slots = asyncio.Semaphore(limits.at_once)
        self._lives: set[asyncio.Task[None]] = set()
        self._count = 0
        self._closed = False

    @property
    def full(self) -> bool:
        """Whether as many run and wait as may; none may once the server ends."""
        return self._closed or len(self._lives) >= self.limits.at_once + self.limits.waiting

    def start(self, words: Sequence[str], shown: str, cwd: Path | None = None) -> Child:
        """Begin a command, or let it wait for its turn. Only where not `full`."""
        self._count += 1
        child = Child(self._count, tuple(words), shown, cwd)
        over = [one.number for one in self.all.values() if one.over.is_set()]
        for number in over[: len(over) + 1 - KEPT]:
            del self.all[number]
        self.all[child.number] = child
        life = asyncio.create_task(self._live(child))
        self._lives.add(life)
        life.add_done_callback(self._lives.discard)
        return child

    async def close(self) -> None:
        """Stop all, and wait until none is left."""
        self._closed = True
        for child in self.all.values():
            child.stopping.set()
        await asyncio.gather(*self._lives)

    async def _live(self, child: Child) -> None:
        """Run a command from its turn to its end."""
        try:
            if await _first(self._slots.acquire(), child.stopping):
                try:
                    await self._run(child)
                finally:
                    self._slots.release()
        except OSError as error:
            child.error = f"no process can be started ({error.strerror or error})"
        finally:
            if child.state in ("waiting", "running"):
                child.state = "stopped" if child.stopping.is_set() else "failed"
            child.ended = time.time()
            child.over.set()

    @property
    def _late(self) -> str:
        return f"took longer than the {self.limits.seconds} s that the server allows; raise --seconds"

    async def _run(self, child: Child) -> None:
        child.state, child.begun = "running", time.time()
        process = await self._begin(child)
        watched = asyncio.gather(_read(process.stdout), _read_errors(process.stderr, child), process.wait())
        late = ""
        try:
            async with asyncio.timeout(self.limits.seconds):
                ended = await _first(asyncio.shield(watched), child.stopping)
        except TimeoutError:
            ended, late = False, self._late
        if not ended:
            await _end(process)
        child.out, said, code = await watched
        if code == -signal.SIGXCPU:  # seconds of CPU were over before those of the clock
            late = self._late
        if code == 0:
            child.state = "done"
        elif not child.stopping.is_set():
            child.state, child.error = "failed", late or said or _silent(code)

    async def _begin(self, child: Child) -> asyncio.subprocess.Process:
        """Start the process of a command: in a session of its own, so that a Ctrl-C here does not reach it by itself."""
        limits = str(self.limits.memory), str(self.limits.seconds)
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "clustersim.serve.limited", *limits, *child.words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=child.cwd,
            env=_environment(os.environ),
            start_new_session=True,
        )


def _silent(code: int) -> str:
    """Return the message for a process that ended without output; a code below zero is a signal."""
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def working_folder(results: Path) -> Path:
    """Return a new folder in which a run writes into `results`, as it would beside it, and finds no other file."""
    made = Path(tempfile.mkdtemp(prefix="clustersim-serve-"))
    (made / "results").symlink_to(results, target_is_directory=True)
    return made


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command: no token, no colours, and this very clustersim."""
    kept = {name: value for name, value in own.items() if name != SECRET}
    here = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (here, own.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": paths, PROGRESS: "1", "NO_COLOR": "1", "COLUMNS": "120"}


async def _first(work: Any, stopping: asyncio.Event) -> bool:
    """Return True when work is over before it is to stop; else it is cancelled."""
    task, stop = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        return task.done() and not task.cancelled()
    finally:
        stop.cancel()
        if not task.done():
            task.cancel()


async def _read_errors(stream: asyncio.StreamReader | None, child: Child) -> str:
    """Note each step under way, and return what else is said on standard error."""
    assert stream
    said, rest = "", b""
    while chunk := await stream.read(1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[:SENTENCES]
        for line in (raw.decode(errors="replace") for raw in lines):
            if line.startswith(PROGRESS_LINE):
                child.step = line.removeprefix(PROGRESS_LINE)[:80]
            else:
                said = f"{said}{line}\n"[-SENTENCES:]
    return said.removeprefix("clustersim: ").strip()


async def _read(stream: asyncio.StreamReader | None) -> str:
    """Return the text of a stream, its beginning where it is very long; it is read to its end."""
    assert stream
    kept = b""
    while chunk := await stream.read(1 << 16):
        kept += chunk[: TEXT - len(kept)]
    return kept.decode(errors="replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process and all that it has started: it may clear up first."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE)
            return
