"""Wall and CPU time and peak memory of the commands that people wait for, each in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
GPT3 = str(ROOT / "workloads" / "gpt3.yaml")


def measure(*arguments: str) -> tuple[float, float, float, dict[str, Any]]:
    """Return wall and CPU seconds, peak resident MB, and the summary of `clustersim ARGUMENTS --json`."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            [sys.executable, "-m", "clustersim", *arguments], cwd=folder, stdout=subprocess.PIPE, env=os.environ
        )
        out = child.stdout.read() if child.stdout else b""
        _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"{arguments} failed with {status}")
    wall, cpu = time.perf_counter() - begun, usage.ru_utime + usage.ru_stime
    return wall, cpu, usage.ru_maxrss / 1024, json.loads(out) if out.startswith(b"{") else {}


def contended() -> dict[str, tuple[str, ...]]:
    """Return the commands whose ranks differ or slow each other, played by `--engine auto`."""

    def run(topology: str, workload: str, *options: str) -> tuple[str, ...]:
        files = str(ROOT / f"topologies/{topology}.yaml"), str(ROOT / f"workloads/{workload}.yaml")
        return ("run", *files, "--json", "--no-save", "--ignore-memory", "--engine", "auto", *options)

    files = str(ROOT / "topologies/dgx_a100_140.yaml"), GPT3
    hashed = ("--set", "fabric.routing={mode: ecmp, seed: 1}", "--set", "faults=[{link: 'nic-up[1]', rate: 100Gb/s}]")
    return {
        "gpt3 x dgx_a100_140": run("dgx_a100_140", "gpt3"),
        "gpt3 x leaf_spine_32": run("leaf_spine_32", "gpt3"),
        "gpt3, 1,024 GPUs, --no-fold": run("superpod_h100_128", "gpt3", "--no-fold"),
        "llama3_70b, 512, slow NIC": run("superpod_h100_128", "llama3_70b", "--nodes", "64", *hashed),
        "gpt3, pp 8": run("superpod_h100_128", "gpt3", "--pp", "8"),
        "gpt3, pp 8, vpp 12": run("superpod_h100_128", "gpt3", "--pp", "8", "--schedule", "interleaved", "--vpp", "12"),
        "llama3_405b x nvl72_16": run("nvl72_16", "llama3_405b"),
        "llama3_70b x roce_1152": run("oversubscribed_roce_1152", "llama3_70b"),
        "two gpt3 at random": ("jobs", *files, GPT3, "--placement", "random", "--json", "--no-save"),
    }


def counted(summary: dict[str, Any]) -> tuple[int, int]:
    """Return the classes of ranks and the events of the run that a summary is of."""
    return summary["simulated"]["rank_classes"], summary["simulated"]["events"]


def main() -> None:
    """Print one line a command; with --contended, those whose ranks differ or slow each other."""
    cases = {
        "--help": ("--help",),
        "run, 30,720 GPUs": ("run", str(ROOT / "topologies/fattree_3840.yaml"), GPT3, "--json"),
        "run, 1,024 GPUs": ("run", str(ROOT / "topologies/superpod_h100_128.yaml"), GPT3, "--json"),
        "run, 1,024 GPUs, --no-fold": (
            "run",
            str(ROOT / "topologies/superpod_h100_128.yaml"),
            GPT3,
            "--json",
            "--no-fold",
        ),
        "run, 1,024 GPUs, static routes": ("run", str(ROOT / "topologies/dgx_a100_140.yaml"), GPT3, "--json"),
        "run, 8,192 GPUs, hashed routes": (
            "run",
            str(ROOT / "topologies/oversubscribed_roce_1152.yaml"),
            str(ROOT / "workloads/llama3_70b.yaml"),
            "--json",
        ),
        "collective, 30,720 GPUs": (
            "collective",
            "all_reduce",
            "-b",
            "1G",
            "-e",
            "1G",
            "-t",
            str(ROOT / "topologies/fattree_3840.yaml"),
        ),
    }
    if "--contended" in sys.argv[1:]:
        cases = contended()
    print(f"{'command':<30}  {'wall s':>7}  {'CPU s':>7}  {'MB':>6}  {'step s':>9}  {'classes':>7}  {'events':>9}")
    for name, arguments in cases.items():
        wall, cpu, memory, summary = measure(*arguments)
        step = f"{summary['step_time_s']:9.5f}" if "step_time_s" in summary else " " * 9
        classes, events = counted(summary) if "step_time_s" in summary else ("", "")
        print(f"{name:<30}  {wall:7.2f}  {cpu:7.2f}  {memory:6.0f}  {step}  {classes:>7}  {events:>9}")


if __name__ == "__main__":
    main()
