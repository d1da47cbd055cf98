"""When the processes of tunnels are started, and what becomes of those who wait for one that cannot be."""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.runtime import config
from fairlead.runtime.children import Child
from fairlead.runtime.logbook import Logbook
from fairlead.runtime.loop import Loop
from fairlead.runtime.plumbing import Plumbing
from fairlead.runtime.pool import BROKER, GATEWAY, NOT_NEEDED, Pool
from fairlead.runtime.tunnelling import REST_S, Tunnelling

NO_PYTHON = "/nowhere/python"  # so that nothing is ever started


class Bench:
    """The supervisor's parts, without its processes."""

    def __init__(self, run: Path, **settings: object) -> None:
        self.loop = Loop()
        self.log = Logbook(run / "log" / "fairlead.log", "info", to_stderr=False)
        self.plumbing = Plumbing(1)
        self.plumbing.complete_tunnels(run)
        self.pool = Pool(
            loop=self.loop,
            log=self.log,
            config=config.load(overrides={f"tunnel.{name}": value for name, value in settings.items()}),
            run=run,
            store=run,
            server_id=1,
            managers=0,
            plumbing=self.plumbing,
            python=NO_PYTHON,
            on_ready=lambda: None,
            on_halt=lambda text: pytest.fail(text),
            on_takeover=lambda old, new: None,
            on_answer=lambda number, answer: None,
        )
        self.tunnelling = Tunnelling(self.pool, self.plumbing, self.loop, self.log)

    def tries(self) -> int:
        return self.log.path.read_text().count(f"{GATEWAY}: cannot be started")

    def put(self) -> socket.socket:
        """A connection that waits for the gateway; its client's end."""
        ours, theirs = socket.socketpair()
        outlet = socket.socket(fileno=os.dup(self.plumbing.fds_for(GATEWAY, 0)["tunnel-outlet"]))
        with ours, outlet:
            socket.send_fds(outlet, [b"P"], [ours.fileno()])
        theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
        return theirs

    def turn(self) -> None:
        self.loop.call_after(0, lambda: None)
        self.loop.turn()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.loop.close()
    made.plumbing.close()
    os.close(made.log.fd)


def test_the_first_connection_starts_them_and_nothing_before(bench: Bench) -> None:
    bench.tunnelling.begin()
    bench.turn()
    assert bench.tries() == 0
    assert bench.tunnelling.status([])["gateway"] == {"state": NOT_NEEDED}
    with bench.put(), bench.put():
        bench.turn()
        bench.turn()
        assert bench.tries() == 1
        assert bench.tunnelling.status([{"passed_on": 2, "turned_away": 1}])["passed_on"] == 2


@pytest.mark.parametrize("settings", [{"gateways": ["gw.example.org:7401"]}, {"link_listen": "127.0.0.1:0"}])
def test_links_to_others_do_not_wait_for_it(tmp_path: Path, settings: dict[str, object]) -> None:
    made = Bench(tmp_path, **settings)
    made.tunnelling.begin()
    assert made.tries() == 1
    made.loop.close()
    made.plumbing.close()
    os.close(made.log.fd)


def test_who_waits_for_one_that_is_given_up_is_turned_away_and_it_is_tried_again(bench: Bench) -> None:
    for role in (GATEWAY, BROKER):
        bench.pool.posts[role].halted = "it could not start, 3 times in a row"
    with bench.put() as client:
        assert bench.tunnelling.watch(1, 100.0) is None
        client.settimeout(10)
        assert client.recv(4096).startswith(b"HTTP/1.1 503 ")
        assert client.recv(4096) == b""
    assert bench.tries() == 0
    bench.tunnelling.watch(1, 100.0 + REST_S)
    assert bench.tries() == 1


def test_a_gateway_is_frozen_when_connections_wait_and_none_moves(bench: Bench) -> None:
    pidfd = os.pidfd_open(os.getpid())
    child = Child(GATEWAY, 0, 1, sys.executable, os.getpid(), pidfd, state="active", ready_s=1.0)
    post = bench.pool.posts[GATEWAY]
    post.active, post.halted = child, ""
    bench.pool.posts[BROKER].halted = ""
    frozen_s = bench.pool.config.limits.frozen_s
    assert bench.tunnelling.watch(1, 0.0) is None
    with bench.put():
        assert bench.tunnelling.watch(1, 1.0) is None
        assert bench.tunnelling.watch(2, frozen_s) is None, "more came: it is given time"
        assert bench.tunnelling.watch(2, 2 * frozen_s) is child
    with socket.socket(fileno=os.dup(bench.plumbing.intake)) as intake:
        _, fds, _, _ = socket.recv_fds(intake, 10, 1)
        os.close(fds[0])
    assert not select.select([bench.plumbing.intake], [], [], 0)[0]
    assert bench.tunnelling.watch(2, 9 * frozen_s) is None
    os.close(pidfd)
