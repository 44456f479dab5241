"""What several test files ask for: the command line, run in this process."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import examples
import pytest
from browser import browsing

from clustersim.cli.main import main


def pytest_configure(config: pytest.Config) -> None:
    """Try fewer examples where the slow tests are left out; commands keep their bytecode, as where they are installed.

    However slow the machine is, they say nothing of how far they are.
    """
    os.environ["CLUSTERSIM_PROGRESS"] = "0"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    examples.profile(quick="not slow" in config.getoption("markexpr"))


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs a command line where it is and gives (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["clustersim", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture
def call(command_line: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return the same, run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return command_line


@pytest.fixture(scope="module")
def chromium():
    """Return a browser, which all tests of a file use."""
    with browsing() as browser:
        yield browser
