"""The model card of a predictor: a page written from its weights, whose figures are those of their metadata."""

from __future__ import annotations

from pathlib import Path

from clustersim.lab import weights_tables
from clustersim.predictors import weights_file
from clustersim.predictors.weights_file import Weights
from clustersim.writing import save

TEMPLATE = Path(__file__).with_name("model_card.md")
BASELINES = ("linear", "habitat")


def write(path: Path, weights: Weights) -> None:
    """Write the model card. Raises InputError when the place cannot be written, DiskFullError when no space is left."""
    save(path, card(weights))


def card(weights: Weights) -> str:
    """Return the model card of weights in Markdown, beside the mean errors of the baselines that ship.

    The same weights give the same text.
    """
    meta = weights.meta
    baselines = {name: weights_file.read(weights_file.shipped(name), name).meta for name in BASELINES}
    tables = {
        "overview": weights_tables.overview(meta),
        "errors": weights_tables.errors(meta, baselines),
        "wide": weights_tables.wide(meta),
        "own": weights_tables.own(meta),
        "intervals": weights_tables.intervals(meta),
        "learned": weights_tables.learned(weights),
        "boards": weights_tables.boards(weights),
        "rows": weights_tables.rows(meta),
        "sources": weights_tables.sources(meta),
    }
    out = f"Without {', '.join(meta['left_out'])}. " if meta.get("left_out") else ""
    command = f"`clustersim lab show --predictor {meta['predictor']} --card FILE`"
    return TEMPLATE.read_text(encoding="utf-8").format(
        name=meta["predictor"],
        seed=meta["seed"],
        size=f"{_bytes(weights) / 1e6:.1f} MB",
        left_out=out,
        generated=f"Written from the weights by {command}; every figure is from their metadata.",
        **{name: weights_tables.markdown(table) if table.rows else "None." for name, table in tables.items()},
    )


def _bytes(weights: Weights) -> int:
    """Return the bytes of all parameters as they are stored, in 32 bits."""
    return sum(4 * value.size for parameters in weights.classes.values() for value in parameters.values())
