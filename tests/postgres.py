"""A PostgreSQL server for tests, of the installed packages, in a temporary directory."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from slipstream.processes.child import die_with_parent

PASSWORD = "s3cret@:/ é"
_START_SECONDS = 60.0
_OPTIONS = {"max_connections": "40", "shared_buffers": "16MB", "autovacuum": "off", "lc_messages": "C"}


def server_programs() -> Path | None:
    """The directory of `initdb` and `postgres`: Debian keeps them out of the path."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = installed[-1] if installed else shutil.which("initdb")
    return Path(found).parent if found else None


class Server:
    """Connections through its socket need no password, those through TCP do. `tuner` may make databases' contents,
    `guest` may connect only.
    """

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._numbers = itertools.count()
        self._used: list[str] = []
        self._free: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self.directory = Path(tempfile.mkdtemp(prefix="slipstream-"))  # short: the name of a socket has to be
        self.port = _free_port()
        # The server refuses to run as root.
        user = next((u for u in ("postgres", "nobody") if _exists(u)), None) if os.getuid() == 0 else None
        self._as: dict[str, Any] = {}
        if user is not None:
            entry = pwd.getpwnam(user)
            os.chown(self.directory, entry.pw_uid, entry.pw_gid)
            self._as = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        words = ["-U", "admin", "-E", "UTF8", "--locale=C", "--no-sync"]
        words += ["--auth-local=trust", "--auth-host=scram-sha-256"]
        made = subprocess.run(
            [programs / "initdb", "-D", self.directory / "data", *words],
            capture_output=True, text=True, cwd=self.directory, **self._as,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        self.start()
        for role in ("tuner", "guest"):
            self.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")

    def start(self) -> None:
        """It ends with the thread that calls this."""
        settings = {
            **_OPTIONS,
            "unix_socket_directories": str(self.directory),
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
        }
        log = (self.directory / "log").open("ab")
        self._process = subprocess.Popen(
            [self._programs / "postgres", "-D", self.directory / "data", *(f"--{k}={v}" for k, v in settings.items())],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory,
            preexec_fn=lambda: die_with_parent(number=signal.SIGQUIT) and None, **self._as,
        )  # fmt: skip
        log.close()
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                return self.execute("SELECT 1")
            except psycopg.OperationalError:
                alive = self._process.poll() is None
                assert alive and time.monotonic() < deadline, (self.directory / "log").read_text()  # noqa: PT018
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """As a restart of its machine ends it: connections end at once."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(60)

    def remove(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.directory)

    def execute(self, sql: str, database: str = "postgres") -> None:
        """As the administrator."""
        address = {"host": str(self.directory), "port": self.port, "user": "admin", "dbname": database}
        with psycopg.connect(**address, autocommit=True) as connection:
            connection.execute(sql.encode())

    def new_database(self) -> str:
        """The name of an empty one that belongs to `tuner`."""
        self._used.append(self._free.pop() if self._free else self.make_database())
        return self._used[-1]

    def make_database(self, options: str = "") -> str:
        name = f"store{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} OWNER tuner {options}")
        return name

    def empty_databases(self) -> None:
        """So that they can be used again: emptying one takes less time than making one."""
        for name in self._used:
            self.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid(); "
                "DROP SCHEMA IF EXISTS slipstream CASCADE",
                name,
            )
        self._free += self._used
        self._used.clear()

    def url(self, database: str, user: str = "tuner") -> str:
        """Through the socket."""
        return f"postgresql://{user}@/{database}?host={self.directory}&port={self.port}"

    def tcp_url(self, database: str, password: str | None = PASSWORD, user: str = "tuner", port: int = 0) -> str:
        secret = "" if password is None else f":{quote(password, safe='')}"
        return f"postgresql://{user}{secret}@127.0.0.1:{port or self.port}/{database}"


def _exists(user: str) -> bool:
    try:
        return bool(pwd.getpwnam(user))
    except KeyError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
