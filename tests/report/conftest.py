"""Runs of the small job by the command line."""

from collections.abc import Callable
from pathlib import Path

import output_cases
import pytest


@pytest.fixture
def small(call: Callable[..., tuple[int, str, str]]) -> Callable[..., Path]:
    """Return a function that runs the small job with further options and gives the folder of its result, `r` if not told."""
    Path("cluster.yaml").write_text(output_cases.NODES)
    Path("job.yaml").write_text(output_cases.JOB)

    def run(*options: str, out: str = "r") -> Path:
        code, _, err = call("run", "cluster.yaml", "job.yaml", *options, "--out", out, "--quiet", "--force")
        assert (code, err) == (0, "")
        return Path(out)

    return run
