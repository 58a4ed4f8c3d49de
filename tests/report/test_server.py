"""The server: who may ask, what is there, and that no client can disturb anybody."""

from __future__ import annotations

import gzip
import http.client
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.report import server as server_module
from slipstream.report.live_process import serving
from slipstream.report.server import MOST_CONNECTIONS, MOST_STREAMS, Server
from slipstream.session.directory import SessionDirectory
from slipstream.store import Store
from tests.report.made_up import made_up_session, made_up_trial, play

TOKEN = "a-token-of-some-length"


@contextmanager
def running(root: Path, token: str | None = None) -> Iterator[Server]:
    with Server(root, "127.0.0.1", 0, token) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.ending.set()
            server.shutdown()
            thread.join()


def get(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.access.port, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[SessionDirectory]]:
    """Two sessions, and a folder that is none, for those who only read."""
    root = tmp_path_factory.mktemp("sessions")
    made = [made_up_session(root / name, seed=n, model=name) for n, name in enumerate(("first", "second"))]
    (root / "broken").mkdir()
    (root / "broken" / "session.json").write_text("{")
    return root, made


def test_what_is_there(two: Any) -> None:
    root, made = two
    with running(root) as server:
        status, headers, body = get(server, "/")
        assert (status, b"<!doctype html>" in body) == (200, True)
        assert headers["cache-control"] == "no-store"
        rows = json.loads(get(server, "/api/sessions")[2])
        assert {row["id"] for row in rows} == {folder.session for folder in made}
        status, headers, body = get(server, f"/api/session/{made[0].session}")
        assert (status, headers["content-encoding"]) == (200, "gzip")
        assert json.loads(gzip.decompress(body))["session"]["model"] == "first"
        assert get(server, f"/compare/{made[0].session}/{made[1].session}")[0] == 200
        status, headers, body = get(server, "/", "HEAD")
        assert (status, body) == (200, b"")


def test_one_session_is_shown_at_once(tmp_path: Path) -> None:
    folder = made_up_session(tmp_path / "only")
    with running(folder.path) as server:
        status, headers, _ = get(server, "/")
        assert (status, headers["location"]) == (303, f"/session/{folder.session}")


NOWHERE = (
    "/nothing",
    "/api",
    "/api/session",
    "/api/session/unknown",
    "/session/unknown",
    "/compare/a/b",
    "/session/../../etc/passwd",
    "/api/session/..%2f..%2f..%2fetc%2fpasswd",
    "/api/session/%2e%2e/store.db",
    "/store.db",
    "/session.json",
    "//etc/passwd",
    "/web/main.js",
)


def test_everything_else_is_not_there(two: Any) -> None:
    with running(two[0]) as server:
        for path in NOWHERE:
            assert get(server, path)[0] == 404, path


def test_it_only_reads(two: Any) -> None:
    with running(two[0]) as server:
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert get(server, "/", method)[0] == 501


def test_a_page_from_elsewhere_cannot_read_along(two: Any) -> None:
    with running(two[0]) as server:
        assert get(server, "/api/sessions", Host="evil.example")[0] == 403
        assert get(server, "/api/sessions", Host=f"localhost:{server.access.port}")[0] == 200


PATHS = ("/", "/api/sessions", "/events", "/nothing", "/session/x")


@pytest.mark.parametrize(
    "headers",
    [{}, {"Cookie": "slipstream-1=x"}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {TOKEN}x"}],
)
def test_every_request_needs_the_token(headers: dict[str, str], two: Any) -> None:
    with running(two[0], TOKEN) as server:
        for path in PATHS:
            status, _, body = get(server, path, **headers)
            assert status == 401
            assert TOKEN.encode() not in body
            assert get(server, f"{path}?token={TOKEN[:-1]}")[0] == 401


def test_the_token_opens_every_way_it_may_come(two: Any) -> None:
    with running(two[0], TOKEN) as server:
        assert get(server, "/api/sessions", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert get(server, f"/api/sessions?token={TOKEN}")[0] == 200
        status, headers, _ = get(server, f"/?token={TOKEN}")
        # The address bar and the history do not keep it.
        assert (status, headers["location"]) == (303, "/")
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert get(server, "/api/sessions", Cookie=cookie.partition(";")[0])[0] == 200
        assert server.url.endswith(f"/?token={TOKEN}")


def read_event(stream: Any) -> tuple[str, Any]:
    """The next event of a stream, heartbeats left out."""
    name = ""
    while True:
        line = stream.readline().decode().rstrip("\n")
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            return name, json.loads(line.removeprefix("data: "))


def test_a_stream_tells_of_every_change_and_of_the_end(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    made = [made_up_session(root / name, seed=n) for n, name in enumerate(("first", "second"))]
    with running(root) as server, socket.create_connection(("127.0.0.1", server.access.port), timeout=20) as client:
        client.sendall(b"GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n")
        stream = client.makefile("rb")
        name, before = read_event(stream)
        assert (name, set(before)) == ("sessions", {folder.session for folder in made})
        with Store.open(made[0].store) as store:
            hardware = store.session(made[0].session).hardware
            keys = list(store.session_operators(made[0].session))
            play(store, made[0].session, hardware, keys, range(12, 14), np.random.default_rng(5))
            name, after = read_event(stream)
            assert after[made[0].session] != before[made[0].session]
            assert after[made[1].session] == before[made[1].session]
            body = gzip.decompress(get(server, f"/api/session/{made[0].session}")[2])
            assert len(json.loads(body)["slots"]) == 14
        server.ending.set()
        while name != "end":
            name, _ = read_event(stream)


def test_a_session_that_begins_later_appears(tmp_path: Path) -> None:
    root = tmp_path / "later"
    with running(root) as server:
        assert json.loads(get(server, "/api/sessions")[2]) == []
        folder = made_up_session(root)
        deadline = time.monotonic() + 20
        while not (rows := json.loads(get(server, "/api/sessions")[2])):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert rows[0]["id"] == folder.session


def test_copies_and_losses(tmp_path: Path) -> None:
    """A copied folder is a session of its own; one without its store, or gone, does not take the others along."""
    root = tmp_path / "sessions"
    folder = made_up_session(root / "one")
    shutil.copytree(folder.path, root / "two")
    lost = made_up_session(root / "lost", seed=3)
    lost.store.unlink()
    with running(root) as server:
        rows = json.loads(get(server, "/api/sessions")[2])
        assert {row["id"]: row["name"] for row in rows} == {folder.session: "one", f"{folder.session}~2": "two"}
        body = gzip.decompress(get(server, f"/api/session/{folder.session}~2")[2])
        assert json.loads(body)["session"]["name"] == "two"
        status, _, said = get(server, f"/api/session/{lost.session}")
        assert (status, b"is gone" in said) == (503, True)
        shutil.rmtree(folder.path)
        deadline = time.monotonic() + 20
        while len(json.loads(get(server, "/api/sessions")[2])) != 1:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert json.loads(get(server, "/api/sessions")[2])[0]["name"] == "two"


def test_streams_and_connections_are_bounded(two: Any) -> None:
    with running(two[0]) as server:
        clients = [socket.create_connection(("127.0.0.1", server.access.port), timeout=20) for _ in range(MOST_STREAMS)]
        try:
            for client in clients:
                client.sendall(b"GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n")
                assert client.recv(12).endswith(b"200")
            assert get(server, "/events")[0] == 503
            assert get(server, "/api/sessions")[0] == 200
            # Clients that say nothing take connections, until there are none left.
            for _ in range(MOST_CONNECTIONS - MOST_STREAMS):
                clients.append(socket.create_connection(("127.0.0.1", server.access.port), timeout=20))
            time.sleep(0.3)
            assert get(server, "/api/sessions")[0] == 503
        finally:
            for client in clients:
                client.close()
        deadline = time.monotonic() + 20
        while get(server, "/api/sessions")[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_client_that_takes_nothing_is_dropped(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module._Handler, "timeout", 1.0)
    with running(large) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.access.port))
        session = SessionDirectory.read(large).session
        get(server, f"/api/session/{session}")
        client.sendall(b"GET /" + b" HTTP/1.0\r\nHost: localhost\r\n" + b"X: y\r\n" * 50)  # never ends
        deadline = time.monotonic() + 20
        while server._connections._value < MOST_CONNECTIONS:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        # The one that asks for a lot and reads none of it.
        with socket.socket() as greedy:
            greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            greedy.connect(("127.0.0.1", server.access.port))
            greedy.sendall(f"GET /api/session/{session} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            time.sleep(0.2)
            while server._connections._value < MOST_CONNECTIONS:
                assert time.monotonic() < deadline
                time.sleep(0.1)


def test_a_writer_does_not_notice_forty_clients(tmp_path: Path) -> None:
    """Trials are written one by one, durably, while clients ask as fast as they can; one of them is stuck."""
    folder = made_up_session(tmp_path / "s", operators=20, slots=200, status="running")
    stop = threading.Event()
    answered: list[int] = []

    def ask(server: Server) -> None:
        while not stop.is_set():
            try:
                answered.append(get(server, f"/api/session/{folder.session}")[0])
            except OSError:
                continue

    with running(folder.path) as server, Store.open(folder.store) as store:
        stuck = socket.create_connection(("127.0.0.1", server.access.port))
        stuck.sendall(b"GET /events HTTP/1.0\r\n")
        threads = [threading.Thread(target=ask, args=(server,)) for _ in range(40)]
        for thread in threads:
            thread.start()
        hardware = store.session(folder.session).hardware
        key = next(iter(store.session_operators(folder.session)))
        try:
            for position in range(200):
                store.append_trial(made_up_trial(folder.session, hardware, key, 219, 100 + position, 1e-4, 0.0))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            stuck.close()
        assert 200 in answered
        # A page that asks whenever it is told to has everything in the end.
        with socket.create_connection(("127.0.0.1", server.access.port), timeout=20) as client:
            client.sendall(b"GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n")
            stream = client.makefile("rb")
            while True:
                read_event(stream)
                body = json.loads(gzip.decompress(get(server, f"/api/session/{folder.session}")[2]))
                if body["headline"]["trials"] == 20 + 200 * 8 + 200:
                    break


def test_beside_a_session_it_ends_with_it_however_that_ends(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from slipstream.report.live_process import serving\n"
        "with serving(Path(sys.argv[1])) as url:\n"
        "    print(url, flush=True); sys.stdin.readline(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    folder = made_up_session(tmp_path / "s")
    command = [sys.executable, "-c", script, str(folder.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline().strip().rstrip("/").rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", f"/session/{folder.session}")
        assert connection.getresponse().status == 200
        process.communicate("now\n")
    deadline = time.monotonic() + 20
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                break
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_beside_a_session_it_ends_in_good_order(tmp_path: Path) -> None:
    started = time.monotonic()
    with serving(tmp_path / "not there yet") as url:
        port = int(url.rstrip("/").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert time.monotonic() - started < 30
