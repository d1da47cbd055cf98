"""The dispatcher as a real process: hand-over, placement, uids, and being replaced under a stream of connects."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.stand_in_server import Client, StandInServer, read_line, stand_in_server, wrapper

pytestmark = pytest.mark.processes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StandInServer]:
    with stand_in_server(tmp_path) as one:
        yield one


@pytest.mark.requirement("SRV-26")
def test_connections_are_spread_evenly_and_go_where_there_are_fewest(server: StandInServer) -> None:
    clients = [server.connect() for _ in range(20)]
    assert Counter(client.manager for client in clients) == {0: 10, 1: 10}
    for client in clients:
        if client.manager == 1:
            client.close()
    server.until(lambda: server.status()["managers"][1]["connections"] == 0)
    assert {server.connect().manager for _ in range(5)} == {1}


@pytest.mark.requirement("SRV-16", state="half", note="dispatcher to manager")
@pytest.mark.requirement("SRV-29")
def test_after_the_hand_over_the_dispatcher_holds_no_copy(server: StandInServer) -> None:
    client = server.connect()
    inode = f"{client.sock.getsockname()[1]:04X}"

    def holders() -> set[int]:
        """Processes with the server's end among their descriptors."""
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        ends = {line.split()[9] for line in lines if line.split()[2].endswith(f":{inode}")}
        return {pid for pid in all_pids() if ends & set(sockets_of(pid))}

    def all_pids() -> list[int]:
        return [one["pid"] for one in server.status()["components"]]

    def sockets_of(pid: int) -> list[str]:
        names = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
        return [name[8:-1] for name in names if name.startswith("socket:")]

    managers = {one["index"]: one["pid"] for one in server.status()["managers"]}
    assert holders() == {managers[client.manager]}


@pytest.mark.requirement("SRV-28", "SRV-11")
def test_the_table_has_the_connection_before_the_client_is_greeted(server: StandInServer) -> None:
    client = server.connect()
    entry = next(one for one in server.status()["connections"] if one["uid"] == client.uid)
    host, port = client.sock.getsockname()[:2]
    assert entry["peer"] == f"{host}:{port}"
    assert entry["manager"] == client.manager
    client.close()
    server.until(lambda: not server.status()["connections"])


@pytest.mark.requirement("SRV-27", "SRV-89", "SRV-91", "SRV-81", state="scaled")
def test_connects_succeed_while_dispatchers_are_updated_and_killed(server: StandInServer) -> None:
    steady = [server.connect() for _ in range(4)]
    managers = server.pids("manager")
    uids: list[int] = []
    over = threading.Event()
    connecting = threading.Lock()  # what is accepted and not yet handed over when its dispatcher is killed is lost

    def connect_on_and_on() -> None:
        while not over.is_set():
            with connecting:
                client = Client(server.port)
            uids.append(client.uid)
            client.close()

    thread = threading.Thread(target=connect_on_and_on)
    thread.start()
    try:
        for _ in range(3):
            before = server.pid("dispatcher")
            assert server.ask("update", component="dispatcher")["updates"][0]["outcome"] == "done"
            assert server.pid("dispatcher") != before
        server.pid("dispatcher", "standby")
        for _ in range(2):
            victim = server.pid("dispatcher")
            server.pid("dispatcher", "standby")
            with connecting:
                os.kill(victim, signal.SIGKILL)
            server.until(lambda gone=victim: server.pids("dispatcher", "active") not in ([], [gone]))
    finally:
        over.set()
        thread.join()
    assert len(uids) > 20
    assert len(set(uids)) == len(uids)
    assert all(client.echoes() for client in steady)
    assert server.pids("manager") == managers


@pytest.mark.requirement("SRV-90")
def test_hand_overs_wait_for_a_suspended_manager_across_an_update(server: StandInServer) -> None:
    managers = server.pids("manager")
    for pid in managers:
        os.kill(pid, signal.SIGSTOP)
    waiting = [server.open() for _ in range(10)]
    server.until(lambda: server.status()["dispatcher"]["handed_over"] == 10)
    assert server.ask("update", component="dispatcher")["updates"][0]["outcome"] == "done"
    for pid in managers:
        os.kill(pid, signal.SIGCONT)
    greetings = [read_line(sock) for sock in waiting]
    assert len(set(greetings)) == 10
    assert all(greetings)


def test_a_full_server_closes_newcomers_and_says_so(tmp_path: Path) -> None:
    with stand_in_server(tmp_path, "--set", "limits.connections_per_manager=2") as server:
        clients = [server.connect() for _ in range(4)]
        assert server.open().recv(1) == b""
        assert server.status()["dispatcher"]["refused"] == 1
        assert "the server is full" in server.log()
        clients[0].close()
        server.until(lambda: len(server.status()["connections"]) == 3)
        assert server.connect().echoes()


@pytest.mark.requirement("SRV-4")
def test_a_draining_manager_gets_nothing_new_and_ends_after_its_last_connection(server: StandInServer) -> None:
    clients = [server.connect() for _ in range(4)]
    pid = server.status()["managers"][0]["pid"]
    server.ask("drain", manager=0)
    server.until(lambda: server.status()["managers"][0]["draining"])
    assert {server.connect().manager for _ in range(4)} == {1}
    assert all(client.echoes() for client in clients)
    for client in clients:
        if client.manager == 0:
            client.close()
    server.until(lambda: server.status()["managers"][0]["pid"] != pid)
    server.until(lambda: server.connect().manager == 0)


@pytest.mark.requirement("SRV-92")
def test_a_dispatcher_that_cannot_start_leaves_the_old_one_serving(server: StandInServer, tmp_path: Path) -> None:
    before = server.pid("dispatcher")
    broken = wrapper(tmp_path, "broken", STAND_IN_BROKEN="dispatcher")
    with pytest.raises(Exception, match="the old version goes on"):
        server.ask("update", component="dispatcher", python=str(broken))
    assert server.pid("dispatcher") == before
    assert server.connect().echoes()
