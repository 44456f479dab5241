"""Requests that a server refuses: other hosts and origins, a missing token, floods, and large bodies.

A page of another site can make a browser send requests to this machine. So `Host` must be a name of this server (which excludes
foreign names that resolve here), `Origin` and `Sec-Fetch-Site` must show a page of this server, and requests that change
anything must be JSON, which no form of another site can send.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY = 64 << 10
"""Largest size of a request's body in bytes."""
TOO_LARGE = f"Too large: at most {BODY // 1024} KiB are read."
BODY_SECONDS = 10.0
"""Seconds in which a body must arrive."""
REQUESTS = 20.0, 100
"""Requests per second of one client, and its burst."""
FAILURES = 0.2, 5
"""Wrong tokens per second of one client, and its burst."""
CLIENTS = 1000
"""Number of clients whose requests are counted."""
LOGIN = "/login"
"""Path that receives the token, the only one that answers without it."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
    "Connection": "close",
}
"""Headers of every response."""
NOTHING = "default-src 'none'; frame-ancestors 'none'"
"""Content security policy of responses without their own."""


class RateLimiter:
    """Limits events per client to a rate and a burst."""

    def __init__(self, per_second: float, burst: int) -> None:
        self.per_second, self.burst = per_second, burst
        self._left: dict[str, tuple[float, float]] = {}

    def left(self, client: str) -> float:
        """Return the number of events, up to the burst, that a client may have now."""
        left, updated = self._left.get(client, (float(self.burst), 0.0))
        return min(float(self.burst), left + (time.monotonic() - updated) * self.per_second)

    def count(self, client: str) -> bool:
        """Count an event, and return whether it exceeds the limit."""
        left = self.left(client)
        self._left.pop(client, None)
        while len(self._left) >= CLIENTS:
            del self._left[next(iter(self._left))]
        self._left[client] = max(0.0, left - 1), time.monotonic()
        return left < 1


@dataclass(frozen=True, slots=True)
class Guard:
    """ASGI application that answers refused requests instead of `app`."""

    app: ASGIApp
    hosts: frozenset[str] | None
    """Names of this server. None: any IP address, and the name of this machine."""
    token: str = ""
    """Token that clients must present; empty: none."""
    cookie: str = "clustersim"
    """Name of the cookie that proves the token."""
    door: Response | None = None
    """Page that asks for the token."""
    requests: RateLimiter = field(default_factory=lambda: RateLimiter(*REQUESTS))
    failures: RateLimiter = field(default_factory=lambda: RateLimiter(*FAILURES))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI request."""
        if scope["type"] != "http":
            return
        headers, client = Headers(scope=scope), (scope.get("client") or ("",))[0]

        async def secured(message: Message) -> None:
            """Send a message with the headers of every response."""
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                for name, value in {**HEADERS, "Content-Security-Policy": NOTHING}.items():
                    out.setdefault(name, value)
            await send(message)

        refused = self._refused(scope["method"], headers, client) or self._unauthorized(HTTPConnection(scope), client)
        await (refused or self.app)(scope, _bounded(receive), secured)

    def _refused(self, method: str, headers: Headers, client: str) -> Response | None:
        """Return the response to a request of another host, site or form, or of a flood; None if it is allowed."""
        host = headers.get("host", "")
        if self.requests.count(client):
            return PlainTextResponse("Too many requests; wait a second.", 429, {"Retry-After": "1"})
        if not self._is_here(host):
            return PlainTextResponse("This server has another name; open the address that it printed.", 403)
        foreign = headers.get("origin", f"http://{host}") not in (f"http://{host}", f"https://{host}")
        opened = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if foreign or (
            headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
            and not (opened and headers.get("sec-fetch-dest") == "document")
        ):
            return PlainTextResponse("Only pages of this server may send requests to it.", 403)
        if method == "POST" and headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return PlainTextResponse("Send JSON, as application/json.", 415)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:12]) > BODY:
            return PlainTextResponse(TOO_LARGE, 413)
        return None

    def _is_here(self, host: str) -> bool:
        """Return whether a `Host` header names this server."""
        name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
        name = name.lower()
        if self.hosts is not None:
            return name in self.hosts
        with suppress(ValueError):
            ipaddress.ip_address(name)
            return True
        return name in LOOPBACK or name == socket.gethostname().lower()

    def _unauthorized(self, request: HTTPConnection, client: str) -> Response | None:
        """Return the response to a client without the token: the login page for a page, else an error. None if it is known."""
        if not self.token or request.scope["path"] == LOGIN or self._has_token(request, client):
            return None
        pages = request.scope["method"] == "GET" and self.door and "text/html" in request.headers.get("accept", "")
        return self.door if pages else PlainTextResponse("Show the token: Authorization: Bearer TOKEN.", 401)

    def _has_token(self, request: HTTPConnection, client: str) -> bool:
        """Return whether a request has the token, in its cookie or as `Authorization: Bearer`."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.admits(token.strip(), client)
        return hmac.compare_digest(request.cookies.get(self.cookie, "").encode(errors="replace"), self.proof.encode())

    def admits(self, token: str, client: str) -> bool:
        """Return whether a token is right, in constant time. After several wrong ones a client must wait."""
        if self.failures.left(client) < 1:
            return False
        right = hmac.compare_digest(token.encode(errors="replace"), self.token.encode())
        if not right:
            self.failures.count(client)
        return right

    @property
    def proof(self) -> str:
        """Value of the cookie, which proves knowledge of the token without revealing it."""
        return hmac.new(self.token.encode(), b"clustersim serve", "sha256").hexdigest()


def _bounded(receive: Receive) -> Receive:
    """Return a receiver of a request that raises HTTPException for a body that is too large or does not end in time."""
    due, size, more = asyncio.get_running_loop().time() + BODY_SECONDS, 0, True

    async def limited() -> Message:
        """Return the next part of the body; after its end, the next message of the connection."""
        nonlocal size, more
        if not more:
            return await receive()
        try:
            async with asyncio.timeout_at(due):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, "The request did not come to its end.") from None
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        if size > BODY:
            raise HTTPException(413, TOO_LARGE)
        return message

    return limited
