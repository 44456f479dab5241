"""Commands of clustersim as child processes: a limited number at once, with limits each, and others wait."""

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
"""Number of finished commands that are stored."""
TEXT = 4 << 20
"""Largest number of bytes stored of a command's output, from its start."""
SENTENCES = 8000
"""Largest number of characters stored of standard error, up to its end."""
GRACE = 10.0
"""Seconds between SIGINT and SIGKILL for a command that is stopped: a search then gives its best so far."""
State = Literal["waiting", "running", "done", "failed", "stopped"]
SECRET = "CLUSTERSIM_TOKEN"
"""Environment variable with the server's token. It is not passed to commands."""


class ChildLimits(NamedTuple):
    """Limits of commands."""

    at_once: int
    """Number of commands that run at the same time."""
    waiting: int
    """Number of commands that may wait."""
    memory: int
    """Address space of each command in bytes."""
    seconds: int
    """Time of each command in seconds."""


@dataclass(slots=True)
class Child:
    """A requested command and its state."""

    number: int
    words: tuple[str, ...]
    """Arguments after `clustersim`, as they are run."""
    shown: str
    """The command as a user would write it."""
    cwd: Path | None
    """Working directory; None: that of the server."""
    state: State = "waiting"
    step: str = ""
    """Current phase, such as `simulate 40%`."""
    begun: float | None = None
    ended: float | None = None
    """Start and end as Unix times."""
    out: str = ""
    """Standard output."""
    error: str = ""
    """Reason for a missing result: a sentence, and hints in further lines."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def facts(self) -> dict[str, Any]:
        """JSON data for a page: `number`, `command`, `state`, `step`, `took_s`, `error` and `answer`."""
        took = None if self.begun is None else (self.ended or time.time()) - self.begun
        data = {"number": self.number, "command": self.shown, "state": self.state, "step": self.step}
        answer = self.out[:SENTENCES] if self.words[0] in ("sweep", "optimize", "plan") else ""
        return {**data, "took_s": took, "error": self.error, "answer": answer}


class Children:
    """Commands of a server. For use inside one event loop."""

    def __init__(self, limits: ChildLimits) -> None:
        self.limits = limits
        self.all: dict[int, Child] = {}
        self._slots = asyncio.Semaphore(limits.at_once)
        self._lives: set[asyncio.Task[None]] = set()
        self._count = 0
        self._closed = False

    @property
    def full(self) -> bool:
        """Whether no further command is accepted: all places are taken, or the server is ending."""
        return self._closed or len(self._lives) >= self.limits.at_once + self.limits.waiting

    def start(self, words: Sequence[str], shown: str, cwd: Path | None = None) -> Child:
        """Start a command, or queue it. Must not be called if `full`."""
        self._count += 1
        child = Child(self._count, tuple(words), shown, cwd)
        over = [kept.number for kept in self.all.values() if kept.over.is_set()]
        for number in over[: len(over) + 1 - KEPT]:
            del self.all[number]
        self.all[child.number] = child
        life = asyncio.create_task(self._live(child))
        self._lives.add(life)
        life.add_done_callback(self._lives.discard)
        return child

    async def close(self) -> None:
        """Stop all commands and wait for their end."""
        self._closed = True
        for child in self.all.values():
            child.stopping.set()
        await asyncio.gather(*self._lives)

    async def _live(self, child: Child) -> None:
        """Wait for a free slot, run a command, and record its end. A command that is stopped before does not run."""
        try:
            if await _ends_first(self._slots.acquire(), child.stopping):
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

    async def _run(self, child: Child) -> None:
        """Run a command in its process until it ends, is stopped or exceeds a limit."""
        child.state, child.begun = "running", time.time()
        process = await self._begin(child)
        watched = asyncio.gather(_read(process.stdout), _read_errors(process.stderr, child), process.wait())
        ended = late = False
        try:
            async with asyncio.timeout(self.limits.seconds):
                ended = await _ends_first(asyncio.shield(watched), child.stopping)
        except TimeoutError:
            late = True
        if not ended:
            await _end(process)
        child.out, errors, code = await watched
        if code == 0:
            child.state = "done"
        elif not child.stopping.is_set():
            silent = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            child.state, child.error = "failed", errors or silent
            if late or code == -signal.SIGXCPU:
                limit = self.limits.seconds
                child.error = f"took longer than the {limit} s that the server allows; raise --seconds"

    async def _begin(self, child: Child) -> asyncio.subprocess.Process:
        """Start the process of a command in its own session, so that Ctrl-C on the server does not reach it directly."""
        limits = str(self.limits.memory), str(self.limits.seconds + int(GRACE))  # the clock's SIGINT is first
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "clustersim.serve.limited", *limits, *child.words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=child.cwd,
            env=_environment(os.environ),
            start_new_session=True,
        )


def working_folder(results: Path) -> Path:
    """Return a new folder with a link `results` to the given one, in which a run finds no other file."""
    folder = Path(tempfile.mkdtemp(prefix="clustersim-serve-"))
    (folder / "results").symlink_to(results, target_is_directory=True)
    return folder


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the {name: value} environment of a command: that of the server without token, with this copy of clustersim."""
    kept = {name: value for name, value in environment.items() if name != SECRET}
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), environment.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": paths, PROGRESS: "1", "NO_COLOR": "1", "COLUMNS": "120"}


async def _ends_first(work: Any, stopping: asyncio.Event) -> bool:
    """Return True if `work` ends before `stopping` is set; otherwise cancel it and return False."""
    task, stop = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        return task.done() and not task.cancelled()
    finally:
        stop.cancel()
        if not task.done():
            task.cancel()


async def _read_errors(stream: asyncio.StreamReader | None, child: Child) -> str:
    """Record each progress line in `child.step`. Return the rest of standard error, its last SENTENCES characters."""
    assert stream
    text, rest = "", b""
    while chunk := await stream.read(1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[:SENTENCES]
        for line in (raw.decode(errors="replace") for raw in lines):
            if line.startswith(PROGRESS_LINE):
                child.step = line.removeprefix(PROGRESS_LINE)[:80]
            else:
                text = f"{text}{line}\n"[-SENTENCES:]
    return text.removeprefix("clustersim: ").strip()


async def _read(stream: asyncio.StreamReader | None) -> str:
    """Read a stream to its end and return its text, cut to the first TEXT bytes."""
    assert stream
    kept = b""
    while chunk := await stream.read(1 << 16):
        kept += chunk[: TEXT - len(kept)]
    return kept.decode(errors="replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process and all its children: SIGINT first, then SIGKILL."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE)
            return
