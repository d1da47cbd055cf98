"""A manager as a whole, in a thread: real segments, a hand-made dispatcher, supervisor and router around it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.broker.answers import PREFACE, frame
from fairlead.broker.edge import manager as managing
from fairlead.broker.resume import token_for
from fairlead.runtime import config as configuring
from fairlead.runtime import storehouse
from fairlead.runtime.control import Command, Start
from fairlead.security import users as security
from fairlead.security.passwords import hash_password
from fairlead.store import layout, memory
from fairlead.store.connections import ConnectionTable
from fairlead.store.edge.segment import open_segment
from tests.broker.rig import CONFIRM, CONNECT, ERROR, PUBLISH, WELCOME, Client, Entry

GO_AWAY = 0x48


class Supervisor:
    """Stands in for the line to the supervisor."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self.lost = False
        self.said: list[tuple[str, Any]] = []

    def fileno(self) -> int:
        return self._ours.fileno()

    def receive(self) -> list[Command]:
        found = []
        while True:
            try:
                data = self._ours.recv(65536)
            except BlockingIOError:
                return found
            said = json.loads(data)
            found.append(Command(said.pop("command"), said))

    def send(self, event: str, **facts: Any) -> None:
        self.said.append((event, facts))

    def log(self, level: str, text: str, **facts: Any) -> None:
        self.said.append((level, text))

    def tick(self, now_s: float) -> bool:
        return False

    def tell(self, command: str, **args: Any) -> None:
        self._theirs.send(json.dumps({"command": command, **args}).encode())

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


PEER = "127.0.0.1:1"


class World:
    """One manager of one server."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.store = directory / "store"
        overrides = {
            "server.data": str(directory),
            "store.arena_bytes": 16 << 20,
            "limits.body_max": 1 << 20,
        } | settings
        self.config = configuring.load(None, {}, overrides)
        storehouse.create(self.store, self.config, managers=1, mode=memory.MODE, server_id=5, unix_s=1)
        up = open_segment(self.store / "up-0", layout.KIND_RING)
        down = open_segment(self.store / "down-0", layout.KIND_RING)
        self.segment = open_segment(self.store / "connections", layout.KIND_CONNECTIONS)
        self.table = ConnectionTable(self.segment.view)
        self.up, self.down = memory.Consumer(up.map, up.fd), memory.Producer(down.map, down.fd)
        self.wake, self.wake_router = os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)
        self.dispatch, self.dispatched = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.status: int | None = None
        self.clients: list[Client] = []
        self.begin()

    def begin(self) -> None:
        self.supervisor = Supervisor(self.store.parent)
        fds = {"dispatched": self.dispatched.fileno(), "wake": self.wake, "wake-router": self.wake_router}
        start = Start("manager", 0, self.config, self.store, 1, 5, 1, "active", fds)
        self.manager = managing.Manager(self.supervisor, start)  # type: ignore[arg-type]

        def run() -> None:
            self.status = self.manager.run()

        self.thread = threading.Thread(target=run)
        self.thread.start()
        self.wait(lambda: ("ready", {}) in self.supervisor.said)

    def wait(self, condition: Callable[[], Any], s: float = 10.0) -> Any:
        until = time.monotonic() + s
        while not (found := condition()):
            assert time.monotonic() < until, "it did not come about"
            time.sleep(0.002)
        return found

    def end(self) -> None:
        if self.thread.is_alive():
            self.supervisor.tell("stop")
        self.thread.join(10)
        assert not self.thread.is_alive()
        self.supervisor.close()
        for client in self.clients:
            client.sock.close()

    def connect(self, family: Any = None, peer: str = PEER) -> Client:
        """What the dispatcher does."""
        ours, theirs = socket.socketpair()
        opened = self.table.open(0, peer, time.time_ns())
        assert opened is not None
        uid, index = opened
        socket.send_fds(self.dispatch, [struct.pack("<QII", uid, index, 0) + peer.encode()], [ours.fileno()])
        ours.close()
        self.clients.append(Client(index, uid, theirs))
        return self.clients[-1]

    def entry(self, kind: int) -> Entry:
        """The next entry for the router of this kind; others are passed over."""

        def look() -> Entry | None:
            while (found := self.up.next()) is not None:
                self.up.advance()
                if self.up.publish(1000):
                    os.eventfd_write(self.wake, 1)
                entry = Entry(*found)
                if entry.kind == kind:
                    return entry
            return None

        found: Entry = self.wait(look)
        return found

    def plain(self, data: bytes, client: Client) -> None:
        payload = struct.pack(layout.DOWN_FORMAT, 0, 0, 0, 0, 1, len(data), 0)
        payload += struct.pack("<Q", client.index << 32 | client.uid & 0xFFFFFFFF) + data
        assert self.down.push(layout.DOWN_PLAIN, 0, payload)
        if self.down.publish():
            os.eventfd_write(self.wake, 1)

    def attach(self, client: Client, **said: Any) -> Entry:
        """Up to the RESPONSE."""
        client.send(PREFACE)
        assert json.loads(self.entry(layout.UP_ATTACH).content) == {"peer": PEER}
        self.plain(frame(CONFIRM), client)
        client.send(frame(CONNECT, body=json.dumps({"type": "ui", "instance": "ui-1"} | said).encode()))
        return self.entry(layout.UP_RESPONSE)

    def live(self, **said: Any) -> Client:
        client = self.connect()
        self.attach(client, **said)
        self.plain(frame(WELCOME), client)
        self.wait(lambda: WELCOME in client.kinds())
        return client

    def error(self, client: Client) -> str:
        found = self.wait(lambda: [one for one in client.frames() if one.kind == ERROR])
        return str(found[0].code)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def build(**settings: object) -> World:
        made.append(World(tmp_path, **settings))
        return made[-1]

    yield build
    for world in made:
        world.end()
        for sock in (world.dispatch, world.dispatched):
            sock.close()
        os.close(world.wake)
        os.close(world.wake_router)


Make = Callable[..., World]


@pytest.mark.requirement("SRV-11")
@pytest.mark.requirement("SRV-29")
@pytest.mark.requirement("SRV-34")
def test_a_connection_appears_in_the_table_with_what_its_client_said_and_goes_when_it_closes(make: Make) -> None:
    world = make()
    client = world.connect()
    world.wait(lambda: world.table.read(0, client.index).state == "adopted")  # type: ignore[union-attr]
    response = world.attach(client, org="acme", password="never passed on")
    assert response.uid == client.uid
    assert json.loads(response.content)["instance"] == "ui-1"
    assert b"never passed on" not in response.content
    world.plain(frame(WELCOME), client)
    found = world.wait(lambda: (e := world.table.read(0, client.index)) and e.state == "live" and e)
    assert (found.uid, found.type, found.instance, found.org, found.peer) == (
        client.uid,
        "ui",
        "ui-1",
        "acme",
        PEER,
    )
    client.sock.close()
    assert world.entry(layout.UP_GONE).uid == client.uid
    world.wait(lambda: world.table.read(0, client.index) is None)
    assert world.table.load(0) == 0


@pytest.mark.requirement("SRV-38")
@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"type": "a/b"}, "bad-request"),
        ({"version": 9}, "unsupported-version"),
        ({"user": "who", "password": "x"}, "bad-credentials"),
        ({"resume": "1.abc"}, "not-allowed"),
    ],
)
def test_a_refused_client_learns_why(make: Make, said: dict[str, Any], code: str) -> None:
    world = make()
    client = world.connect()
    client.send(PREFACE)
    world.entry(layout.UP_ATTACH)
    world.plain(frame(CONFIRM), client)
    client.send(frame(CONNECT, body=json.dumps({"type": "ui", "instance": "i"} | said).encode()))
    assert world.error(client) == code
    world.wait(lambda: client.read() is not None and client.ended)
    client.sock.close()
    assert world.entry(layout.UP_GONE).uid == client.uid


@pytest.mark.requirement("SRV-38")
@pytest.mark.requirement("SRV-124")
def test_passwords_are_checked_and_the_user_is_told_to_the_router(make: Make, tmp_path: Path) -> None:
    security.write(tmp_path / "users.toml", security.Users({"ann": security.User(hash=hash_password("right"))}))
    world = make()
    for _ in range(2):
        client = world.connect()
        response = world.attach(client, user="ann", password="right")
        assert json.loads(response.content)["user"] == "ann"
        world.plain(frame(WELCOME), client)
        found = world.wait(lambda at=client.index: (e := world.table.read(0, at)) and e.state == "live" and e)
        assert found.user == "ann"
    for said in ({"user": "ann", "password": "wrong"}, {"user": "bob", "password": "right"}, {}):
        client = world.connect()
        client.send(PREFACE)
        world.entry(layout.UP_ATTACH)
        world.plain(frame(CONFIRM), client)
        client.send(frame(CONNECT, body=json.dumps({"type": "ui", "instance": "i"} | said).encode()))
        assert world.error(client) == "bad-credentials"


def refused(world: World, peer: str, **said: Any) -> tuple[str, str]:
    """Code and text of the refusal."""
    client = world.connect(peer=peer)
    client.send(PREFACE)
    world.entry(layout.UP_ATTACH)
    world.plain(frame(CONFIRM), client)
    client.send(frame(CONNECT, body=json.dumps({"type": "ui", "instance": "i"} | said).encode()))
    (error,) = world.wait(lambda: [one for one in client.frames() if one.kind == ERROR])
    return error.code, error.body.decode()


@pytest.mark.requirement("DIR-26", state="half", note="refused over plain connections, throttled by user and source")
def test_a_password_from_another_host_needs_tls_and_guessing_is_slowed_down(make: Make, tmp_path: Path) -> None:
    security.write(tmp_path / "users.toml", security.Users({"ann": security.User(hash=hash_password("right"))}))
    world = make()
    right = {"user": "ann", "password": "right"}
    code, text = refused(world, "10.0.0.9:1", **right)
    assert code == "not-allowed"
    assert "TLS" in text
    for _ in range(4):
        code, text = refused(world, PEER, user="ann", password="wrong")
        assert code == "bad-credentials"
        assert "try again" not in text
    code, text = refused(world, PEER, **right)
    assert code == "bad-credentials"
    assert "try again in" in text
    elsewhere = world.connect(peer="[::1]:1")
    elsewhere.send(PREFACE)
    world.entry(layout.UP_ATTACH)
    world.plain(frame(CONFIRM), elsewhere)
    elsewhere.send(frame(CONNECT, body=json.dumps({"type": "ui", "instance": "i"} | right).encode()))
    assert json.loads(world.entry(layout.UP_RESPONSE).content)["user"] == "ann"


@pytest.mark.requirement("SRV-4")
def test_a_drained_manager_ends_with_its_last_connection(make: Make) -> None:
    world = make()
    client = world.live()
    world.supervisor.tell("drain")
    world.wait(lambda: world.table.draining(0))
    time.sleep(0.1)
    assert world.thread.is_alive()
    client.sock.close()
    world.wait(lambda: world.status is not None)
    assert world.status == 0


def test_clients_of_a_drained_manager_are_asked_to_move_with_a_token_any_manager_knows(make: Make) -> None:
    world = make()
    client = world.live()
    world.supervisor.tell("drain", move=True)
    (found,) = world.wait(lambda: [one for one in client.frames() if one.kind == GO_AWAY])
    token = json.loads(found.body)["token"]
    assert token == token_for((world.store / "secret").read_bytes(), client.uid)
    second = world.connect()
    response = world.attach(second, resume=token)
    assert json.loads(response.content)["resume_uid"] == client.uid
    for one in (client, second):
        one.sock.close()
    world.wait(lambda: world.status is not None)
    assert (world.store / "secret").stat().st_mode & 0o777 == 0o600


def test_a_stop_says_good_bye(make: Make) -> None:
    world = make()
    client = world.live()
    world.supervisor.tell("stop")
    assert world.error(client) == "shutting-down"
    client.sock.close()
    world.wait(lambda: world.status is not None)
    assert world.status == 0


@pytest.mark.requirement("SRV-115")
@pytest.mark.requirement("SRV-129")
def test_a_successor_reports_connections_as_lost_and_messages_given_up(make: Make) -> None:
    world = make()
    client = world.live()
    client.send(
        frame(PUBLISH, topic=b"t", body=b"referred") + frame(PUBLISH, topic=b"t", body=bytes(200_000))[:100_000]
    )
    assert world.entry(layout.UP_MESSAGE).uid == client.uid
    world.wait(lambda: world.manager._arenas[0].census()[0] == 2)
    # A death: the thread ends without a word to anybody, and everything it had is gone but the segments.
    world.manager._stop_s = 1.0
    os.eventfd_write(world.wake, 1)
    world.thread.join(5)
    waiting = world.connect()
    del world.manager
    world.supervisor.close()
    world.status = None
    world.begin()
    assert world.entry(layout.UP_GONE).uid == client.uid
    assert any("gave up message" in str(said) and str(client.uid) in str(said) for _, said in world.supervisor.said)
    assert world.manager._arenas[0].census()[0] == 1
    world.attach(waiting)
    assert world.table.load(0) == 1
    client.sock.close()


@pytest.mark.requirement("SRV-25")
@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl to make a certificate")
def test_tls_ends_in_the_manager(make: Make, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    world = make(**{"security.tls_certificate": str(certificate), "security.tls_key": str(key)})
    client = world.connect()
    client.sock.setblocking(True)
    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = False
    with context.wrap_socket(client.sock, server_hostname="localhost") as secured:
        secured.settimeout(5)
        secured.sendall(PREFACE)
        world.entry(layout.UP_ATTACH)
        world.plain(frame(CONFIRM, body=b"x" * 300_000), client)
        got = b""
        while len(got) < 300_032:
            got += secured.recv(65536)
        secured.sendall(frame(CONNECT, body=b'{"type":"a","instance":"b"}'))
        world.entry(layout.UP_RESPONSE)
        world.plain(frame(WELCOME), client)
        assert secured.recv(100)[4] == WELCOME
        secured.sendall(b"".join(frame(PUBLISH, topic=b"t", body=bytes(5000)) for _ in range(100)))
        for _ in range(100):
            assert world.entry(layout.UP_MESSAGE).body_length == 5000
    plain = world.connect()
    world.attach(plain)
    for _ in range(2):
        garbage = world.connect()
        garbage.send(b"\x16\x03\x01\x00\x05hello")
        world.wait(lambda at=garbage: at.read() is not None and at.ended)
