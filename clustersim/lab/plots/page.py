"""The errors of predictors on measured kernels as one page that needs nothing else: tables, and plots as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from clustersim.lab.evaluate import errors
from clustersim.lab.model_card import percent
from clustersim.lab.plots.error_figures import figures
from clustersim.lab.plots.panels import Figure
from clustersim.lab.plots.svg import legend, svg
from clustersim.writing import save

if TYPE_CHECKING:
    import polars as pl

PAGE = "errors.html"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1200px;
  margin: 24px auto; padding: 0 16px }
h1 { font-size: 24px } h2 { font-size: 19px; margin: 40px 0 4px } p { margin: 4px 0 10px; max-width: 76ch }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(340px, 1fr)); gap: 18px 12px }
.panels svg { width: 100%; height: auto; display: block; overflow: hidden }
.tick { stroke: #000; stroke-opacity: 0.12 }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 0 0 12px }
.legend svg { margin: 0 6px -2px 0; overflow: visible }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } th { border-bottom: 1px solid #888 }
td, th { padding: 2px 12px 2px 0; text-align: right } td:first-child, th:first-child { text-align: left }
"""
COLUMNS = ("class", "mean", "median", "90th percentile", "bias", "in the 80 % interval", "kernels", "unseen")


def write(folder: Path, frames: Sequence[pl.DataFrame], split: str) -> Path:
    """Write the page of judged kernels, a frame a predictor, into `folder`. Raises InputError where that cannot be."""
    path = folder / PAGE
    save(path, page(frames, split))
    return path


def page(frames: Sequence[pl.DataFrame], split: str) -> str:
    """Return the page; the same kernels give the same text."""
    body = "\n".join(line for frame in frames for line in _predictor(frame))
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>Errors of kernel predictors</title>\n<style>{STYLE}</style>\n"
        f"<h1>Errors of kernel predictors</h1>\n<p>Forecast against measured kernels; of FP32 kernels the split "
        f"{escape(split)}. Errors are absolute and relative to the measured time.</p>\n{body}\n</html>\n"
    )


def _predictor(frame: pl.DataFrame) -> Iterator[str]:
    name = escape(str(frame["predictor"][0]))
    yield f"<h2>{name}: errors by class</h2>"
    yield _table(frame)
    for figure in figures(frame):
        yield from _figure(figure)


def _figure(figure: Figure) -> Iterator[str]:
    yield f'<section id="{escape(figure.name)}"><h2>{escape(figure.title)}</h2><p>{escape(figure.text)}</p>'
    yield f'<div class="legend">{legend(figure)}</div>'
    yield '<div class="panels">'
    yield from (f"<div>{svg(panel)}</div>" for panel in figure.panels)
    yield "</div></section>"


def _table(frame: pl.DataFrame) -> str:
    head = "".join(f"<th>{name}</th>" for name in COLUMNS)
    rows = []
    for row in errors(frame, ("class",)):
        figures = (
            *(percent(row[key]) for key in ("mean", "median", "p90")),
            f"{row['bias']:.2f}",
            percent(row["coverage"]),
        )
        cells = (row["kind"], *figures, f"{row['samples']:,}", row["new"])
        rows.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
