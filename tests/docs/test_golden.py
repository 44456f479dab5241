"""Answers are those that are kept."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts/golden"


def test_the_quick_answers_are_the_kept_ones():
    found = subprocess.run([sys.executable, SCRIPT, "--check", "--quick"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
