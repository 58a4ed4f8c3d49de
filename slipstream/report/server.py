"""The live page's server: the standard library's, reading only, and as unobtrusive as a process can be.

Paths name views and session ids; none is ever turned into a file name. Every connection has a thread, there are only
so many of them, and a client that does not take what it asked for is dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from slipstream.errors import SlipstreamError
from slipstream.report.access import Access
from slipstream.report.errors import ReportError
from slipstream.report.page import live_page
from slipstream.report.sessions import LOOK_S, Sessions

MOST_CONNECTIONS = 48
MOST_STREAMS = 24
PATIENCE_S = 10.0  # for a client to send its request, or to take an answer
_HEARTBEAT_S = 10.0
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Server(ThreadingHTTPServer):
    """Serves the sessions under `root`; `close_politely` lets the pages fetch the last figures first."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, root: Path, host: str, port: int, token: str | None) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.sessions = Sessions(root)
        self.page = live_page().encode()
        self.streams = threading.BoundedSemaphore(MOST_STREAMS)
        self.ending = threading.Event()
        self._connections = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ReportError(
                f"cannot listen on {host} port {port} ({error.strerror}): choose another --port, or --port 0 for any"
            ) from error
        except OverflowError as error:
            raise ReportError(f"there is no port {port}: choose one from 0 to 65535") from error
        self.access = Access(token, host, self.server_address[1])

    @property
    def url(self) -> str:
        host = self.access.host
        shown = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        query = f"?token={self.access.token}" if self.access.token else ""
        return f"http://{shown}:{self.access.port}/{query}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for the connection, if there is one left."""
        if not self._connections.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.settimeout(1.0)
                request.sendall(b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nobody's business; anything else `_Handler` has answered already."""

    def close_politely(self, seconds: float = 1.5) -> None:
        self.ending.set()
        time.sleep(seconds)
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        try:
            self._answer()
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except SlipstreamError as error:
            self._send_text(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except Exception as error:
            self._send_text(HTTPStatus.INTERNAL_SERVER_ERROR, f"internal error: {type(error).__name__}: {error}")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self) -> None:
        access = self.server.access
        head = self.headers
        if not access.allows(self.path, head.get("Cookie", ""), head.get("Authorization", ""), head.get("Host", "")):
            status = HTTPStatus.FORBIDDEN if access.token is None else HTTPStatus.UNAUTHORIZED
            self._send_text(status, "open the address that slipstream serve printed, token included")
            return
        parts = [unquote(part) for part in urlsplit(self.path).path.split("/") if part]
        match parts:
            case [] | ["session", _] | ["compare", _, _]:
                self._send_page(parts)
            case ["api", "sessions"]:
                self._send(HTTPStatus.OK, "application/json", json.dumps(self.server.sessions.summaries()).encode())
            case ["api", "session", session]:
                self._send_session(session)
            case ["events"]:
                self._stream()
            case _:
                self._send_text(HTTPStatus.NOT_FOUND, "there is nothing here")

    def _send_page(self, parts: list[str]) -> None:
        known = self.server.sessions.revisions()
        if any(session not in known for session in parts[1:]):
            self._send_text(HTTPStatus.NOT_FOUND, "there is no such session")
            return
        here = "/" + "/".join(quote(part, safe="") for part in parts)
        if self.server.access.in_query(self.path):
            # From now on the cookie carries the token, and the address bar no longer shows it.
            cookie = f"{self.server.access.cookie}={self.server.access.token}; Path=/; HttpOnly; SameSite=Strict"
            self._send(HTTPStatus.SEE_OTHER, "text/plain", b"", {"Location": here, "Set-Cookie": cookie})
        elif not parts and len(known) == 1:
            self._send(HTTPStatus.SEE_OTHER, "text/plain", b"", {"Location": f"/session/{quote(next(iter(known)))}"})
        else:
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)

    def _send_session(self, session: str) -> None:
        body = self.server.sessions.body(session)
        if body is None:
            self._send_text(HTTPStatus.NOT_FOUND, "there is no such session")
        else:
            self._send(HTTPStatus.OK, "application/json", body, {"Content-Encoding": "gzip"})

    def _stream(self) -> None:
        """Server-sent events: the revisions whenever one has changed, until the client or the server goes."""
        if self.command == "HEAD" or not self.server.streams.acquire(blocking=False):
            self._send_text(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open")
            return
        try:
            self._start(HTTPStatus.OK, {"Content-Type": "text/event-stream"})
            told, silent_since = None, time.monotonic()
            while not self.server.ending.is_set():
                revisions = self.server.sessions.revisions()
                if revisions != told:
                    self.wfile.write(f"event: sessions\ndata: {json.dumps(revisions)}\n\n".encode())
                    told, silent_since = revisions, time.monotonic()
                elif time.monotonic() - silent_since > _HEARTBEAT_S:
                    self.wfile.write(b": still here\n\n")
                    silent_since = time.monotonic()
                self.server.ending.wait(LOOK_S)
            self.wfile.write(b"event: end\ndata: {}\n\n")
        finally:
            self.server.streams.release()

    def _send_text(self, status: HTTPStatus, text: str) -> None:
        self._send(status, "text/plain; charset=utf-8", f"{text}\n".encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes, more: dict[str, str] | None = None) -> None:
        self._start(status, {"Content-Type": kind, "Content-Length": str(len(body)), **(more or {})})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _start(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""


def stay_in_the_background() -> None:
    """Run only when nobody else wants the processor: what is being measured here must not notice."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
