"""The pictures and tables of docs/studies.md: three questions, asked as anyone would ask them, and drawn.

A picture carries the numbers that it shows, as JSON in its `<desc>`: these are what a test compares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, unescape

import yaml

import clustersim as cs
from clustersim.config.shipped import find
from clustersim.costs.bill import bill
from clustersim.costs.figures import load as load_figures
from clustersim.planning.batches import filling
from clustersim.planning.planner import Planner
from clustersim.planning.reliability import load as reliability
from clustersim.planning.request import PlanRequest
from clustersim.sweeps.evaluate import Files, load

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/studies.md"
COLOURS = {"blue": "#0072b2", "orange": "#d55e00", "green": "#009e73", "pink": "#cc79a7", "grey": "#777777"}
Numbers = dict[str, Any]


def _matplotlib() -> Any:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "clustersim",
            "font.family": "sans-serif",
            "font.size": 11,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    from matplotlib import pyplot

    return pyplot


def svg(figure: Any, numbers: Numbers) -> str:
    """Return a figure as SVG with its numbers in it."""
    text = StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None}, bbox_inches="tight")
    said = f"<desc>{escape(json.dumps(numbers, sort_keys=True))}</desc>"
    drawn = re.sub(r"(<svg\b[^>]*>)", lambda found: f"{found[1]}\n{said}", text.getvalue(), count=1)
    _matplotlib().close(figure)
    return re.sub(r"[ \t]+$", "", drawn, flags=re.M)


def numbers_in(text: str) -> Numbers:
    """Return the numbers that a picture carries."""
    found = re.search(r"<desc>(.*?)</desc>", text, re.S)
    assert found
    return dict(json.loads(unescape(found[1])))


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table of a page."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


# How do tensor- and pipeline-parallel degrees share 1,024 and 30,720 GPUs?

SPLITS = {
    "1,024 H100": (
        "superpod_h100_128",
        {"global_batch": 1536, "micro_batch": [1, 2, 4]},
        [2, 4, 8],
        [2, 4, 8, 16, 32],
    ),
    "30,720 H100": ("fattree_3840", {"micro_batch": [1, 2]}, [2, 4, 8], [4, 8, 16, 32]),
}


def splits() -> Numbers:
    """Return the best MFU of GPT-3 175B for every tp and pp on both clusters, over micro-batch and recomputation."""
    found: Numbers = {}
    for name, (cluster, more, tp, pp) in SPLITS.items():
        rows = cs.sweep(cluster, "gpt3", tp=tp, pp=pp, recompute=["none", "selective", "full"], **more).rows
        cells = []
        for one in ((t, p) for t in tp for p in pp):
            own = [row for row in rows if (row["tp"], row["pp"]) == one]
            best = max((row for row in own if row["status"] == "ok"), key=lambda row: row["mfu"], default=None)
            keys = ("mfu", "step_time_s", "micro_batch", "recompute", "peak_memory_bytes")
            cells.append({"tp": one[0], "pp": one[1], **({key: best[key] for key in keys} if best else {})})
        found[name] = cells
    return found


def draw_splits(found: Numbers) -> str:
    """Return both clusters as maps: the greener a cell, the more of the GPUs' peak is used."""
    plot = _matplotlib()
    figure, places = plot.subplots(1, 2, figsize=(10, 3.6), gridspec_kw={"width_ratios": [6, 4], "wspace": 0.16})
    for place, (name, cells) in zip(places, found.items(), strict=True):
        tp, pp = sorted({c["tp"] for c in cells}), sorted({c["pp"] for c in cells})
        shown = [
            [next(c for c in cells if (c["tp"], c["pp"]) == (t, p)).get("mfu", float("nan")) for p in pp] for t in tp
        ]
        place.imshow(shown, cmap="YlGn", vmin=0.0, vmax=0.6, aspect="auto")
        best = max(c.get("mfu", 0) for c in cells)
        for c in cells:
            text = f"{c['mfu']:.1%}\n{c['recompute']}" if "mfu" in c else "does not\nfit"
            x, y = pp.index(c["pp"]), tp.index(c["tp"])
            weight = "bold" if c.get("mfu") == best else "normal"
            place.text(
                x,
                y,
                text,
                ha="center",
                va="center",
                fontsize=8.5,
                weight=weight,
                color="#222" if "mfu" in c else "#999",
            )
        place.set_xticks(range(len(pp)), pp)
        place.set_yticks(range(len(tp)), tp)
        place.set(xlabel="pipeline parallel", title=f"GPT-3 175B on {name}: MFU")
        place.spines[:].set_visible(False)
        place.tick_params(length=0)
    places[0].set_ylabel("tensor parallel")
    return svg(figure, found)


def table_splits(found: Numbers) -> str:
    """Return the three best of each cluster."""
    rows = []
    for name, cells in found.items():
        for place, c in enumerate(sorted((c for c in cells if "mfu" in c), key=lambda c: -c["mfu"])[:3]):
            memory = f"{c['peak_memory_bytes'] / 2**30:.1f} GiB"
            cells_of = [
                c["tp"],
                c["pp"],
                c["micro_batch"],
                c["recompute"],
                f"{c['step_time_s']:.3f} s",
                f"{c['mfu']:.1%}",
                memory,
            ]
            rows.append([name if not place else "", *cells_of])
    return table(["", "tp", "pp", "micro-batch", "recompute", "step", "MFU", "memory"], rows)


# What is a faster, a fuller, another network worth?

RATES = (100, 200, 400, 800)
LEAVES = (1, 2, 4, 8)
NODES = 128
JOB = {"tp": 8, "pp": 2, "global_batch": 512}
FABRICS: Mapping[str, tuple[str, Mapping[str, object], Sequence[int]]] = {
    "fat tree, rails": ("rail_optimized", {"nodes": NODES}, LEAVES),
    "fat tree, no rails": ("rail_optimized", {"nodes": NODES, "fabric.rails": "none"}, LEAVES),
    "rails only": ("rail_only_128", {}, (1,)),
    "dragonfly": ("dragonfly_132", {}, (1,)),
}


def network() -> Numbers:
    """Return step and price of the network for line rates, oversubscription and kinds of fabric, on nodes of 8 B300."""
    points = []
    for name, (file, more, leaves) in FABRICS.items():
        text = yaml.safe_load((ROOT / f"topologies/{file}.yaml").read_text(encoding="utf-8"))
        for rate in RATES:
            for leaf in leaves:
                keys = {**more, "gpu": "b300", "nic": f"{rate}Gb/s"} | (
                    {"fabric.oversubscription": leaf} if leaf > 1 else {}
                )
                cluster = cs.load_cluster(text, **keys)
                step = cs.simulate(cluster, "llama3_70b", **JOB)
                usd = sum(one.usd or 0.0 for one in bill(cluster, load_figures())[1:])
                points.append(
                    {
                        "fabric": name,
                        "gbps": rate,
                        "leaf": leaf,
                        "step_time_s": step.step_time,
                        "usd_a_gpu": usd / cluster.gpus,
                    }
                )
    return {"points": points}


def draw_network(found: Numbers) -> str:
    """Return step over price: one line a line rate, its points the oversubscriptions."""
    plot = _matplotlib()
    figure, place = plot.subplots(figsize=(8.4, 4.4))
    marks = dict(zip(FABRICS, ("o", "s", "^", "D"), strict=True))
    colours = dict(zip(RATES, ("orange", "pink", "blue", "green"), strict=True))
    for rate in RATES:
        for name in FABRICS:
            own = [p for p in found["points"] if (p["fabric"], p["gbps"]) == (name, rate)]
            x, y = [p["usd_a_gpu"] for p in own], [p["step_time_s"] for p in own]
            place.plot(x, y, marks[name], ls="-" if len(own) > 1 else "", color=COLOURS[colours[rate]], ms=5, lw=1)
        rails = [p for p in found["points"] if (p["fabric"], p["gbps"]) == ("fat tree, rails", rate)]
        end = max(rails, key=lambda p: p["usd_a_gpu"])
        text = f" {rate} Gb/s"
        place.text(
            end["usd_a_gpu"] * 1.04, end["step_time_s"], text, color=COLOURS[colours[rate]], va="center", weight="bold"
        )
    for name, mark in marks.items():
        place.plot([], [], mark, color=COLOURS["grey"], label=name)
    place.set(xscale="log", yscale="log", xlabel="price of the network, USD a GPU (log)", ylabel="step, s (log)")
    place.set_title("Llama 3 70B on 1,024 B300: what a network costs and buys", loc="left")
    from matplotlib.ticker import FixedLocator, NullLocator

    for axis in (place.xaxis, place.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}")
    place.yaxis.set_major_locator(FixedLocator([2, 3, 4, 5, 7, 10, 15, 20, 30]))
    place.xaxis.set_major_locator(FixedLocator([250, 500, 1000, 2000, 4000, 8000, 16000]))
    place.legend(frameon=False)
    return svg(figure, found)


def table_network(found: Numbers) -> str:
    """Return steps by rate and fabric, least and most oversubscribed, with the price of each."""
    rows = []
    for name, (_, _, leaves) in FABRICS.items():
        for leaf in dict.fromkeys((leaves[0], leaves[-1])):
            own = {p["gbps"]: p for p in found["points"] if (p["fabric"], p["leaf"]) == (name, leaf)}
            cells = [f"{own[r]['step_time_s']:.2f} s, {own[r]['usd_a_gpu']:,.0f} USD" for r in RATES]
            rows.append([f"{name}, {leaf} : 1" if len(leaves) > 1 else name, *cells])
    return table(["", *(f"{rate} Gb/s" for rate in RATES)], rows)


# What does Llama 3 405B on 15T tokens take?

GPUS = ("h100", "b200", "gb200")
DEADLINES = (70, 90, 120)
LABELS = {"h100": ((-8, -4), "right"), "b200": ((8, -4), "left"), "gb200": ((0, 7), "center")}
"""Where the number of GPUs of a plan stands, beside its mark."""
PLANNED = (("topologies", "rail_optimized"), ("workloads", "llama3_405b"))


def deadlines() -> Numbers:
    """Return the cheapest plan of each GPU for each deadline; none where there is none."""
    plans: list[Numbers] = []
    for gpu in GPUS:
        planner = Planner(load(Files(*(str(find(kind, name)) for kind, name in PLANNED), {})), reliability())
        batch = filling(2048, planner.case.cluster({"cluster.gpu": gpu, "cluster.nodes": 1}).simulator.cluster.gpus)
        kind = {"cluster.gpu": gpu, "training.global_batch": batch}
        for days in DEADLINES:
            found = planner.plan(PlanRequest(15e12, float(days), None, (kind,)), kind)
            if found is None:
                plans.append({"gpu": gpu, "deadline": days})
                continue
            row = found.row
            split = f"tp {row['tp']} pp {row['pp']} dp {row['dp']} vpp {row['vpp']}"
            plans.append(
                {
                    "gpu": gpu,
                    "deadline": days,
                    "days": found.days,
                    "gpus": row["ranks"],
                    "usd": found.usd,
                    "usd_owned": found.usd_owned,
                    "mwh": found.kwh / 1e3,
                    "mfu": row["mfu"],
                    "split": split,
                    "goodput": found.goodput.share,
                    "batch": row["global_batch"],
                }
            )
    return {"plans": plans}


def _distinct(found: Numbers) -> list[Numbers]:
    """Return each plan once, with the shortest deadline that it is the cheapest for."""
    plans = [p for p in found["plans"] if "days" in p]
    return list({(p["gpu"], p["gpus"]): p for p in sorted(plans, key=lambda p: -p["deadline"])}.values())


def draw_deadlines(found: Numbers) -> str:
    """Return dollars over days, one line a GPU, each plan with its number of GPUs."""
    plot = _matplotlib()
    figure, places = plot.subplots(1, 2, figsize=(10, 4), gridspec_kw={"wspace": 0.25})
    looks = dict(zip(GPUS, (("blue", "o"), ("green", "s"), ("orange", "^")), strict=True))
    for place, key, title in zip(places, ("usd", "usd_owned"), ("rented by the hour", "owned"), strict=True):
        for gpu, (colour, mark) in looks.items():
            points = sorted((p for p in _distinct(found) if p["gpu"] == gpu), key=lambda p: p["days"])
            x, y = [p["days"] for p in points], [p[key] / 1e6 for p in points]
            place.plot(x, y, mark, ls="-", color=COLOURS[colour], lw=1.2, label=gpu.upper())
            for p in points:
                at, (offset, side) = (p["days"], p[key] / 1e6), LABELS[gpu]
                look = {"ha": side, "fontsize": 9, "color": COLOURS[colour]}
                place.annotate(f"{p['gpus']:,}", at, offset, textcoords="offset points", **look)
        place.set(xlabel="days", ylabel="million USD", title=title, xlim=(0, 110))
        place.set_ylim(0, 1.15 * place.get_ylim()[1])
    places[0].legend(frameon=False, loc="lower left")
    figure.suptitle("Llama 3 405B on 15T tokens: the cheapest plan, and its GPUs", x=0.12, y=1.02, ha="left")
    return svg(figure, found)


def table_deadlines(found: Numbers) -> str:
    """Return all plans."""
    rows = []
    for p in _distinct(found):
        money = [f"{p['usd'] / 1e6:.0f} M", f"{p['usd_owned'] / 1e6:.0f} M", f"{p['mwh']:,.0f}"]
        shares = [f"{p['mfu']:.1%}", f"{p['goodput']:.1%}"]
        within = f"{p['gpu'].upper()}, {p['deadline']} days or more"
        rows.append([within, f"{p['gpus']:,}", f"{p['days']:.1f}", p["split"], f"{p['batch']:,}", *shares, *money])
    head = ["within", "GPUs", "days", "split", "batch", "MFU", "goodput", "USD", "owned", "MWh"]
    return table(head, rows)


STUDIES: Mapping[str, tuple[Callable[[], Numbers], Callable[[Numbers], str], Callable[[Numbers], str]]] = {
    "splits-gpt3": (splits, draw_splits, table_splits),
    "network": (network, draw_network, table_network),
    "llama3-405b": (deadlines, draw_deadlines, table_deadlines),
}
"""Name of a picture and of the marks of its table → its numbers, the picture of them, the table."""


def picture(name: str) -> Path:
    """Return where the picture of a study is."""
    return ROOT / f"docs/images/study-{name}.svg"
