"""CPU seconds of six lines of work in an older checkout and in this one, in turn, and their ratios.

    git worktree add ../old COMMIT && python benchmarks/regress.py ../old

Both checkouts run on this Python with its libraries, each from its own files. The median of --rounds counts. A first round, in
which bytecode and compiled loops are written, does not. The exit status is 1 if a line is more than 15 % slower, which needs a
reason.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
SLOWER = 1.15
ROWS = 100
"""Published runs that are validated, drawn from the older checkout's table."""
SWEEP = """
import json, time
import clustersim as cs
space = {"tp": [2, 4, 8], "pp": [4, 8, 16, 32], "micro_batch": [1, 2, 4], "global_batch": 1536, "recompute": "full"}
def taken(clocks):
    begun = time.process_time()
    cs.sweep("superpod_h100_128", "gpt3", clocks=clocks, **space)
    return time.process_time() - begun
taken([0.9])
first = taken([0.8])
print(json.dumps([first, (taken([0.8, 0.77, 0.75, 0.72, 0.7]) - first) / 4]))
"""
SPLITS = ("--nodes", "16", "--tp", "8", "--recompute", "selective,full", "--schedule", "1f1b,interleaved")
COMMANDS = {
    "run fattree_3840 gpt3": ("run", "fattree_3840", "gpt3", "--no-save", "--json"),
    "run nvl72_16 llama3_405b --engine auto": (
        "run",
        "nvl72_16",
        "llama3_405b",
        "--engine",
        "auto",
        "--no-save",
        "--json",
    ),
    f"validate, {ROWS} published runs": (
        "validate",
        "rows.csv",
        "--workers",
        "1",
        "--out",
        "validated",
        "--force",
        "--json",
    ),
    "optimize superpod_h100_128 gpt3, 128 GPUs, tp 8": ("optimize", "superpod_h100_128", "gpt3", *SPLITS, "--json"),
}


def spent(checkout: Path, folder: str, *words: str) -> tuple[float, str]:
    """Return the CPU seconds of a Python process that imports a checkout, children included, and what it prints."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**kept, "PYTHONPATH": str(checkout), "CLUSTERSIM_PROGRESS": "0"}
    child = subprocess.Popen([sys.executable, *words], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    printed = child.stdout.read() if child.stdout else ""
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"{checkout}: python {' '.join(words)} failed with {status}")
    return usage.ru_utime + usage.ru_stime, printed


def measured(checkout: Path, folder: str) -> dict[str, float]:
    """Return the CPU seconds of each line of the table."""
    found = {name: spent(checkout, folder, "-m", "clustersim", *words)[0] for name, words in COMMANDS.items()}
    first, again = json.loads(spent(checkout, folder, "-c", SWEEP)[1])
    return {**found, "sweep of 36 points, first": first, "the same at other clocks": again}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD_CHECKOUT", help="a worktree of an older commit")
    parser.add_argument("--rounds", type=int, default=3, help="whose median counts (default 3)")
    options = parser.parse_args()
    old = options.old.resolve()
    if not (old / "clustersim" / "__init__.py").is_file():
        parser.error(f"{options.old}: not a checkout of clustersim; make one with git worktree add")
    with tempfile.TemporaryDirectory() as folder:
        with (old / "clustersim/validate/published_runs.csv").open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        with (Path(folder) / "rows.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([header, *random.Random(0).sample(rows, ROWS)])
        rounds = [[measured(checkout, folder) for checkout in (old, ROOT)] for _ in range(options.rounds + 1)][1:]
    commits = [
        subprocess.check_output(["git", "-C", checkout, "rev-parse", "--short", "HEAD"], text=True).strip()
        for checkout in (old, ROOT)
    ]
    print(f"| CPU seconds | {' | '.join(commits)} | ratio |\n| --- | --- | --- | --- |")
    ratios = []
    for name in rounds[0][0]:
        before, now = (median(one[place][name] for one in rounds) for place in (0, 1))
        ratios.append(now / before)
        print(f"| {name} | {before:.2f} | {now:.2f} | {ratios[-1]:.2f}{' **slower**' * (ratios[-1] > SLOWER)} |")
    print(
        f"\nmedians of {options.rounds}, {time.strftime('%d %B %Y')}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    sys.exit(max(ratios) > SLOWER)


if __name__ == "__main__":
    main()
