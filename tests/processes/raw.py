"""A client made of a bare socket, and a look at processes from outside: for tests that flood, abuse and measure."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from fairlead.broker.answers import PREFACE, frame
from fairlead.testing import Server

(CONNECT, PING, PONG, CREDIT, SUBSCRIBE, UNSUBSCRIBE, REGISTER, UNREGISTER, CANCEL, CLOSE, MOVE) = range(0x01, 0x0C)
PUBLISH, REQUEST, RESPONSE, CONVERSE, FANOUT, SEND = range(0x20, 0x26)
FRAGMENT = 0x2F
CONFIRM, WELCOME, OK, ERROR = 0x41, 0x42, 0x43, 0x44
FRAGMENTED = 0x08

HEAD = struct.Struct("<IBBHIIQQ")
PATIENCE_S = 20.0
_names = itertools.count(1)


class Frame:
    """A frame taken apart."""

    def __init__(self, data: bytes) -> None:
        _, self.kind, self.flags, topic, headers, self.number, self.correlation, self.peer = HEAD.unpack_from(data)
        self.topic = data[32 : 32 + topic].decode()
        self.headers = data[32 + topic : 32 + topic + headers]
        self.body = data[32 + topic + headers :]

    @property
    def code(self) -> str:
        """The word of an ERROR."""
        return self.headers[7:].decode() if self.kind == ERROR else ""

    def __repr__(self) -> str:
        return f"<{self.kind:#x} {self.code or self.topic} number={self.number} body={self.body[:60]!r}>"


class Raw:
    """One connection; every call blocks, at most `PATIENCE_S`."""

    def __init__(self, port: int, *, attach: bool = True, credit: int = 0, receive_buffer: int = 0) -> None:
        self.sock = socket.socket()
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(("127.0.0.1", port))
        self._data = bytearray()
        self.uid = 0
        if attach:
            self.attach(credit)

    def attach(self, credit: int = 0, **said: Any) -> Self:
        """The whole handshake."""
        self.sock.sendall(PREFACE + self.connect_frame(credit, **said))
        confirm = self.frame()
        assert confirm.kind == CONFIRM, confirm
        self.uid = json.loads(confirm.body)["uid"]
        welcome = self.frame()
        assert welcome.kind == WELCOME, welcome
        return self

    @staticmethod
    def connect_frame(credit: int = 0, **said: Any) -> bytes:
        name = f"raw-{os.getpid()}-{next(_names)}"
        known = {"version": 1, "type": "raw", "instance": name, "credit": credit, "keep_alive_s": 30}
        return frame(CONNECT, body=json.dumps(known | said).encode())

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def frame(self) -> Frame:
        """The next frame; ConnectionError when there is none any more."""
        (length,) = struct.unpack("<I", self._exactly(4, take=False))
        return Frame(self._exactly(length))

    def expect(self, kind: int) -> Frame:
        """The next frame of this kind, whatever comes before it."""
        while (found := self.frame()).kind != kind:
            pass
        return found

    def error(self) -> str:
        """The code of the next frame, which is an ERROR."""
        found = self.frame()
        assert found.kind == ERROR, found
        return found.code

    def _exactly(self, size: int, *, take: bool = True) -> bytes:
        while len(self._data) < size:
            more = self.sock.recv(1 << 18)
            if not more:
                raise ConnectionError("the server closed the connection")
            self._data += more
        found = bytes(self._data[:size])
        if take:
            del self._data[:size]
        return found

    def subscribe(self, pattern: str, number: int = 1) -> Frame:
        self.send(frame(SUBSCRIBE, topic=pattern.encode(), number=number))
        return self.frame()

    def echo(self, correlation: int = 77) -> float:
        """PING, PONG and the seconds between."""
        began_s = time.monotonic()
        self.send(frame(PING, correlation=correlation))
        while self.expect(PONG).correlation != correlation:
            pass
        return time.monotonic() - began_s

    def is_closed(self) -> bool:
        """Wait for the end of the connection; False when frames come or nothing happens."""
        try:
            return not self.sock.recv(1 << 16)
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def publish(topic: str, body: bytes = b"", **fields: Any) -> bytes:
    return frame(PUBLISH, topic=topic.encode(), body=body, **fields)


class Flood:
    """A thread that sends the same bytes over and over, or whatever an iterator yields, until told to stop."""

    def __init__(self, client: Raw, data: Iterable[bytes]) -> None:
        self.client, self.sent, self.error = client, 0, ""
        self._data, self._over = data, threading.Event()
        client.sock.settimeout(None)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for data in self._data:
                if self._over.is_set():
                    return
                self.client.sock.sendall(data)
                self.sent += 1
        except OSError as error:
            self.error = str(error)

    def stop(self) -> None:
        """Stop, if need be in the middle of a frame."""
        self._over.set()
        try:
            self.client.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def manager_of(server: Server, client: Raw) -> int:
    """Which manager has this connection, by the status report."""
    for entry in server.status()["connections"]:
        if entry["uid"] == client.uid:
            return int(entry["manager"])
    raise AssertionError(f"connection {client.uid} is not in the table")


def placed(server: Server, wanted: list[int], **how: Any) -> list[Raw]:
    """Connections at these managers: connect until each is found, then close those that fell elsewhere."""
    found: list[Raw | None] = [None] * len(wanted)
    surplus: list[Raw] = []
    while None in found:
        client = Raw(server.port, **how)
        where = manager_of(server, client)
        place = next((i for i, manager in enumerate(wanted) if manager == where and found[i] is None), None)
        if place is None:
            surplus.append(client)
        else:
            found[place] = client
    for client in surplus:
        client.close()
    every = [client for client in found if client is not None]
    server.wait_until(lambda status: len(status["connections"]) == len(every))
    return every


@contextmanager
def closing(*clients: Raw) -> Iterator[None]:
    try:
        yield
    finally:
        for client in clients:
            client.close()


def wait_for(condition: Callable[[], bool], timeout_s: float = 10.0, what: str = "") -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, what or "not reached in time"
        time.sleep(0.02)


# -- processes from outside


def resident_bytes(pid: int) -> int:
    """Memory of its own: the pages of the store, which all processes have in common, are not counted."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def server_bytes(server: Server) -> dict[str, int]:
    """Anonymous resident memory of every process, by role and index."""
    components = server.status(brief=True)["components"]
    return {f"{c['role']}-{c['index']}-{c['pid']}": resident_bytes(c["pid"]) for c in components}


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def slowed(pid: int, *, run_s: float, rest_s: float) -> Iterator[None]:
    """This process runs and rests in turn inside. Another process sees to it, so that our threads do not disturb it."""
    program = (
        "import os, signal, sys, time\n"
        "pid, run_s, rest_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])\n"
        "while True:\n"
        "    os.kill(pid, signal.SIGSTOP); time.sleep(rest_s)\n"
        "    os.kill(pid, signal.SIGCONT); time.sleep(run_s)\n"
    )
    driver = subprocess.Popen([sys.executable, "-S", "-c", program, str(pid), str(run_s), str(rest_s)])
    try:
        yield
    finally:
        driver.kill()
        driver.wait()
        os.kill(pid, signal.SIGCONT)


@contextmanager
def suspended(*pids: int) -> Iterator[None]:
    """These processes stand still (SIGSTOP) inside, and go on after."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
