"""Command lines of clustersim that run in this process, also where a fixture of a whole file asks."""

import contextlib
import sys
from io import StringIO
from pathlib import Path

import pytest

from clustersim.cli.main import main


def command(*arguments: str, cwd: str | Path = ".", code: int = 0) -> tuple[str, str]:
    """Run a command line in a folder and return what it prints, (stdout, stderr); it must end with the exit code."""
    out, err = StringIO(), StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        patch.setattr(sys, "argv", ["clustersim", *arguments])
        main()
    assert (end.value.code or 0) == code, err.getvalue()
    return out.getvalue(), err.getvalue()
