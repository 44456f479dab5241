"""The model card of a predictor: tables about its weights for terminals and the docs page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.files import packaged_rows
from clustersim.predictors import weights_file
from clustersim.predictors.kinds.neusight.vector import CLASSES, MEMORIES
from clustersim.predictors.mlp import Parameters
from clustersim.predictors.uncertainty import EDGES
from clustersim.predictors.weights_file import Weights
from clustersim.units import seconds
from clustersim.writing import save


class Meaning(NamedTuple):
    """Conversion of a parameter to the constant in a formula: value = convert(parameter) · scale."""

    unit: str
    text: str
    scale: float
    convert: Callable[[float], float]


class ChosenConstant(NamedTuple):
    """A learned constant in its unit."""

    name: str
    value: float
    unit: str
    text: str


CONVERSIONS: dict[str, Callable[[float], float]] = {
    "": float,
    "exp": math.exp,
    "1 + exp": lambda x: 1 + math.exp(x),
    "logistic": lambda x: 1 / (1 + math.exp(-x)),
}
"""{conversion in `learned_constants.csv`: function}"""


MEANINGS = {
    row["constant"]: Meaning(row["unit"], row["meaning"], float(row["scale"]), CONVERSIONS[row["conversion"]])
    for row in packaged_rows(Path(__file__).with_name("learned_constants.csv"))
}
"""{parameter: its conversion and meaning}, of `learned_constants.csv`"""
_WAITS = {"fp32/softmax": ("block, long rows", "load, long rows", "block, short rows", "load, short rows")}


def constants(name: str, parameters: Parameters) -> Iterator[ChosenConstant]:
    """Yield the constants of the class `name` that all GPUs share, in the units of the formulas."""
    for key, meaning in MEANINGS.items():
        if key in parameters:
            values = _members(name, np.asarray(parameters[key]))
            for label, value in zip(_labels(name, key, len(values)), values.tolist(), strict=True):
                yield ChosenConstant(label, meaning.convert(value) * meaning.scale, meaning.unit, meaning.text)


def speeds(parameters: Parameters) -> dict[tuple[str, str], float]:
    """Return {(GPU, data type): speed of its matrix units / the datasheet's} from the logarithms `speed.GPU.TYPE`."""
    found = {key.split(".", 1)[1]: value for key, value in parameters.items() if key.startswith("speed.")}
    named = ((*key.rpartition(".")[::2], float(np.ravel(value)[0])) for key, value in sorted(found.items()))
    return {(gpu, dtype): math.exp(value) for gpu, dtype, value in named}


def _members(name: str, value: Floats) -> Floats:
    """Return one value of each constant (size,): the first row for CLASSES, which have one member, else the mean over members."""
    rows = value.reshape(len(value), -1) if value.ndim > 1 else value.reshape(1, -1)
    result: Floats = rows[0] if name in CLASSES else rows.mean(axis=0)
    return result


def _labels(name: str, key: str, count: int) -> list[str]:
    """Return the `count` names of a parameter's values: `key` itself for one value, else with a word or index in brackets."""
    if count == 1:
        return [key]
    known = MEMORIES if key == "share" else _WAITS.get(name, ())
    return [f"{key} ({known[i] if i < len(known) else i})" for i in range(count)]


Meta = Mapping[str, Any]
FIGURES = ("mean", "median", "p90")


class WeightsTable(NamedTuple):
    """A table. Its first `names` columns are names, the others figures."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    names: int = 2


def percent(value: float | None) -> str:
    """Return a share as text, such as `6.2 %`; empty for None."""
    return "" if value is None else f"{100 * value:.1f} %"


def overview(meta: Meta) -> WeightsTable:
    """Return one row per class: what it learned, its error on unseen GPUs and the worst of them, and other known errors."""
    header = ("class", "kernels", "GPUs", "unseen GPUs", "worst", "with a scalar", "own GPU", "coverage", "widened")
    rows = []
    for kind, found in meta["errors"].items():
        unseen = {gpu: entry for gpu, entry in found.items() if entry["unseen"]}
        worst = max(unseen, key=lambda gpu: float(unseen[gpu]["mean"]), default=None)
        means = (
            average(entry.get("scalar", {}).get("mean") for entry in unseen.values()),
            average(entry["mean"] for entry in meta.get("own", {}).get(kind, {}).values()),
            *_coverage(meta, kind),
        )
        facts = (kind, f"{meta['learned'][kind]['rows']:,}", str(len(meta["learned"][kind]["gpus"])))
        mean = percent(average(entry["mean"] for entry in unseen.values()))
        rows.append((*facts, mean, f"{percent(unseen[worst]['mean'])} {worst}" if worst else "", *map(percent, means)))
    return WeightsTable("mean absolute errors", header, rows, 1)


def average(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values, or None without any."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _coverage(meta: Meta, kind: str) -> tuple[float | None, float | None]:
    """Return the coverage of a class's interval on generations left out, with plain and with widened quantiles."""
    found = meta.get("coverage", {}).get(kind)
    return (found.get("plain"), found.get("widened")) if isinstance(found, Mapping) else (found, None)


def _entries(meta: Meta, errors: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield (class, GPU, figures) of one set of errors in the metadata, `errors` or `own`."""
    return ((kind, gpu, entry) for kind, found in meta.get(errors, {}).items() for gpu, entry in found.items())


def _row(entry: Mapping[str, Any], *more: str) -> tuple[str, ...]:
    """Return text of the mean, median, 90th percentile and the figures `more` of an entry in percent, and its bias as a ratio."""
    return (*(percent(entry.get(key)) for key in (*FIGURES, *more)), f"{entry['bias']:.2f}")


def errors(meta: Meta) -> WeightsTable:
    """Return one row per class and GPU: errors on held-out kernels, also with one measured scalar."""
    header = ("class", "GPU", "new", "mean", "median", "90th", ">20 GFLOP", "bias", "scalar", "kernels")
    rows = []
    for kind, gpu, entry in _entries(meta, "errors"):
        new, scalar = "GPU" if entry["unseen"] else "kernels", percent(entry.get("scalar", {}).get("mean"))
        rows.append((kind, gpu, new, *_row(entry, "large"), scalar, f"{entry['count']:,}"))
    return WeightsTable("errors on kernels left out of training", header, rows, 3)


def unseen(meta: Meta, others: Sequence[Meta]) -> str:
    """Return per class the mean error in percent over GPUs outside the training data, with those of `others` in brackets."""
    texts = []
    for kind, found in meta["errors"].items():
        gpus = [gpu for gpu, entry in found.items() if entry["unseen"]]
        per_model = [[one["errors"].get(kind, {}).get(gpu, {}).get("mean") for gpu in gpus] for one in (meta, *others)]
        first, *theirs = ("–" if mean is None else f"{100 * mean:.1f}" for mean in map(average, per_model))
        texts.append(f"{kind} {first} ({', '.join(theirs)})")
    return "; ".join(texts)


def wide(meta: Meta) -> WeightsTable:
    """Return one row per GPU and data type: errors on GEMMs with all sides of at least 256, the GPU's generation left out."""
    header = ("class", "GPU", "type", "mean", "median", "90th", "bias", "scalar", "median", "90th")
    rows = [
        (kind, gpu, dtype, *_row(part), *(percent(part.get("scalar", {}).get(key)) for key in FIGURES))
        for kind, gpu, entry in _entries(meta, "errors")
        for dtype, part in entry.get("wide", {}).items()
    ]
    return WeightsTable("products with sides of 256 and more, the GPU's generation left out", header, rows, 3)


def own(meta: Meta) -> WeightsTable:
    """Return one row per class and GPU: errors on held-out shapes of measured GPUs."""
    header = ("class", "GPU", "mean", "median", "90th", ">20 GFLOP", "bias", "kernels")
    rows = [(kind, gpu, *_row(one, "large"), f"{one['count']:,}") for kind, gpu, one in _entries(meta, "own")]
    return WeightsTable("measured GPUs, shapes held out", header, rows)


def intervals(meta: Meta) -> WeightsTable:
    """Return one row per class: the 80 % interval of measured / forecast by length of a kernel, and its widening."""
    short, long = (seconds(edge) for edge in EDGES)
    header = ("class", "GPU", f"below {short}", f"to {long}", "longer", "power", "coverage", "widened")
    rows = []
    for kind, found in meta.get("intervals", {}).items():
        for key, label in (("new", "new"), ("seen", "measured")):
            if key in found:
                cells = (f"{low:.2f} to {high:.2f}" for low, high in found[key])
                new = (f"{found.get('widen', 1.0):.2f}", *map(percent, _coverage(meta, kind)))
                rows.append((kind, label, *cells, *(new if key == "new" else ("", "", ""))))
    return WeightsTable("80 % intervals of measured / forecast", header, rows)


def learned(weights: Weights) -> WeightsTable:
    """Return one row per constant that all GPUs share. Classes with equal constants share a row."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for kind, parameters in sorted(weights.classes.items()):
        groups.setdefault(tuple(constants(kind, parameters)), []).append(kind)
    rows = [
        (", ".join(kinds), one.name, f"{one.value:.4g}", one.unit, one.text)
        for found, kinds in sorted(groups.items(), key=lambda item: item[1])
        for one in found
    ]
    return WeightsTable("learned constants", ("class", "constant", "value", "unit", "meaning"), rows, 5)


def boards(weights: Weights) -> WeightsTable:
    """Return one row per GPU: speed of its matrix units by data type, relative to the datasheet's."""
    found = {board: value for parameters in weights.classes.values() for board, value in speeds(parameters).items()}
    types = sorted({dtype for _, dtype in found})
    rows = [
        (gpu, *(f"{found[gpu, dtype]:.3f}" if (gpu, dtype) in found else "" for dtype in types))
        for gpu in sorted({gpu for gpu, _ in found})
    ]
    return WeightsTable("speed of measured GPUs, of what the datasheet promises", ("GPU", *types), rows, 1)


def sources(meta: Meta) -> WeightsTable:
    """Return one row per input table, with the start of its SHA-256."""
    found = [(name, f"{digest}…") for name, digest in sorted(meta["data"].items())]
    return WeightsTable("data", ("table", "SHA-256"), found)


def rows(meta: Meta) -> WeightsTable:
    """Return one row per class: number of kernels that it learned from, and their GPUs."""
    found = [(kind, f"{facts['rows']:,}", ", ".join(facts["gpus"])) for kind, facts in meta["learned"].items()]
    return WeightsTable("learned from", ("class", "kernels", "GPUs"), found, 3)


def markdown(table: WeightsTable) -> str:
    """Return a table in Markdown without empty columns."""
    kept = [i for i, _ in enumerate(table.header) if any(row[i] for row in table.rows)]
    rule = ["---" if i < table.names else "---:" for i, _ in enumerate(table.header)]
    return "\n".join(f"| {' | '.join(line[i] for i in kept)} |" for line in (table.header, rule, *table.rows))


TEMPLATE = Path(__file__).with_name("model_card.md")
BASELINES = ("linear", "habitat")


def write(path: Path, weights: Weights) -> None:
    """Write the model card. Raises InputError if the path cannot be written, and DiskFullError if no space is left."""
    save(path, card(weights))


def card(weights: Weights) -> str:
    """Return the model card of weights in Markdown, with the mean errors of the shipped baselines.

    Equal weights give equal text.
    """
    meta = weights.meta
    means = sorted(float(row[3].split()[0]) for row in overview(meta).rows if row[3])
    out = f"Without {', '.join(meta['left_out'])}. " if meta.get("left_out") else ""
    command = f"`clustersim lab show --predictor {meta['predictor']} --card FILE`"
    return TEMPLATE.read_text(encoding="utf-8").format(
        name=meta["predictor"],
        seed=meta["seed"],
        size=f"{4 * sum(value.size for own in weights.classes.values() for value in own.values()) / 1e6:.1f} MB",
        left_out=out,
        low=f"{means[0]:.0f}" if means else "–",
        high=f"{means[-1]:.0f} %" if means else "–",
        generated=f"Written from the weights by {command}; every figure is from their metadata.",
        overview=markdown(overview(meta)),
        unseen=unseen(meta, [weights_file.read(weights_file.shipped(name), name).meta for name in BASELINES]),
        sources=", ".join(f"`{name}` {digest}" for name, digest in sources(meta).rows),
    )
