"""What a command takes in a fresh process, beside the libraries that it cannot do without, and what a second answer takes.

Commands take turns, and the least of several counts: so a busy machine shows in all of them alike. Bytecode is kept, as where
the package is installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
JOB = (str(ROOT / "topologies" / "fattree_3840.yaml"), str(ROOT / "workloads" / "gpt3.yaml"))
BASE = "import numpy, simpy, yaml"
AGAIN = """
import sys, time
import clustersim as cs
taken = []
for _ in range(10):
    begun = time.process_time()
    cs.simulate(*sys.argv[1:])
    taken.append(time.process_time() - begun)
print(min(taken[1:]))
"""


def taken(command: list[str], folder: str) -> tuple[float, float]:
    """Return wall and CPU seconds of a fresh process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begun = time.perf_counter()
    child = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"{command} failed with {status}")
    return time.perf_counter() - begun, usage.ru_utime + usage.ru_stime


def main() -> None:
    """Print one line a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="of which the least counts")
    rounds = parser.parse_args().rounds
    program = [sys.executable, "-m", "clustersim"]
    cases = {
        BASE: [sys.executable, "-c", BASE],
        "--help": [*program, "--help"],
        "run, no files": [*program, "run", *JOB, "--no-save"],
        "run, with files": [*program, "run", *JOB],
    }
    least = dict.fromkeys(cases, (float("inf"), float("inf")))
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name, command in cases.items():
                wall, cpu = taken(command, folder)
                least[name] = min(least[name][0], wall), min(least[name][1], cpu)
    print(f"{'30,720 GPUs':<26}  {'wall s':>7}  {'CPU s':>7}  {'of the first':>12}")
    for name, (wall, cpu) in least.items():
        print(f"{name:<26}  {wall:7.3f}  {cpu:7.3f}  {cpu / least[BASE][1]:11.2f}x")
    done = subprocess.run([sys.executable, "-c", AGAIN, *JOB], cwd=ROOT, capture_output=True, text=True, check=True)
    print(f"{'asked again, one process':<26}  {'':7}  {float(done.stdout):7.3f}")


if __name__ == "__main__":
    main()
