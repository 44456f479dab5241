"""All errors that clustersim raises on purpose.

    ClustersimError                 exit code 1: clustersim itself failed
    ├── SimulationError             a program of the engine cannot go on (an illegal schedule)
    │   └── DeadlockError           a task waits for something that never ends
    ├── DiskFullError               a file could not be written whole; what was there before is as it was
    ├── InterruptedSweepError       exit code 130: a sweep was interrupted; the message says where its points are
    └── InputError                  exit code 2: what the user gave is wrong; the message says what would be right
        ├── ConfigError             a place in a YAML file: file:line:column: what, and the remedy
        ├── UnknownNameError        a name that is neither built in nor installed nor permitted, or cannot be imported
        ├── PluginError             code from outside fails, or answers nonsense
        ├── DataError               a table of measurements or a weights file that cannot be used
        └── OutOfMemoryError        the job does not fit into the GPU's memory

A message is one sentence with the place and the remedy; the command line prints it without a traceback.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches

_COMMAND = ContextVar("_COMMAND", default=False)


class ClustersimError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1


class SimulationError(ClustersimError):
    """The engine cannot go on: a deadlock or an illegal schedule."""


class DeadlockError(SimulationError):
    """A task waits for an event that never happens."""

    def __init__(self, message: str, task: int) -> None:
        """task: index of the task in the shape of the step."""
        super().__init__(message)
        self.task = task

    def __reduce__(self) -> tuple[type[DeadlockError], tuple[str, int]]:
        return type(self), (str(self), self.task)


class DiskFullError(ClustersimError):
    """No space is left for a file."""


class InterruptedSweepError(ClustersimError):
    """A sweep was interrupted; its computed points are kept."""

    exit_code = 130


class InputError(ClustersimError):
    """The user's input is wrong."""

    exit_code = 2


class ConfigError(InputError):
    """An error at a position in a YAML file.

    `path` is the file as the user wrote it; `line` and `column` count from 1 and are 0 when only the file is known.
    """

    def __init__(self, path: str, line: int, column: int, message: str) -> None:
        self.path, self.line, self.column, self.message = path, line, column, message
        place = f"{path}:{line}:{column}" if line else path
        super().__init__(f"{place}: {message}")

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, int, int, str]]:
        """Support pickling between the processes of a sweep."""
        return type(self), (self.path, self.line, self.column, self.message)


class UnknownNameError(InputError):
    """A name that is not built in, installed or permitted, or that cannot be imported."""


class PluginError(InputError):
    """Outside code failed or returned an invalid answer."""


class DataError(InputError):
    """A table of measurements or a weights file that cannot be used."""


class OutOfMemoryError(InputError):
    """The job does not fit into GPU memory; `advice` has lines of text with remedies."""

    advice = ""


@contextmanager
def for_command() -> Iterator[None]:
    """Let messages in the context name options of the command line; otherwise they name Python arguments."""
    token = _COMMAND.set(True)
    try:
        yield
    finally:
        _COMMAND.reset(token)


def option(flag: str, in_python: str) -> str:
    """Return the spelling of a setting in the caller's language: `flag` on a command line, else `in_python`."""
    return flag if _COMMAND.get() else in_python


def asked_by_command() -> bool:
    """Return whether messages name options of the command line, for a worker process to `inherit`."""
    return _COMMAND.get()


def inherit(command: bool) -> None:
    """Make this process name settings in messages as its parent process does, which `asked_by_command` tells."""
    _COMMAND.set(command)


def suggest(name: str, known: Iterable[str], listed: Iterable[str] | None = None) -> str:
    """Return "did you mean 'x'? known: a, b, c" for an unknown `name`; another case of letters is the nearest match.

    `listed`: names to list where `known` has many that mean the same.
    """
    names = sorted(known)
    return f"{nearest(name, names)}known: {', '.join(names if listed is None else sorted(listed))}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "did you mean 'x'? " for an unknown `name`, or nothing when none is near."""
    names = sorted(known)
    same = [candidate for candidate in names if candidate.lower() == name.lower()]
    close = get_close_matches(name, same or names, n=1, cutoff=0.0 if same else 0.6)
    return f"did you mean {close[0]!r}? " if close else ""


def shown(value: object) -> str:
    """Return `value` as Python writes it, cut to 60 characters, for a message."""
    text = repr(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."
