"""How much slower is the mapping that a forecast picks than the best one that was measured?

    python benchmarks/regret.py nanotron.csv calibration.csv --calculon CHECKOUT --page PAGE.md

Runs of one model on one cluster that differ in nothing but their mapping are a choice. A forecast picks the mapping that it
holds for the fastest; its regret is the measured time of the pick over that of the best, less one. Beside clustersim stand the
mean over all mappings, which is a pick at random; SimuMax, whose own forecasts are in the comments of its runs; and Calculon, run
here on the same mappings with its own files of systems. Calculon knows dense GPTs alone: a gated MLP is given to it as a plain
one of equal FLOP, and what it holds for out of memory it does not pick. GPUs and models that it has no words for are left out.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
SAME = ("source", "gpu", "num_gpus", "model", "layers", "hidden", "ffn_hidden", "seq", "global_batch", "precision")
MAPPING = ("tp", "pp", "vpp", "dp", "cp", "ep", "micro_batch", "zero_stage", "recompute", "sequence_parallel")
SYSTEMS = {"h100-sxm": "h100_80g_nvl8", "a100-sxm-80gb": "a100_80g"}
RECOMPUTE = {"": "none", "none": "none", "selective": "attn_only", "full": "full"}
Run = Mapping[str, str]
Forecast = Callable[[Run], float | None]


class Choice(NamedTuple):
    """Mappings of one model on one cluster."""

    name: str
    source: str
    runs: list[Run]

    def regret(self, forecast: Forecast) -> float | None:
        """Return by how much the pick of a forecast is slower than the best; None where it forecasts fewer than two."""
        said = [(seconds, run) for run in self.runs if (seconds := forecast(run)) is not None]
        if len(said) < 2:
            return None
        return measured(min(said, key=lambda one: one[0])[1]) / min(map(measured, self.runs)) - 1

    @property
    def at_random(self) -> float:
        """The mean regret of a mapping."""
        return mean(map(measured, self.runs)) / min(map(measured, self.runs)) - 1


def measured(run: Run) -> float:
    """Return the seconds of a step."""
    return float(run["sec_per_iter"])


def choices(files: Sequence[Path], forecast: Forecast) -> list[Choice]:
    """Return the choices that runs of files leave; of one mapping measured twice the faster stands."""
    groups: defaultdict[tuple[str, ...], dict[tuple[str, ...], Run]] = defaultdict(dict)
    for file in files:
        with file.open(encoding="utf-8-sig", newline="") as text:
            for run in csv.DictReader(text):
                if run["sec_per_iter"] and forecast(run) is not None:
                    kept = groups[tuple(run[key] for key in SAME)]
                    key = tuple(run[key] for key in MAPPING)
                    if key not in kept or measured(run) < measured(kept[key]):
                        kept[key] = run
    several = [list(found.values()) for found in groups.values() if len(found) > 1]
    return [Choice(f"{runs[0]['num_gpus']} × {runs[0]['gpu']}", source(runs[0]), runs) for runs in several]


def source(run: Run) -> str:
    """Return the short name of who measured a run."""
    return re.match(r"[A-Za-z]+[0-9]*", run["id"])[0]  # type: ignore[index]


def own(files: Sequence[Path]) -> Forecast:
    """Return clustersim's forecasts, as `validate` makes them."""
    said: dict[str, float] = {}
    for file in files:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "clustersim", "validate", str(file), "--json", "--out", f"{folder}/out"]
            out = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout
        said |= {one["id"]: one["predicted_s"] for one in json.loads(out)["runs"] if one["predicted_s"]}
    return lambda run: said.get(run["id"])


def simumax(run: Run) -> float | None:
    """Return SimuMax's own forecast of one of its runs."""
    said = re.search(r"SimuMax own prediction ([0-9.]+) ms", run["comment"])
    return float(said[1]) / 1e3 if said else None


def calculon(folder: Path) -> Forecast:
    """Return Calculon's forecasts of dense models on the GPUs that it has systems for."""
    sys.path.insert(0, str(folder))
    system_of, llm = import_module("calculon").System, import_module("calculon.llm").Llm
    base = json.loads((folder / "examples/3072_t4_p64_d12_mbs4_full.json").read_text(encoding="utf-8"))
    systems = {gpu: json.loads((folder / f"systems/{name}.json").read_text()) for gpu, name in SYSTEMS.items()}
    known: dict[str, float | None] = {}

    def forecast(run: Run) -> float | None:
        if run["id"] not in known:
            try:
                known[run["id"]] = _step(run, systems, base, system_of, llm)
            except llm.Error:
                known[run["id"]] = None
        return known[run["id"]]

    return forecast


def _step(run: Run, systems: Mapping[str, Any], base: Mapping[str, Any], system_of: Any, llm: Any) -> float | None:
    grouped = run["kv_heads"] and run["kv_heads"] != run["heads"]
    if run["gpu"] not in systems or run["experts"] or grouped or run["precision"] not in ("bf16", "fp16"):
        return None
    tp, pp, dp = (int(run[key] or 1) for key in ("tp", "pp", "dp"))
    hidden, heads, ffn = int(run["hidden"]), int(run["heads"]), int(run["ffn_hidden"] or 4 * int(run["hidden"]))
    gated = "swiglu" in run["comment"].lower() or "llama" in run["model"].lower()
    model = {
        "hidden": hidden,
        "feedforward": ffn * 3 // 2 if gated else ffn,
        "seq_size": int(run["seq"]),
        "attn_heads": heads,
        "attn_size": hidden // heads,
        "num_blocks": int(run["layers"]),
    }
    node = int(run["gpus_per_node"] or 8)
    split = {
        "num_procs": tp * pp * dp,
        "tensor_par": tp,
        "pipeline_par": pp,
        "data_par": dp,
        "batch_size": int(run["global_batch"]),
        "microbatch_size": int(run["micro_batch"]),
        "tensor_par_net": int(tp > node),
        "pipeline_par_net": int(tp * pp > node),
        "data_par_net": int(tp * pp * dp > node),
        "pipeline_interleaving": int(run["vpp"] or 1),
        "activation_recompute": RECOMPUTE.get(run["recompute"], "full"),
        "optimizer_sharding": dp > 1 and run["zero_stage"] not in ("", "0"),
        "data_par_overlap": dp > 1 and run["overlap_grad_reduce"] == "1",
        "tensor_par_comm_type": "rs_ag" if tp > 1 and run["sequence_parallel"] != "0" else "ar",
    }
    one = llm(llm.Application(model), logging.getLogger("calculon"))
    one.compile(system_of(systems[run["gpu"]]), llm.Execution.from_json({**base, **split}))
    one.run(system_of(systems[run["gpu"]]))
    return float(one.get_total_time())


def page(found: Sequence[Choice], forecasts: Mapping[str, Forecast]) -> str:
    """Return the table: one row for each number of GPUs of large choices, one for all small ones of a source."""
    groups: defaultdict[tuple[str, str], list[Choice]] = defaultdict(list)
    for one in found:
        groups[one.source, one.name if len(one.runs) >= 5 else "2 to 4 mappings each"].append(one)
    head = ["choice", "choices", "mappings", *forecasts, "at random"]
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    order = sorted(groups.items(), key=lambda one: (one[0][0], int(re.match(r"\d+", one[0][1])[0])))  # type: ignore[index]
    return "\n".join(lines + [line for (who, name), own in order for line in _row(f"{who}, {name}", own, forecasts)])


def _row(name: str, found: Sequence[Choice], forecasts: Mapping[str, Forecast]) -> Iterator[str]:
    cells = [name, str(len(found)), str(sum(len(one.runs) for one in found))]
    for forecast in forecasts.values():
        regrets = [regret for one in found if (regret := one.regret(forecast)) is not None]
        some = f" ({len(regrets)} of them)" if regrets and len(regrets) < len(found) else ""
        cells.append(f"{100 * mean(regrets):.1f} %{some}" if regrets else "-")
    yield _line([*cells, f"{100 * mean(one.at_random for one in found):.1f} %"])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table, and write it between the marks of a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="tables of measured runs")
    parser.add_argument("--calculon", type=Path, help="a checkout of calculon-ai/calculon")
    parser.add_argument("--page", type=Path, help="a page with the marks `begin regret` and `end regret`")
    asked = parser.parse_args()
    forecasts: dict[str, Forecast] = {"clustersim": own(asked.files), "SimuMax": simumax}
    if asked.calculon:
        forecasts["Calculon"] = calculon(asked.calculon)
    table = page(choices(asked.files, forecasts["clustersim"]), forecasts)
    print(table)
    if asked.page:
        mark = re.compile(r"(<!-- begin regret -->\n).*?(<!-- end regret -->)", re.S)
        text = asked.page.read_text(encoding="utf-8")
        asked.page.write_text(mark.sub(lambda old: old[1] + table + "\n" + old[2], text), encoding="utf-8")


if __name__ == "__main__":
    main()
