"""The way into the program and out of it: streams, Ctrl-C and exit codes. Nothing is imported before Ctrl-C is answered."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

INTERRUPTED = 130, "interrupted"
THREADS = "OPENBLAS_NUM_THREADS"
"""What says how many threads numpy multiplies matrices with: those here are small, and two threads are slower than one."""

PYDANTIC_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
"""What says that pydantic need not search all that is installed for plug-ins of its own, which takes 10 ms."""
GARBAGE = 100_000
"""After how many new objects Python searches for unreachable ones: a small run has fewer, and its usual 700 cost a tenth."""


def main() -> None:
    """Run the command line; errors raised on purpose become one sentence and their exit code."""
    gc.set_threshold(GARBAGE)
    atexit.register(gc.freeze)  # what is left at the end need not be searched: it all goes
    _fill_streams()
    if "OMP_NUM_THREADS" not in os.environ:  # which numpy asks next
        os.environ.setdefault(THREADS, "1")
    os.environ.setdefault(PYDANTIC_PLUGINS, "1")
    with _answering() as pressed:
        try:
            code, sentence = _call(sys.argv[1:])
        except BaseException:
            if not pressed:
                raise
            code, sentence = INTERRUPTED  # whatever a library made of it
        if sentence:
            _say(f"clustersim: {sentence}")
    sys.exit(code)


def _call(arguments: Sequence[str]) -> tuple[int, str]:
    """Return the exit code of a command line, and what there is to say of it: a sentence, and what may help in lines below it."""
    from clustersim import plugins
    from clustersim.cli.app import Abort, UsageError, app, named
    from clustersim.cli.commands import sentence
    from clustersim.errors import ClustersimError, for_command

    try:
        plugins.forget()
        with for_command(), plugins.answering():
            code = app(named(arguments))(list(arguments) or ["--help"], standalone_mode=False, prog_name="clustersim")
        sys.stdout.flush()
    except ClustersimError as error:
        said = " ".join(str(error).splitlines())
        return error.exit_code, f"{said}\n{help_}" if (help_ := getattr(error, "advice", "")) else said
    except UsageError as error:
        return 2, " ".join(sentence(error, list(arguments)).splitlines())
    except (KeyboardInterrupt, Abort):
        return INTERRUPTED
    except (OSError, SystemExit) as error:
        if _broken(error):
            _discard(sys.stdout)
            return 0, ""  # the reader has what it wanted
        if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EFBIG):
            raise
        _discard(sys.stdout)
        return 1, f"standard output cannot be written ({error.strerror}); send it elsewhere"
    return INTERRUPTED if code == INTERRUPTED[0] else (code or 0, "")  # typer has swallowed Ctrl-C


def _fill_streams() -> None:
    """Open what the caller has closed, so that no file of ours gets its number, and let any text through."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files need not be Unicode, terminals not UTF-8


@contextmanager
def _answering() -> Iterator[list[int]]:
    """Note every Ctrl-C, as libraries turn it into errors of their own, or lose it where no error can be raised."""
    pressed: list[int] = []
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield pressed
        return
    hook = sys.unraisablehook

    def press(number: int, _: Any) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    def lost(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            threading.Timer(0.01, signal.raise_signal, (signal.SIGINT,)).start()
        else:
            hook(unraisable)

    signal.signal(signal.SIGINT, press)
    sys.unraisablehook = lost
    try:
        yield pressed
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _broken(error: BaseException | None) -> bool:
    """Return whether an error comes from a pipe whose reader has gone."""
    while error is not None and not isinstance(error, BrokenPipeError):
        error = error.__cause__ or error.__context__
    return error is not None


def _say(sentence: str) -> None:
    try:
        print(sentence, file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def _discard(stream: Any) -> None:
    """Send what is still buffered nowhere."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
