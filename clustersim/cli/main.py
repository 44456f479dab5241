"""Entry and exit of the program: streams, Ctrl-C and exit codes. Ctrl-C is handled before anything is imported."""

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
"""Environment variable for numpy's threads in matrix products: the matrices are small, and two threads slower than one."""

PYDANTIC_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
"""Environment variable that keeps pydantic from searching installed packages for its own plug-ins, which takes 10 ms."""
GARBAGE = 100_000
"""Number of new objects after which Python searches for unreachable ones: more than a small run has; 700 would cost a tenth."""


def main() -> None:
    """Run the command line; errors raised on purpose become one sentence and their exit code."""
    gc.set_threshold(GARBAGE)
    atexit.register(gc.freeze)  # objects left at exit need no search: all of them are freed
    _fill_streams()
    if "OMP_NUM_THREADS" not in os.environ:  # which numpy reads next
        os.environ.setdefault(THREADS, "1")
    os.environ.setdefault(PYDANTIC_PLUGINS, "1")
    with _recording_interrupts() as pressed:
        try:
            code, sentence = _call(sys.argv[1:])
        except BaseException:
            if not pressed:
                raise
            code, sentence = INTERRUPTED  # whatever error a library made of it
        if sentence:
            _print_error(f"clustersim: {sentence}")
    sys.exit(code)


def _call(arguments: Sequence[str]) -> tuple[int, str]:
    """Return (exit code, message) of a command line: a sentence, and hints in further lines; "" without an error."""
    from clustersim import plugins
    from clustersim.cli.app import Abort, UsageError, app, needed_commands
    from clustersim.cli.commands import error_sentence
    from clustersim.errors import ClustersimError, for_command

    try:
        plugins.forget()
        with for_command(), plugins.answering():
            code = app(needed_commands(arguments))(
                list(arguments) or ["--help"], standalone_mode=False, prog_name="clustersim"
            )
        sys.stdout.flush()
    except ClustersimError as error:
        text = " ".join(str(error).splitlines())
        return error.exit_code, f"{text}\n{help_}" if (help_ := getattr(error, "advice", "")) else text
    except UsageError as error:
        return 2, " ".join(error_sentence(error, list(arguments)).splitlines())
    except (KeyboardInterrupt, Abort):
        return INTERRUPTED
    except (OSError, SystemExit) as error:
        if _is_broken_pipe(error):
            _discard(sys.stdout)
            return 0, ""  # the reader needs no more
        if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EFBIG):
            raise
        _discard(sys.stdout)
        return 1, f"standard output cannot be written ({error.strerror}); send it elsewhere"
    return INTERRUPTED if code == INTERRUPTED[0] else (code or 0, "")  # typer has caught Ctrl-C


def _fill_streams() -> None:
    """Open streams that the caller has closed, so that no file gets their number, and allow any text in them."""
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
            stream.reconfigure(errors="backslashreplace")  # file names need not be Unicode, terminals not UTF-8


@contextmanager
def _recording_interrupts() -> Iterator[list[int]]:
    """Yield a list that grows by the signal's number at each Ctrl-C: libraries turn it into their own errors, or lose it."""
    pressed: list[int] = []
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield pressed
        return
    hook = sys.unraisablehook

    def press(number: int, _: Any) -> None:
        """Record Ctrl-C, and raise KeyboardInterrupt."""
        pressed.append(number)
        raise KeyboardInterrupt

    def lost(unraisable: Any) -> None:
        """Raise SIGINT again 10 ms after a KeyboardInterrupt that could not be raised."""
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
        # `lost` repeats the signal 10 ms later, perhaps only now, and it must not end the last message
        signal.signal(signal.SIGINT, signal.SIG_IGN if pressed else signal.default_int_handler)


def _is_broken_pipe(error: BaseException | None) -> bool:
    """Return whether an error comes from a pipe whose reader has ended."""
    while error is not None and not isinstance(error, BrokenPipeError):
        error = error.__cause__ or error.__context__
    return error is not None


def _print_error(sentence: str) -> None:
    """Print a sentence on standard error; if that cannot be written, discard it."""
    try:
        print(sentence, file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def _discard(stream: Any) -> None:
    """Discard the buffered output of a stream, so that Python does not fail to write it at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
