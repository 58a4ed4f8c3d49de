"""A store in a PostgreSQL database: what can be wrong with it or the way to it, and many that use it at once."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slipstream.cli import main
from slipstream.store import (
    PostgresUrl,
    SessionBusyError,
    Store,
    StoreError,
    StoreLockedError,
    StoreReadOnlyError,
    StoreUnreachableError,
    store_location,
)
from slipstream.store import (
    postgres as postgres_store,
)
from slipstream.store.check import find_problems
from slipstream.store.location import without_password
from slipstream.store.merge import merge
from slipstream.store.prune import prune
from slipstream.store.schema import VERSION
from tests.postgres import PASSWORD, Server
from tests.store.processes import python
from tests.store.samples import filled, program, trial

pytestmark = pytest.mark.xdist_group("postgres")


@pytest.fixture
def url(postgres: Server) -> str:
    """An empty database."""
    return postgres.url(postgres.new_database())


def store_command(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["store", *map(str, arguments)], catch_exceptions=False)


# URLs


@pytest.mark.parametrize(
    ("given", "shown", "secret"),
    [
        ("postgresql://me@host/db", "postgresql://me@host/db", None),
        ("postgres://me:pa%40ss@host:5432/db", "postgresql://me@host:5432/db", "pa@ss"),
        ("postgresql://me:p@ss:w@host/db?sslmode=require", "postgresql://me@host/db?sslmode=require", "p@ss:w"),
        ("postgresql:///db?host=/run/x&password=hush", "postgresql:///db?host=/run/x", "hush"),
        ("postgresql://me:pw@one:1,[::1]:2/db", "postgresql://me@one:1,[::1]:2/db", "pw"),
    ],
)
def test_a_url_is_shown_without_its_password(given: str, shown: str, secret: str | None) -> None:
    url = store_location(given)
    assert isinstance(url, PostgresUrl)
    assert str(url) == shown
    assert url.secrets == ((("password", secret),) if secret else ())
    assert secret is None or secret not in repr(url)
    assert without_password(f"--store={given}") == f"--store={shown}"


@pytest.mark.parametrize(
    "given",
    [
        "mysql://me:hush@host/db",
        "postgresql+psycopg://me:hush@host/db",
        "postgresql://me:hu/hush@host/db",
        "postgresql://me:hu?hush@host/db",
        "postgresql://me:hush/db",
    ],
)
def test_a_url_that_cannot_be_read_is_not_repeated(given: str) -> None:
    with pytest.raises(StoreError, match="postgresql://USER@HOST/DATABASE") as refused:
        store_location(given)
    assert "hush" not in str(refused.value)
    done = store_command("stats", given)
    assert done.exit_code == 2
    assert "hush" not in done.output


def test_a_url_is_no_path() -> None:
    with pytest.raises(StoreError, match="give the store as text"):
        store_location(Path("postgresql://me@host/db"))


# What a person can get wrong


def _closed_port(server: Server) -> str:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return server.tcp_url("postgres", port=probe.getsockname()[1])


def _without_rights(server: Server) -> str:
    name = server.new_database()
    filled(server.url(name))[0].close()
    return server.tcp_url(name, user="guest")


def _changed(sql: str) -> Callable[[Server], str]:
    def change(server: Server) -> str:
        name = server.new_database()
        filled(server.url(name))[0].close()
        server.execute(sql, name)
        return server.tcp_url(name)

    return change


def _something_else(server: Server) -> str:
    name = server.new_database()
    server.execute("CREATE SCHEMA slipstream AUTHORIZATION tuner; CREATE TABLE slipstream.trial (id int)", name)
    return server.tcp_url(name)


WRONG: dict[str, tuple[Callable[[Server], str], str]] = {
    "no server": (_closed_port, "cannot reach the server"),
    "wrong password": (lambda s: s.tcp_url("postgres", "wrong" + PASSWORD), "refused the password of tuner: set PG"),
    "no password": (lambda s: s.tcp_url("postgres", None), "asks for a password: set PGPASSWORD, or write a line"),
    "no database": (lambda s: s.tcp_url("nowhere"), "there is no database nowhere at"),
    "no user": (lambda s: s.url("postgres", "nobody_here"), "there is no user nobody_here at"),
    "no store": (lambda s: s.tcp_url(s.new_database()), "there is no store in"),
    "no rights": (_without_rights, "you lack a right on"),
    "newer": (_changed(f"UPDATE slipstream.version SET version = {VERSION + 1}"), "upgrade Slipstream"),
    "older": (_changed(f"UPDATE slipstream.version SET version = {VERSION - 1}"), "tune afresh"),
    "broken": (_changed("DROP TABLE slipstream.slot_program; DROP TABLE slipstream.trial"), "is missing or changed"),
    "something else": (_something_else, "holds no store: choose another database"),
    "encoding": (
        lambda s: s.tcp_url(s.make_database("ENCODING 'LATIN1' TEMPLATE template0")),
        "has the encoding LATIN1: make a database with 'createdb -E UTF8",
    ),
    "a bad option": (lambda s: f"{s.tcp_url('postgres')}?sslmode=perhaps", "sslmode"),
    "an unknown option": (lambda s: f"{s.tcp_url('postgres')}?speed=high", "speed"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake: str, postgres: Server) -> None:
    make, says = WRONG[mistake]
    done = store_command("stats", url := make(postgres))
    assert done.exit_code == 2
    assert says in done.output
    assert done.output.count("\n") == 1
    debug = store_command("stats", url, "--debug").output
    for secret in (PASSWORD, "s3cret"):
        assert secret not in done.output + debug


def test_somebody_without_rights_cannot_make_a_store(postgres: Server) -> None:
    with pytest.raises(StoreReadOnlyError, match="you lack a right"):
        Store.open(postgres.url(postgres.new_database(), "guest"))


def test_the_password_may_come_from_the_environment(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with Store.open(postgres.tcp_url(postgres.new_database(), None)) as store:
        assert store.sessions() == []


def test_without_the_driver() -> None:
    script = """
        import sys
        sys.modules["psycopg"] = None
        from slipstream.cli import main
        main(["store", "stats", "postgresql://me:hush@host/db"])
    """
    with python(script) as process:
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert "cannot be opened without psycopg" in said
    assert "pip install 'slipstream[postgres]'" in said
    assert said.count("\n") == 1
    assert "hush" not in said


def test_a_read_only_store_cannot_be_written(url: str) -> None:
    filled(url)[0].close()
    with Store.open(url, read_only=True) as store, pytest.raises(StoreReadOnlyError, match="cannot be written"):
        store.add_model("1", "2", "3")


def test_one_who_may_read_reads(postgres: Server) -> None:
    name = postgres.new_database()
    store, hardware = filled(postgres.url(name))
    store.append_trial(trial(hardware))
    postgres.execute("GRANT USAGE ON SCHEMA slipstream TO guest", name)
    postgres.execute("GRANT SELECT ON ALL TABLES IN SCHEMA slipstream TO guest", name)
    with Store.open(postgres.url(name, "guest")) as seen:
        assert sum(1 for _ in seen.trials()) == 1
        with pytest.raises(StoreReadOnlyError, match="you lack a right"):
            seen.append_trial(trial(hardware))
    # What docs/store.md says to grant to those who tune.
    postgres.execute("GRANT INSERT, UPDATE ON ALL TABLES IN SCHEMA slipstream TO guest", name)
    with Store.open(postgres.url(name, "guest")) as used, used.own(_session(used, hardware)):
        used.append_trial(trial(hardware, number=7))


def test_a_locked_store(url: str, postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_store, "BUSY_SECONDS", 0.1)
    one, two = filled(url)[0], Store.open(url)
    with one.database.transaction():
        one.add_model("1", "2", "3")
        with pytest.raises(StoreLockedError, match="another process keeps"):
            two.add_model("1", "2", "3")
    two.add_model("1", "2", "3")


def test_a_commit_waits_for_the_disk_whatever_the_database_says(postgres: Server) -> None:
    name = postgres.make_database()
    for setting, used in (("off", "on"), ("remote_apply", "remote_apply")):
        postgres.execute(f"ALTER DATABASE {name} SET synchronous_commit = {setting}")
        with Store.open(postgres.url(name)) as store:
            assert store.database.rows("SHOW synchronous_commit") == [(used,)]


# Commands


def test_the_commands_take_a_url_for_a_path(url: str, postgres: Server, tmp_path: Path) -> None:
    store, hardware = filled(url)
    session = _session(store, hardware)
    for number in range(5):
        store.append_trial(trial(hardware, (5 - number) * 1e-6, number, measured_at=float(number)))
    store.append_trial(trial(hardware, 9e-6, 9, session=session))
    stats = store_command("stats", url).output
    assert "trials     6, 0 of them failed" in stats
    assert session in stats
    assert "1.00" in store_command("show", url, "aa00").output
    assert "is whole" in store_command("check", url).output
    assert "'slipstream store merge new.db" in store_command("check", url, "--salvage", "new.db").output
    copied = store_command("merge", tmp_path / "copy.db", url).output
    assert copied.startswith(url)
    assert "6 trials and 1 sessions added" in copied
    other = postgres.tcp_url(postgres.new_database())
    back = store_command("merge", other, tmp_path / "copy.db").output
    assert "6 trials and 1 sessions added" in back
    with Store.open(other) as there:
        assert [t.median for t in there.top("aa00", hardware, 3)] == [1e-6, 2e-6, 3e-6]
        assert there.session(session) == store.session(session)
    assert "into itself" in store_command("merge", url, f"{url}&application_name=x").output
    assert "4 trials would go, 2 would stay" in store_command("prune", url, "--keep", 1).output
    assert "4 trials removed, 2 kept" in store_command("prune", url, "--keep", 1, "--yes").output
    assert PASSWORD not in store_command("stats", other).output


def test_a_check_finds_what_cannot_be_read(url: str, postgres: Server) -> None:
    filled(url)[0].close()
    database = url.partition("@/")[2].partition("?")[0]
    postgres.execute(r"UPDATE slipstream.operator SET module = '\x00' WHERE key = 'bb11'", database)
    assert find_problems(store_location(url))[0].startswith("row 2 of operator: module cannot be read")
    done = store_command("check", url)
    assert done.exit_code == 2
    assert "restore its backup" in done.output


# Connections that are lost


def _session(store: Store, hardware: str) -> str:
    return store.create_session("f00d", hardware, {}, {"aa00": 1})


def test_a_restart_of_the_server_between_two_trials_is_waited_for(
    postgres: Server, caplog: pytest.LogCaptureFixture
) -> None:
    store, hardware = filled(url := postgres.url(postgres.new_database()))
    session = _session(store, hardware)
    with store.own(session):
        store.append_trial(trial(hardware))
        postgres.stop()
        append = threading.Thread(target=store.append_trial, args=(trial(hardware, number=2),))
        append.start()
        time.sleep(0.5)
        postgres.start()
        append.join()
        assert sum(1 for _ in store.trials()) == 2
        with Store.open(url) as other, pytest.raises(SessionBusyError, match="this process"), other.own(session):
            pass
    assert not store.is_owned(session)
    assert "was lost" in caplog.text


def test_a_transaction_that_lost_its_connection_is_undone(postgres: Server) -> None:
    store, hardware = filled(postgres.url(postgres.new_database()))

    def records() -> Iterator[object]:
        yield trial(hardware, number=1)
        postgres.stop()
        yield trial(hardware, number=2)

    try:
        with pytest.raises(StoreUnreachableError, match=r"was lost .*everything stored before is kept") as error:
            store.append_trials(records())  # type: ignore[arg-type]
    finally:
        postgres.start()
    assert "\n" not in str(error.value)
    assert list(store.trials()) == []
    store.append_trial(trial(hardware))
    assert sum(1 for _ in store.trials()) == 1


def test_a_server_that_stays_away(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_store, "RECONNECT_SECONDS", 0.3)
    store, hardware = filled(postgres.url(postgres.new_database()))
    session = _session(store, hardware)
    postgres.stop()
    try:
        with pytest.raises(StoreUnreachableError, match="the server can be reached again") as error, store.own(session):
            pass
        assert "\n" not in str(error.value)
        store.close()
    finally:
        postgres.start()


@contextmanager
def _relay(port: int) -> Iterator[tuple[int, Callable[[], None]]]:
    """A port that leads to `port`, and how to cut its clients off while the server notices nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    clients: list[socket.socket] = []
    servers: list[socket.socket] = []

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client = listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", port))
                clients.append(client)
                servers.append(server)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    def cut() -> None:
        for client in clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        clients.clear()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1], cut
    finally:
        for end in (listener, *clients, *servers):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def test_a_session_is_taken_back_from_a_connection_the_server_believes_in(postgres: Server) -> None:
    name = postgres.new_database()
    with _relay(postgres.port) as (port, cut), Store.open(postgres.tcp_url(name, port=port)) as store:
        hardware = filled(postgres.url(name))[1]
        session = _session(store, hardware)
        with store.own(session):
            cut()
            assert Store.open(postgres.url(name)).is_owned(session)
            store.append_trial(trial(hardware))
            assert store.is_owned(session)
        assert not store.is_owned(session)


def test_a_forked_child_leaves_the_connection_alone(url: str) -> None:
    store, hardware = filled(url)
    with store.own(session := _session(store, hardware)):
        child = os.fork()
        if child == 0:
            status = 1
            with suppress(BaseException):
                store.append_trial(trial(hardware, number=5))  # by a connection of its own
                store.close()
                status = 0
            os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        store.append_trial(trial(hardware, number=6))
        assert store.is_owned(session)
    assert sum(1 for _ in store.trials()) == 2


# Many at once

TUNER = """
    import random, sys
    from slipstream.store import Store
    from tests.store.samples import filled, program, trial
    store, hardware = filled(sys.argv[1])
    rng = random.Random(int(sys.argv[2]))
    session = store.create_session("f00d", hardware, {}, {"aa00": 1})
    with store.own(session):
        print("ready", flush=True)
        sys.stdin.readline()
        for slot in range(12):
            store.add_sketch(f"{rng.randrange(4)}", "text")
            programs = [program(rng.randrange(60)) for _ in range(6)]
            store.begin_slot(session, slot, "aa00", programs, 0.0, {})
            for position, one in enumerate(programs):
                measured = {"session": session, "slot": slot, "position": position, "measured_at": rng.random()}
                store.append_trial(trial(hardware, 1.0, program=one, **measured))
            store.put_state(session, "cost", slot, b"trees")
            store.finish_slot(session, slot, {})
            store.update_session(session, elapsed=float(slot))
            store.top("aa00", hardware, 3)
    store.close()
"""


def test_sessions_of_several_processes_with_the_same_programs_a_merge_and_a_prune(url: str, tmp_path: Path) -> None:
    """All make the store and add the same rows in different orders, and nobody has to give up."""
    source, hardware = filled(tmp_path / "source.db")
    source.append_trials(trial(hardware, 0.5, n, measured_at=float(n)) for n in range(60))
    source.close()
    tuners = [python(TUNER, url, number) for number in range(3)]
    for tuner in tuners:
        assert tuner.stdout is not None
        assert tuner.stdout.readline() == "ready\n"
    for tuner in tuners:
        assert tuner.stdin is not None
        tuner.stdin.write("\n")
        tuner.stdin.flush()
    with Store.open(url) as store:
        merge(store, tmp_path / "source.db")
        while any(tuner.poll() is None for tuner in tuners):
            prune(store, 60, dry_run=False)
    assert [tuner.communicate(timeout=120)[1] for tuner in tuners] == [""] * 3
    with Store.open(url) as store:
        sessions = store.sessions()
        assert len(sessions) == 3
        for record in sessions:
            trials = list(store.trials(session=record.id))
            proposed = [(slot.slot, n, p) for slot in store.slots(record.id) for n, p in enumerate(slot.programs)]
            assert [(t.slot, t.position, t.program) for t in trials] == proposed
            assert len(proposed) == 72
        assert sum(1 for t in store.trials() if t.session is None) == 60
    assert find_problems(store_location(url)) == []


def test_programs_of_a_slot_may_repeat(url: str) -> None:
    store, hardware = filled(url)
    programs = [program(n % 3) for n in range(9)]
    session = _session(store, hardware)
    store.begin_slot(session, 0, "aa00", programs, 0.0, {})
    assert store.slots(session)[0].programs == tuple(programs)
