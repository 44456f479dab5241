"""Command lines of clustersim that fixtures of a whole file run."""

import contextlib
import sys
from pathlib import Path

import pytest

from clustersim.cli.main import main


def command(*arguments: str, cwd: str | Path = ".") -> None:
    """Run a command line in this process and in a folder; it must succeed."""
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(cwd):
        patch.setattr(sys, "argv", ["clustersim", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code
