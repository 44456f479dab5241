"""Pages of the server and their requests: results, running commands, the form, comparisons.

Pages come from `pages/shell.py`. A report is shown in a sandbox, so that no file in a folder can act as one of these pages. All
computation happens in commands in their own processes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from clustersim.errors import InputError
from clustersim.pages.shell import page, policy
from clustersim.report import store
from clustersim.serve.children import Child, Children
from clustersim.serve.form import RunForm, result_names
from clustersim.serve.guard import LOGIN, Guard
from clustersim.serve.results import PAGE, ResultsFolder

COMMON = ("words.js", "common.js", "serve.js")
HOME = (*COMMON, "serve_children.js", "serve_form.js", "serve_home.js")
RESULT = ("words.js", "common.js", "plot.js", "headline.js", "serve.js", "serve_children.js", "serve_result.js")
COMPARE = ("words.js", "common.js", "stacked.js", "serve.js", "serve_compare.js")
DOOR = (*COMMON, "serve_login.js")
STYLES = ("base.css", "report.css", "serve.css")
OWN = "connect-src 'self'; base-uri 'none'; form-action 'none'"
"""Policy of the server's pages in addition to that of every page."""
SANDBOX = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""Policy of a report: it may draw, but not make requests."""
MOST = 8
"""Largest number of results in a comparison."""
_WRITTEN = re.compile(r"^(?:written to|every point.*:) results/(.+)/(?: |$|points.parquet)", re.MULTILINE)
_WRITERS = {"run": "report", "sweep": "explore"}
"""{command that wrote a result: command that writes its page}"""


@dataclass(frozen=True, slots=True)
class Site:
    """Content of a server and its routes."""

    folder: ResultsFolder
    shown: str
    """The results folder as the user wrote it."""
    form: RunForm
    children: Children
    place: Path
    """Working directory of runs: a folder with a link `results` to the results folder."""

    def app(self) -> Starlette:
        """Return the application."""
        get, post = ["GET", "HEAD"], ["POST"]
        routes = [
            Route("/", self.home, methods=get),
            Route("/result/{name:path}", self.result, methods=get),
            Route("/compare", self.compare_page, methods=get),
            Route("/file/{name:path}/{file}", self.file, methods=get),
            Route("/api/state", self.state, methods=get),
            Route("/api/run", self.run, methods=post),
            Route("/api/page", self.write_page, methods=post),
            Route("/api/compare", self.compare, methods=post),
            Route("/api/stop", self.stop, methods=post),
        ]
        application = Starlette(routes=routes, exception_handlers={InputError: _bad_request})
        application.router.redirect_slashes = False
        return application

    def home(self, _: Request) -> Response:
        """Return the page with the form, running commands and all results."""
        limits = self.children.limits._asdict()
        data = {"folder": self.shown, "form": self.form.facts(), "limits": limits, "most": MOST, **self._state()}
        return _page(f"Results in {self.shown}", HOME, data)

    def result(self, request: Request) -> Response:
        """Return the page of a result: its main figures, command, pages and files."""
        folder = self._folder(request.path_params["name"])
        row, name = self.folder.row(folder) or {}, folder.relative_to(self.folder.root).as_posix()
        paths = [path for file in sorted(store.NAMES) if (path := self.folder.file(name, file))]
        files = [(path.name, path.stat().st_size) for path in paths]
        data = {"row": row, "files": files, "writer": _WRITERS.get(row.get("command", "")), **_answer(folder)}
        return _page(str(row.get("name", "")), RESULT, {**data, "children": self._state()["children"]})

    def compare_page(self, request: Request) -> Response:
        """Return the page that requests and shows a comparison."""
        names = result_names({"results": request.query_params.getlist("of")}, MOST)
        from clustersim.report.terminal import NAMES

        return _page("Compare", COMPARE, {"results": list(names), "names": NAMES})

    def file(self, request: Request) -> Response:
        """Return a file of a result. Its page is shown, other files are downloaded."""
        name, file = request.path_params["name"], request.path_params["file"]
        path = self.folder.file(name, file)
        descriptor = _opened(path) if path else None
        if descriptor is None:
            raise HTTPException(404, "No such file.")
        headers = {"Content-Length": str(os.fstat(descriptor).st_size)}
        if file == PAGE:
            headers["Content-Security-Policy"] = SANDBOX
            return StreamingResponse(_chunks(descriptor), media_type="text/html", headers=headers)
        headers["Content-Disposition"] = f'attachment; filename="{file}"'
        return StreamingResponse(_chunks(descriptor), media_type="application/octet-stream", headers=headers)

    def state(self, _: Request) -> Response:
        """Return the results and running commands as JSON."""
        return JSONResponse(self._state())

    async def run(self, request: Request) -> Response:
        """Start the command of a form's request, and return {`number`} as JSON. Raises InputError for an invalid request."""
        command = self.form.command(await _json(request))
        child = self._start(list(command.words), command.shown, self.place)
        return JSONResponse({"number": child.number}, 202)

    async def write_page(self, request: Request) -> Response:
        """Start the command that writes the page of a result, and return {`number`} as JSON. Raises InputError without a page."""
        [name] = result_names(await _json(request), 1)
        folder = self._folder(name)
        known = store.manifest(folder)
        writer = _WRITERS.get(known.command) if known else None
        if writer is None:
            raise InputError(f"{name}: only runs and sweeps have a page")
        shown = shlex.join(["clustersim", writer, f"{self.shown.rstrip('/')}/{name}"])
        return JSONResponse({"number": self._start([writer, "--", str(folder)], shown).number}, 202)

    async def compare(self, request: Request) -> Response:
        """Return the differences between results as JSON, once the command has ended."""
        names = result_names(await _json(request), MOST)
        folders = [str(self._folder(name)) for name in names]
        shown = shlex.join(["clustersim", "compare", *(f"{self.shown.rstrip('/')}/{name}" for name in names)])
        child = self._start(["compare", "--json", "--", *folders], shown)
        await child.over.wait()
        if child.state != "done":
            raise InputError(child.error or "stopped")
        return JSONResponse({**json.loads(child.out), "shown": shown})

    async def stop(self, request: Request) -> Response:
        """Stop the running or waiting command `number` of a request. Raises HTTPException if there is none."""
        data = await _json(request)
        number = data.get("number") if isinstance(data, dict) else None
        child = self.children.all.get(number) if isinstance(number, int) else None
        if child is None:
            raise HTTPException(404, "No such run.")
        child.stopping.set()
        return JSONResponse({})

    def _start(self, words: list[str], shown: str, cwd: Path | None = None) -> Child:
        """Start a command (arguments `words`, `shown` to users), or queue it. Raises HTTPException if too many wait already."""
        if self.children.full:
            most = self.children.limits
            message = f"{most.at_once} run and {most.waiting} wait already; stop one, or wait for one to end."
            raise HTTPException(429, message, {"Retry-After": "5"})
        return self.children.start(words, shown, cwd)

    def _state(self) -> dict[str, Any]:
        """Return {`results`: rows, `children`: facts of commands, the newest first}, without comparisons."""
        shown = [child for child in list(self.children.all.values()) if child.words[0] != "compare"]
        children = [{**child.facts, "result": self._result_of(child)} for child in reversed(shown)]
        return {"results": self.folder.rows(), "children": children}

    def _result_of(self, child: Child) -> str | None:
        """Return the name of the result that a command has written, or None."""
        if child.state != "done":
            return None
        if child.words[0] in _WRITERS.values():
            return Path(child.words[-1]).relative_to(self.folder.root).as_posix()
        written = _WRITTEN.search(child.out)
        return written[1] if written else None

    def _folder(self, name: str) -> Path:
        """Return the folder of a result. Raises HTTPException if there is none of that name."""
        folder = self.folder.find(name)
        if folder is None:
            raise HTTPException(404, "No such result.")
        return folder


def login(guard: Guard) -> Route:
    """Return the route that receives {`token`} and sets a cookie that proves it; 401 for a wrong one, 429 after several."""

    async def admit(request: Request) -> Response:
        """Set the cookie if the request has the token."""
        data, client = await _json(request), request.client.host if request.client else ""
        token = data.get("token") if isinstance(data, dict) else None
        if guard.failures.left(client) < 1:
            raise HTTPException(429, "Too many wrong tokens; wait a few seconds.")
        if not isinstance(token, str) or not guard.admits(token, client):
            raise HTTPException(401, "That is not the token.")
        answer = JSONResponse({})
        answer.set_cookie(guard.cookie, guard.proof, httponly=True, samesite="strict", path="/")
        return answer

    return Route(LOGIN, admit, methods=["POST"])


def door_page() -> Response:
    """Return the page that asks for the token."""
    return _page("Token", DOOR, {}, 401)


def _page(title: str, scripts: tuple[str, ...], data: Mapping[str, Any], status: int = 200) -> Response:
    """Return a page of the server with its content security policy."""
    page_policy = f"{policy(scripts, OWN)}; frame-ancestors 'none'"
    return HTMLResponse(page(title, scripts, STYLES, data, OWN), status, {"Content-Security-Policy": page_policy})


def _answer(folder: Path) -> dict[str, Any]:
    """Return {`summary`, `asked`: command} of a run; {} if they cannot be read: any program may have written the files."""
    from clustersim.question import StoredRun

    with suppress(InputError):
        return {"summary": store.read_summary(folder), "asked": StoredRun.of(folder).command}
    return {}


async def _json(request: Request) -> Any:
    """Return the JSON data of a request. Raises InputError if its body is not JSON."""
    try:
        return json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise InputError("the request is not valid JSON") from error


async def _bad_request(_: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error), 400)


def _opened(path: Path) -> int | None:
    """Return a file descriptor of a plain file, or None if it is a link or anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def _chunks(descriptor: int) -> Iterator[bytes]:
    """Yield the content of an open file, and close it."""
    with os.fdopen(descriptor, "rb") as file:
        while chunk := file.read(1 << 18):
            yield chunk
