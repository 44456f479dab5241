"""One HTML file that makes no request: a title, styles and scripts of `assets/`, and the data that they draw."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from clustersim.version import __version__

ASSETS = Path(__file__).parent / "assets"


def policy(scripts: Sequence[str], more: str = "") -> str:
    """Return the content security policy: the file's own content, and only the page's own `scripts`, files in `assets/`.

    `more` are directives for a served page, such as `connect-src 'self'`.
    """
    script = base64.b64encode(hashlib.sha256(_script(scripts).encode()).digest()).decode()
    page_policy = f"script-src 'sha256-{script}'; style-src 'unsafe-inline'; img-src data: blob:"
    return "; ".join(filter(None, ("default-src 'none'", page_policy, more)))


def page(title: str, scripts: Sequence[str], styles: Sequence[str], data: Mapping[str, object], more: str = "") -> str:
    """Return a page as HTML. `scripts` and `styles` are files in `assets/`, in order. `more` extends its policy."""
    style = "\n".join(_asset(name) for name in styles)
    title = title.encode("utf-8", "backslashreplace").decode()  # a folder's name need not be Unicode
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(scripts, more)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="generator" content="clustersim {__version__}">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        "<noscript><p>This page draws its data with scripts, which this browser does not run.</p></noscript>\n"
        f'<main id="page"></main>\n<script type="application/json" id="data">{script_json(data)}</script>\n'
        f"<script>{_script(scripts)}</script>\n</body>\n</html>\n"
    )


def _script(names: Sequence[str]) -> str:
    """Return the files `names` of `assets/` as the one script of a page, in strict mode and a scope of its own."""
    text = "\n".join(_asset(name) for name in names)
    return f'\n"use strict";\n{{\n{text}}}\n'


def script_json(data: Mapping[str, object]) -> str:
    """Return data as JSON for a script element. No text in it can end the element or begin another."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    """Return the text of a file in `assets/`."""
    return (ASSETS / name).read_text(encoding="utf-8")
