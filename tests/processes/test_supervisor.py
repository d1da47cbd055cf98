"""The supervisor with real processes: start, updates, deaths, freezes, its own death, stop."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.errors import Unavailable
from tests.processes.stand_in_server import SERVE, StandInServer, read_line, stand_in_server, wrapper

pytestmark = pytest.mark.processes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StandInServer]:
    with stand_in_server(tmp_path) as one:
        yield one


@pytest.mark.requirement("SRV-1", "SRV-2")
def test_every_component_is_a_process_of_its_own(server: StandInServer) -> None:
    server.pid("router", "standby")
    server.pid("dispatcher", "standby")
    components = server.status()["components"]
    assert len({one["pid"] for one in components}) == len(components) == 8


def test_it_stops_in_order_and_leaves_nothing(server: StandInServer) -> None:
    store = Path(server.status()["store"])
    pids = [one["pid"] for one in server.status()["components"]]
    assert store.is_dir()
    assert server.stop() == 0
    assert not store.exists()
    assert list(server.run.iterdir()) == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not list(server.directory.glob("fairlead/*.json"))


@pytest.mark.requirement("SRV-126", state="half", note="one account for all")
def test_sockets_and_segments_are_for_our_own_account_only(server: StandInServer) -> None:
    status = server.status()
    assert Path(status["store"]).stat().st_mode & 0o777 == 0o700
    assert server.run.stat().st_mode & 0o777 == 0o700
    files = [*Path(status["store"]).iterdir(), server.run / "admin.sock", server.run / "supervisor.sock"]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


@pytest.mark.requirement("SRV-80", "SRV-81")
def test_an_update_changes_version_and_process_and_keeps_everything_else(server: StandInServer, tmp_path: Path) -> None:
    client = server.connect()
    newer = wrapper(tmp_path, "newer", STAND_IN_VERSION="9.9.9")
    managers = server.pids("manager")
    before = server.pid("router")
    (record,) = server.ask("update", component="router", python=str(newer))["updates"]
    assert (record["outcome"], record["from_version"], record["to_version"]) == ("done", "0.1.0", "9.9.9")
    assert 0 < record["pause_ms"] < 1000
    assert server.pid("router") != before
    assert server.pids("router", "parked") == [before]
    assert client.echoes()
    assert server.pids("manager") == managers


@pytest.mark.requirement("SRV-92")
def test_a_router_that_cannot_start_leaves_the_old_one_serving(server: StandInServer, tmp_path: Path) -> None:
    before = server.pid("router")
    for name, setting in (("broken", {"STAND_IN_BROKEN": "router"}), ("failing", {"STAND_IN_FAILS": "router"})):
        with pytest.raises(Unavailable, match="the old version goes on"):
            server.ask("update", component="router", python=str(wrapper(tmp_path, name, **setting)))
    with pytest.raises(Unavailable, match="not a program"):
        server.ask("update", component="router", python=str(tmp_path / "absent"))
    assert server.pid("router") == before
    assert [one["outcome"] for one in server.status()["updates"]] == ["failed", "failed"]


def test_if_the_new_router_dies_while_the_old_one_is_parked_the_old_one_takes_over(server: StandInServer) -> None:
    before = server.pid("router")
    server.ask("update", component="router")
    os.kill(server.pid("router"), signal.SIGKILL)
    server.until(lambda: server.pids("router", "active") == [before])
    assert server.status()["updates"][-1]["outcome"] == "rolled back"


def test_updates_follow_each_other_without_waiting_for_the_parked_one(server: StandInServer) -> None:
    seen = {server.pid("router")}
    for _ in range(4):
        server.ask("update", component="router")
        seen.add(server.pid("router"))
    assert len(seen) == 5


@pytest.mark.requirement("SRV-4")
def test_update_all_reaches_router_dispatcher_and_managers(server: StandInServer) -> None:
    before = {one["pid"] for one in server.status()["components"] if one["role"] != "supervisor"}
    updates = server.ask("update", component="all")["updates"]
    assert [one["component"] for one in updates] == [
        *("router", "dispatcher", "manager 0", "manager 1", "message-manager")
    ]
    now = {*server.pids("router", "active"), *server.pids("dispatcher", "active"), *server.pids("manager")}
    assert not before & now


def test_a_killed_router_is_followed_by_its_standby_at_once(server: StandInServer) -> None:
    for _ in range(5):
        active, standby = server.pid("router"), server.pid("router", "standby")
        os.kill(active, signal.SIGKILL)
        server.until(lambda now=standby: server.pids("router", "active") == [now])
    updates = server.status()["updates"]
    assert [one["outcome"] for one in updates] == ["took over"] * 5
    assert max(one["pause_ms"] for one in updates) < 500


@pytest.mark.requirement("SRV-115", state="half")
def test_a_killed_manager_gets_a_successor_and_the_others_notice_nothing(server: StandInServer) -> None:
    clients = [server.connect() for _ in range(4)]
    victim = server.status()["managers"][0]["pid"]
    os.kill(victim, signal.SIGKILL)
    server.until(lambda: server.status()["managers"][0]["pid"] != victim)
    assert all(client.echoes() for client in clients if client.manager == 1)
    server.until(lambda: server.status()["managers"][0]["connections"] == 0)
    assert server.connect().manager == 0


def test_a_frozen_dispatcher_is_killed_and_replaced(tmp_path: Path) -> None:
    with stand_in_server(tmp_path, "--set", "limits.frozen_s=0.7") as server:
        frozen = server.pid("dispatcher")
        server.pid("dispatcher", "standby")
        time.sleep(1.5)
        assert server.pid("dispatcher") == frozen  # idle is not frozen
        os.kill(frozen, signal.SIGSTOP)
        assert server.connect().echoes()
        assert server.pid("dispatcher") != frozen


def test_a_frozen_manager_that_leaves_hand_overs_unread_is_killed_and_replaced(tmp_path: Path) -> None:
    with stand_in_server(tmp_path, "--set", "limits.frozen_s=0.7") as server:
        frozen = server.status()["managers"][0]["pid"]
        os.kill(frozen, signal.SIGSTOP)
        waiting = [server.open(), server.open()]
        greetings = {read_line(sock).split()[1] for sock in waiting}
        assert greetings == {b"0", b"1"}
        assert server.status()["managers"][0]["pid"] != frozen


def test_the_status_report_works_while_everything_else_is_stopped(server: StandInServer) -> None:
    client = server.connect()
    pids = [one["pid"] for one in server.status()["components"] if one["role"] != "supervisor"]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    report = server.status()
    assert [one["uid"] for one in report["connections"]] == [client.uid]
    assert report["attachments"] == []
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    assert client.echoes()


def test_children_outlive_a_killed_supervisor_and_the_next_one_adopts_them(server: StandInServer) -> None:
    server.pid("router", "standby")
    server.pid("dispatcher", "standby")
    client = server.connect()
    before = {one["pid"] for one in server.status()["components"] if one["role"] != "supervisor"}
    server.stop(signal.SIGKILL)
    assert client.echoes()
    assert server.connect().echoes()  # served without any supervisor
    server.start()
    after = {one["pid"] for one in server.status()["components"] if one["role"] != "supervisor"}
    assert after == before
    assert client.echoes()
    assert server.connect().echoes()
    os.kill(server.pid("router"), signal.SIGKILL)
    server.ask("update", component="dispatcher")
    assert server.connect().echoes()
    assert server.stop() == 0


def test_what_died_with_the_supervisor_is_started_by_the_next_one(server: StandInServer) -> None:
    client = next(one for one in (server.connect() for _ in range(4)) if one.manager == 1)
    assert server.process is not None
    victims = [*server.pids("dispatcher"), *server.pids("router"), server.status()["managers"][0]["pid"]]
    server.stop(signal.SIGKILL)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    server.start(listen=f"127.0.0.1:{server.port}")
    assert client.echoes()
    assert {server.connect().manager for _ in range(6)} == {0, 1}


def test_a_supervisor_executes_itself_in_place(server: StandInServer) -> None:
    server.pid("router", "standby")
    server.pid("dispatcher", "standby")
    client = server.connect()
    before = {one["pid"] for one in server.status()["components"]}
    server.ask("reexec", python=str(server.python))
    time.sleep(0.3)
    server.until(lambda: answers(server) and {one["pid"] for one in server.status()["components"]} >= before)
    assert client.echoes()
    assert server.connect().echoes()


def answers(server: StandInServer) -> bool:
    try:
        return bool(server.status())
    except (Unavailable, OSError):
        return False


def test_the_leftovers_of_a_killed_server_are_cleared_and_said(server: StandInServer) -> None:
    pids = [one["pid"] for one in server.status()["components"]]
    for pid in pids[1:]:
        os.kill(pid, signal.SIGSTOP)
    server.stop(signal.SIGKILL)
    for pid in pids[1:]:
        os.kill(pid, signal.SIGKILL)
    server.start()
    assert "gave up 0 messages" in server.log()
    assert server.connect().echoes()


def refused(server: StandInServer, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-c", SERVE, str(server.python), "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return done.returncode, done.stderr


def test_a_second_server_on_the_same_directory_is_refused_in_one_sentence(server: StandInServer) -> None:
    assert server.process is not None
    code, text = refused(server, "--data", str(server.data), "--listen", "127.0.0.1:0")
    assert (code, text.count("\n")) == (2, 1)
    assert f"already served by process {server.process.pid}" in text


def test_a_port_in_use_is_one_sentence_with_its_address(server: StandInServer, tmp_path: Path) -> None:
    code, text = refused(server, "--data", str(tmp_path / "other"), "--listen", f"127.0.0.1:{server.port}")
    assert (code, text.count("\n")) == (2, 1)
    assert f"127.0.0.1:{server.port} is in use" in text


def test_components_that_never_start_halt_the_server_with_a_sentence(tmp_path: Path) -> None:
    server = StandInServer(tmp_path, STAND_IN_BROKEN="router")
    code, text = refused(server, "--data", str(server.data), "--listen", "127.0.0.1:0")
    assert code == 1
    assert "The router does not work" in text


def test_it_says_ready_on_a_descriptor_and_has_a_note_for_its_port(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    server = StandInServer(tmp_path)
    command = [sys.executable, "-c", SERVE, str(server.python), "serve", "--data", str(server.data)]
    command += ["--listen", f"unix:{tmp_path}/client.sock", "--ready-fd", str(writing)]
    server.process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, pass_fds=[writing]
    )
    os.close(writing)
    try:
        with open(reading) as file:
            assert file.readline() == f"READY fairlead+unix://{tmp_path}/client.sock\n"
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(f"{tmp_path}/client.sock")
            assert sock.recv(100)
            assert server.status()["connections"][0]["peer"] == "unix"
            server.ask("reexec", python=str(server.python))  # the same arguments, but that descriptor is another's now
            server.until(lambda: "adopting" in server.log() and answers(server))
            assert [len(server.status()["connections"]) for _ in range(3)] == [1, 1, 1]
            sock.sendall(b"x")
        assert server.stop() == 0
        assert not (tmp_path / "client.sock").exists()
    finally:
        server.end()
