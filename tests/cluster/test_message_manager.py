"""The real process over its real journal, started as a supervisor does and spoken to over its socket in raw frames."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.cluster.demuxing import scan
from fairlead.cluster.outgoing import Link
from fairlead.runtime import config as configuring
from fairlead.runtime import packets
from fairlead.runtime.counters import Counters
from fairlead.runtime.rundir import listen_unix
from fairlead.store import layout
from fairlead.store.edge.segment import create_counters
from fairlead.store.memory import MODE
from fairlead.wire import durable
from fairlead.wire.durable import STORE_HEAD, STORED_ITEM
from fairlead.wire.entry_codec import encode
from fairlead.wire.headers import decode_headers
from fairlead.wire.kinds import KIND_ERROR

from .core_rig import Got, messages_of

A = 11
PATIENCE_S = 10.0


class Supervisor:
    """Starts one message manager and holds the other end of its control line."""

    def __init__(self, data: Path, **settings: Any) -> None:
        self.data, self.run, self.store = data, data / "run", data / "store"
        self.run.mkdir(parents=True, exist_ok=True)
        self.store.mkdir(exist_ok=True)
        path = self.store / layout.counters_name("message-manager")
        if not path.exists():
            create_counters(path, index=0, mode=MODE, server_id=1).close()
        self.settings = {"server.data": str(data), **{f"messages.{name}": value for name, value in settings.items()}}
        self.said: list[dict[str, Any]] = []
        self.answers: dict[int, Any] = {}
        self.links: list[Manager] = []
        self.start()

    def start(self, wait: bool = True) -> None:
        gate = listen_unix(self.run / "supervisor.sock", socket.SOCK_SEQPACKET)
        gate.setblocking(True)
        gate.settimeout(PATIENCE_S)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fairlead.runtime.child", "message-manager", "0", str(self.run)]
        )
        self.sock, _ = gate.accept()
        gate.close()
        self.sock.settimeout(PATIENCE_S)
        self.receiver = packets.Receiver(self.sock)
        config = configuring.load(None, {}, self.settings)
        start = {
            "command": "start",
            "config": configuring.to_wire(config),
            "store": str(self.store),
            "managers": 0,
            "server_id": 1,
            "generation": 1,
            "mode": "active",
        }
        packets.send(self.sock, start)
        if wait:
            self.until(lambda: any(said.get("event") == "ready" for said in self.said))

    def until(self, done: Callable[[], bool]) -> None:
        while not done():
            received = self.receiver.receive()
            assert received is not None, f"it ended: {self.said}"
            if received.message.get("event") == "answer":
                with open(received.fds["answer"], "rb") as file:
                    file.seek(0)
                    self.answers[received.message["number"]] = msgspec.json.decode(file.read())
            self.said.append(received.message)

    def admin(self, name: str, **args: Any) -> dict[str, Any]:
        number = len(self.answers) + 1
        packets.send(self.sock, {"command": "admin", "number": number, "name": name, "args": args})
        self.until(lambda: number in self.answers)
        return self.answers[number]  # type: ignore[no-any-return]

    def counters(self) -> dict[str, int]:
        data = (self.store / layout.counters_name("message-manager")).read_bytes()
        return Counters("message-manager", bytearray(data)).as_dict()

    def link(self) -> Manager:
        manager = Manager(self.run / "mm-0.sock")
        self.links.append(manager)
        return manager

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._forget()

    def stop(self) -> int:
        packets.send(self.sock, {"command": "stop"})
        code = self.process.wait(PATIENCE_S)
        self._forget()
        return code

    def _forget(self) -> None:
        self.sock.close()
        self.said.clear()
        for manager in self.links:
            manager.close()
        self.links.clear()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()


class Manager:
    """A connection manager's end of the link, with its clients."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(str(path))
        self.buffer = bytearray()
        self.inbox: list[Got] = []
        self.number = 0
        self.ids: dict[int, int] = {}
        self.ask(0, "hello", manager=0, generation=1, pid=os.getpid())

    def send(self, uid: int, kind: int, **facts: Any) -> None:
        link = Link(1)
        link.frame(uid, uid, kind, **facts)
        self.sock.sendall(b"".join(link.out))

    def receive(self) -> None:
        data = self.sock.recv(1 << 20)
        if not data:
            raise EOFError
        self.buffer += data
        frames, used = scan(self.buffer, 0, len(self.buffer))
        for uid, _, kind, _, number, correlation, peer, topic, headers, body, end in frames:
            got = Got(
                uid,
                kind,
                number,
                correlation,
                peer,
                bytes(self.buffer[topic:headers]),
                dict(decode_headers(bytes(self.buffer[headers:body]))),
                bytes(self.buffer[body:end]),
            )
            if kind == durable.KIND_COMMAND and uid == 0 and got.facts["do"] == "announce":
                body_ = msgspec.json.encode({"do": "announced", "number": got.facts["number"]})
                self.send(0, durable.KIND_COMMAND, body=body_)
            self.inbox.append(got)
        del self.buffer[:used]

    def take(self, fits: Callable[[Got], bool]) -> Got:
        while True:
            for got in self.inbox:
                if fits(got):
                    self.inbox.remove(got)
                    return got
            self.receive()

    def ask(self, uid: int, do: str, **facts: Any) -> dict[str, Any]:
        self.number += 1
        number = self.number
        self.send(uid, durable.KIND_COMMAND, number=number, body=msgspec.json.encode({"do": do, **facts}))
        got = self.take(
            lambda one: one.uid == uid and one.number == number and one.kind in (durable.KIND_ANSWER, KIND_ERROR)
        )
        assert got.kind == durable.KIND_ANSWER, got
        return got.facts

    def session(self, uid: int, **facts: Any) -> dict[str, Any]:
        answer = self.ask(uid, "session", ack="individual", **facts)
        self.ids[uid] = answer["ids"][0]
        return answer

    def producer(self, uid: int, name: str) -> int:
        answer = self.ask(uid, "produce", session=1, destination=name, kind="queue", create=True)
        return int(answer["producer"])

    def consumer(self, uid: int, name: str, messages: int = 100_000) -> int:
        answer = self.ask(
            uid, "consume", session=1, destination=name, kind="queue", create=True, messages=messages, bytes=1 << 30
        )
        return int(answer["consumer"])

    def store(self, uid: int, producer: int, first: int, *bodies: bytes) -> None:
        entries = b"".join(encode(body) for body in bodies)
        head = STORE_HEAD.pack(len(bodies), 0, 1, self.ids[uid] + first)
        self.send(uid, durable.KIND_STORE, number=producer, correlation=first, body=head + entries)

    def stored(self, uid: int, count: int) -> list[tuple[int, ...]]:
        items: list[tuple[int, ...]] = []
        while sum(item[1] for item in items) < count:
            got = self.take(lambda one: one.uid == uid and one.kind == durable.KIND_STORED)
            items += STORED_ITEM.iter_unpack(got.body)
        return items

    def delivered(self, uid: int, count: int) -> list[tuple[int, int, bytes]]:
        found: list[tuple[int, int, bytes]] = []
        while len(found) < count:
            got = self.take(lambda one: one.uid == uid and one.kind == durable.KIND_DELIVER)
            found += messages_of(got.body)
        return found

    def settle(self, uid: int, consumer: int, first: int, beyond: int, flags: int = 0) -> None:
        body = durable.SETTLE_ITEM.pack(first, beyond, durable.ACKNOWLEDGE, 0)
        self.send(uid, durable.KIND_SETTLE, number=consumer, peer=1, flags=flags, body=body)
        self.take(lambda one: one.uid == uid and one.kind == durable.KIND_SETTLED)

    def close(self) -> None:
        self.sock.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Supervisor]]:
    with contextlib.ExitStack() as stack:

        def begin(**settings: Any) -> Supervisor:
            supervisor = Supervisor(tmp_path, **settings)
            stack.callback(supervisor.close)
            return supervisor

        yield begin


def test_an_answer_nobody_waits_for_comes_though_nothing_else_is_written(start: Callable[..., Supervisor]) -> None:
    link = start().link()
    link.session(A)
    producer, consumer = link.producer(A, "orders"), link.consumer(A, "orders")
    link.store(A, producer, 1, b"one", b"two")
    link.stored(A, 2)
    assert len(link.delivered(A, 2)) == 2
    for order in (1, 2):
        link.settle(A, consumer, order, order + 1, flags=durable.FLAG_PATIENT)


@pytest.mark.requirement("CLU-114", "CLU-116")
def test_what_was_confirmed_is_there_after_a_kill(start: Callable[..., Supervisor]) -> None:
    supervisor = start()
    link = supervisor.link()
    link.session(A)
    producer = link.producer(A, "orders")
    for number in range(1, 101):
        link.store(A, producer, number, b"message %d" % number)
    link.stored(A, 100)
    consumer = link.consumer(A, "orders", messages=10)
    assert len(link.delivered(A, 10)) == 10
    link.settle(A, consumer, 1, 6)
    supervisor.kill()
    supervisor.start()
    link = supervisor.link()
    link.session(A)
    link.consumer(A, "orders")
    messages = link.delivered(A, 95)
    assert [order for order, _, _ in messages] == list(range(6, 101))
    assert [body for _, _, body in messages] == [b"message %d" % number for number in range(6, 101)]
    assert all(deliveries >= 2 for order, deliveries, _ in messages if order <= 10)
    assert supervisor.stop() == 0
    assert not (supervisor.run / "mm-0.sock").exists()


@pytest.mark.requirement("CLU-118", "CLU-119", "CLU-124")
def test_a_resumed_session_knows_how_far_it_was_accepted(start: Callable[..., Supervisor]) -> None:
    supervisor = start()
    link = supervisor.link()
    session = link.session(A)
    producer = link.producer(A, "q")
    link.store(A, producer, 1, b"a", b"b", b"c")
    link.stored(A, 3)
    supervisor.kill()
    supervisor.start()
    link = supervisor.link()
    resume = {"id": session["id"], "secret": session["secret"], "incarnation": session["incarnation"] + 1}
    again = link.session(A, resume=resume)
    assert again["accepted"] == {"q": 3}
    producer = link.producer(A, "q")
    link.ids[A] = session["ids"][0]
    link.store(A, producer, 2, b"b", b"c", b"d")
    items = link.stored(A, 3)
    assert sorted((item[0], item[1], item[2]) for item in items) == [
        (2, 2, durable.STORED_AGAIN),
        (4, 1, durable.STORED_NEW),
    ]
    link.consumer(A, "q")
    assert [body for _, _, body in link.delivered(A, 4)] == [b"a", b"b", b"c", b"d"]


@pytest.mark.requirement("CLU-115", "CLU-65")
def test_a_slow_disk_delays_confirms_and_nothing_else(start: Callable[..., Supervisor]) -> None:
    supervisor = start(faults="sync_delay_ms=600")
    link = supervisor.link()
    link.session(A)
    producer = link.producer(A, "q")
    began = time.monotonic()
    link.store(A, producer, 1, b"x")
    link.send(A, 0x6E, number=9)
    link.take(lambda one: one.kind == KIND_ERROR)
    assert time.monotonic() - began < 0.5
    link.stored(A, 1)
    assert time.monotonic() - began >= 0.6
    assert supervisor.counters()["tick_gap_max_ns"] < 550_000_000


@pytest.mark.requirement("CLU-114")
def test_a_failed_sync_confirms_nothing_and_ends_the_process(start: Callable[..., Supervisor]) -> None:
    supervisor = start(faults="fail_sync_at=20")
    link = supervisor.link()
    link.session(A)
    producer = link.producer(A, "q")
    confirmed = 0
    with pytest.raises((EOFError, ConnectionError)):
        for number in range(1, 100):
            link.store(A, producer, number, b"%d" % number)
            link.stored(A, 1)
            confirmed = number
    assert supervisor.process.wait(PATIENCE_S) == 1
    supervisor._forget()
    supervisor.settings["messages.faults"] = ""
    supervisor.start()
    link = supervisor.link()
    link.session(A)
    link.consumer(A, "q")
    assert len(link.delivered(A, confirmed)) >= confirmed


@pytest.mark.requirement("CLU-101", "CLU-113")
def test_a_full_store_blocks_producers_until_consumers_made_room(start: Callable[..., Supervisor]) -> None:
    supervisor = start(segment_bytes=1 << 20, quota_bytes=6 << 20, checkpoint_bytes=1 << 20)
    link = supervisor.link()
    link.session(A)
    producer = link.producer(A, "q")
    body = bytes(100_000)
    number = confirmed = 0
    while not any(one.facts.get("code") == "store-full" for one in link.inbox if one.kind == durable.KIND_NOTICE):
        number += 1
        link.store(A, producer, number, body)
        with contextlib.suppress(TimeoutError):
            link.sock.settimeout(0.3)
            confirmed += len(link.stored(A, 1))
        assert number < 80, "it never became full"
    link.sock.settimeout(PATIENCE_S)
    link.store(A, producer, number + 1, body)
    assert supervisor.counters()["journal_bytes"] <= 6 << 20
    consumer = link.consumer(A, "q")
    messages = link.delivered(A, confirmed)
    link.settle(A, consumer, 1, messages[-1][0] + 1)
    link.take(lambda one: one.kind == durable.KIND_NOTICE and one.facts["event"] == "unblocked")
    link.stored(A, number + 1 - confirmed)
    assert link.delivered(A, number + 1 - confirmed)[-1][0] == number + 1


def test_an_impossible_envelope_ends_that_link_alone(start: Callable[..., Supervisor]) -> None:
    supervisor = start()
    good, bad = supervisor.link(), supervisor.link()
    bad.sock.sendall(b"\xff" * 64)
    with pytest.raises((EOFError, ConnectionError)):
        while True:
            bad.receive()
    good.session(A)
    producer = good.producer(A, "q")
    good.store(A, producer, 1, b"x")
    good.stored(A, 1)


@pytest.mark.requirement("CLU-185")
def test_administration_over_the_control_line(start: Callable[..., Supervisor]) -> None:
    supervisor = start()
    link = supervisor.link()
    link.session(A)
    link.producer(A, "q")
    answer = supervisor.admin("journal")
    assert answer["ok"], answer
    assert answer["answer"]["ok"]["sync"] == "always"
    assert not supervisor.admin("fly")["ok"]


def test_a_checkpoint_makes_the_next_start_read_less(start: Callable[..., Supervisor], tmp_path: Path) -> None:
    supervisor = start()
    link = supervisor.link()
    link.session(A)
    producer = link.producer(A, "q")
    for number in range(1, 201):
        link.store(A, producer, number, b"%d" % number)
    link.stored(A, 200)
    supervisor.admin("checkpoint")
    until_s = time.monotonic() + PATIENCE_S
    while supervisor.counters()["checkpoints"] < 1 and time.monotonic() < until_s:
        time.sleep(0.02)
    link.store(A, producer, 201, b"201")
    link.stored(A, 1)
    supervisor.kill()
    supervisor.start()
    (line,) = [said["text"] for said in supervisor.said if "records in" in said.get("text", "")]
    assert int(line.split()[3]) < 50, line
    link = supervisor.link()
    link.session(A)
    link.consumer(A, "q")
    assert [body for _, _, body in link.delivered(A, 201)] == [b"%d" % number for number in range(1, 202)]
