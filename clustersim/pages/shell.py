"""A page: a title, styles and scripts of `assets/`, and the data that they draw, in one file that makes no request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from clustersim.version import __version__

ASSETS = Path(__file__).parent / "assets"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
"""What a browser may load: what stands in the file, and nothing else."""


def page(title: str, scripts: Sequence[str], styles: Sequence[str], data: Mapping[str, Any]) -> str:
    """Return a page; scripts, styles: names of files in `assets/`, in the order in which they are read."""
    style = "\n".join(_asset(name) for name in styles)
    script = "\n".join(_asset(name) for name in scripts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="generator" content="clustersim {__version__}">\n'
        f"<title>{escape(_printable(title))}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        "<noscript><p>This page draws its data with scripts, which this browser does not run.</p></noscript>\n"
        f'<main id="page"></main>\n<script type="application/json" id="data">{embedded(data)}</script>\n'
        f'<script>\n"use strict";\n{{\n{script}}}\n</script>\n</body>\n</html>\n'
    )


def embedded(data: Mapping[str, Any]) -> str:
    """Return data as JSON that can stand inside a script element: no text in it can end the element or begin another."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _printable(text: str) -> str:
    """Return text without what a file of UTF-8 cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
