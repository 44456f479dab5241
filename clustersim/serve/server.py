"""The server: its address, token, limits and end."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import shutil
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from clustersim.errors import InputError
from clustersim.serve.children import ChildLimits, Children, working_folder
from clustersim.serve.form import RunForm
from clustersim.serve.guard import LOOPBACK, Guard
from clustersim.serve.results import ResultsFolder
from clustersim.serve.site import Site, door_page, login

CONNECTIONS = 100
"""Largest number of simultaneous connections."""
HEAD = 32 << 10
"""Largest size of a request's head in bytes."""
HEAD_SECONDS = 10.0
"""Seconds in which a request's head must arrive."""
LEAST = 16
"""Smallest number of characters of a token."""


@dataclass(frozen=True, slots=True)
class Address:
    """Address and token of a server."""

    host: str
    port: int
    token: str

    def check(self) -> None:
        """Raise InputError for an invalid token, and for an address that others can reach without one."""
        if self.token and (len(self.token) < LEAST or not (self.token.isascii() and self.token.isprintable())):
            raise InputError(
                f"the token has to be {LEAST} or more printable ASCII letters; openssl rand -hex 16 makes one"
            )
        if not self.token and not all(address.is_loopback for address in self._addresses()):
            raise InputError(
                f"--host {self.host}: others could start runs here; set a token in CLUSTERSIM_TOKEN, or leave --host out"
            )

    def listen(self) -> socket.socket:
        """Return a listening socket. Raises InputError if the address cannot be used."""
        [family, _, _, _, place] = self._resolved()[0]
        try:
            return socket.create_server(place, family=family, backlog=CONNECTIONS)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise InputError(f"--port {self.port}: is taken on {self.host}; give another, or 0 for any") from error
            raise InputError(
                f"{self.host}:{self.port}: cannot listen there ({os.strerror(error.errno or 0)}); give another --host or --port"
            ) from error

    @property
    def names(self) -> frozenset[str] | None:
        """Hosts that requests may name; None: any address."""
        every = any(address.is_unspecified for address in self._addresses())
        return None if every else LOOPBACK | {self.host.lower(), *map(str, self._addresses())}

    def _addresses(self) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
        """Return the IP addresses of the host."""
        return [ipaddress.ip_address(str(resolved[4][0]).partition("%")[0]) for resolved in self._resolved()]

    def _resolved(self) -> list[Any]:
        """Return the socket addresses of the host, as `socket.getaddrinfo`. Raises InputError if there is none."""
        try:
            return socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise InputError(
                f"--host {self.host}: is not an address of this machine; leave it out for 127.0.0.1"
            ) from error


class _Protocol(H11Protocol):
    """HTTP connection for one request. It closes if no request arrives, so that idle clients do not keep others out.

    If all connections are taken, a new one replaces the oldest idle one.
    """

    since = 0.0
    """Time of its creation on the loop's clock."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, and close the oldest idle one if all are taken."""
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        self.since = loop.time()
        loop.call_later(HEAD_SECONDS, self._close_unasked)
        opened = [c for c in self.connections if isinstance(c, _Protocol) and not c.transport.is_closing()]
        silent = [connection for connection in opened if connection.silent and connection is not self]
        if len(opened) >= CONNECTIONS and silent:
            min(silent, key=lambda connection: connection.since).transport.close()

    @property
    def silent(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def _close_unasked(self) -> None:
        """Close the connection if no request has begun."""
        if self.cycle is None:
            self.transport.close()


class _Server(uvicorn.Server):
    """Server that ends without messages at Ctrl-C, SIGTERM or SIGHUP, and ends its commands."""

    def __init__(self, config: uvicorn.Config, children: Children, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._children, self._said = children, started

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the server at the first signal, and without waiting at the second."""
        self.force_exit, self.should_exit = self.should_exit, True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve, and say so."""
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # its terminal is closed
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.handle_exit, signal.SIGHUP, None)
        await super().startup(sockets)
        self._said()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop all commands, then the server."""
        await self._children.close()
        await super().shutdown(sockets)


def serve(results: Path, address: Address, form: RunForm, limits: ChildLimits, say: Callable[[str], None]) -> None:
    """Serve the results of a folder until Ctrl-C or SIGTERM. `say` receives the address. Raises InputError if it is in use."""
    folder = ResultsFolder.of(results)
    address.check()
    listening = address.listen()
    place = working_folder(folder.root)
    try:
        children = Children(limits)
        site = Site(folder, str(results), form, children, place)
        asyncio.run(_serve(site, children, address, listening, say))
    finally:
        shutil.rmtree(place, ignore_errors=True)


async def _serve(
    site: Site, children: Children, address: Address, listening: socket.socket, say: Callable[[str], None]
) -> None:
    """Serve a site at a listening socket until a signal ends it. say: receives the URL when requests are answered."""
    host, port = address.host, listening.getsockname()[1]
    app = site.app()
    guard = Guard(app, address.names, address.token, f"clustersim-{port}", door_page() if address.token else None)
    if address.token:
        app.router.routes.append(login(guard))
    options: dict[str, Any] = {"lifespan": "off", "ws": "none", "http": _Protocol, "proxy_headers": False}
    options |= {"log_config": None, "log_level": "error", "access_log": False, "server_header": False}
    options |= {"limit_concurrency": CONNECTIONS, "h11_max_incomplete_event_size": HEAD}
    config = uvicorn.Config(guard, timeout_graceful_shutdown=3, **options)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    await _Server(config, children, lambda: say(url)).serve([listening])
