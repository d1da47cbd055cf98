"""The line between supervisor and child: packets with descriptors, and a child that outlives its supervisor."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.runtime import packets
from fairlead.runtime.child import wait_for_start
from fairlead.runtime.config import Config, to_wire
from fairlead.runtime.control import SOCKET_NAME, Control
from fairlead.runtime.pool import _read_answer
from fairlead.runtime.rundir import listen_unix


class Gate:
    """The supervisor's end."""

    def __init__(self, run: Path) -> None:
        self.listening = listen_unix(run / SOCKET_NAME, socket.SOCK_SEQPACKET)
        self.line: socket.socket | None = None

    def accept(self) -> packets.Received:
        self.line, _ = self.listening.accept()
        received = packets.Receiver(self.line).receive()
        assert received is not None
        return received

    def close(self) -> None:
        if self.line is not None:
            self.line.close()
        self.listening.close()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path)
    yield made
    made.close()


def start_packet() -> dict[str, object]:
    return {
        "command": "start",
        "config": to_wire(Config()),
        "store": "/store",
        "managers": 2,
        "server_id": 5,
        "generation": 8,
        "mode": "standby",
    }


def test_a_child_says_hello_is_told_what_to_be_and_reports(gate: Gate, tmp_path: Path) -> None:
    control = Control(tmp_path, "router", 0)
    control.connect()
    hello = gate.accept().message
    assert (hello["event"], hello["role"], hello["state"], hello["pid"]) == ("hello", "router", "new", os.getpid())
    assert gate.line is not None
    reading, writing = os.pipe()
    packets.send(gate.line, start_packet(), {"wake": writing})
    start = wait_for_start(control, "router", 0)
    assert start is not None
    assert (start.generation, start.mode, start.managers, start.store) == (8, "standby", 2, Path("/store"))
    os.write(start.fds["wake"], b"x")
    assert os.read(reading, 1) == b"x"
    for fd in (reading, writing, start.fds["wake"]):
        os.close(fd)
    assert control.receive() == []
    control.send("ready")
    assert control.state == "standby"
    received = packets.Receiver(gate.line).receive()
    assert received is not None
    assert received.message == {"event": "ready"}
    control._lose()


def test_a_child_outlives_the_supervisor_and_brings_everything_to_the_next(gate: Gate, tmp_path: Path) -> None:
    control = Control(tmp_path, "manager", 3)
    control.connect()
    gate.accept()
    assert gate.line is not None
    reading, writing = os.pipe()
    packets.send(gate.line, start_packet() | {"mode": "active"}, {"wake": writing})
    start = wait_for_start(control, "manager", 3)
    assert start is not None
    control.send("ready")
    gate.close()
    assert control.receive() == []
    assert control.lost
    assert control.fileno() == -1
    control.send("log", level="info", text="nobody hears this")
    assert not control.tick(10.0)
    again = Gate(tmp_path)
    assert not control.tick(10.1)  # not before 200 ms have passed
    assert control.tick(10.3)
    assert not control.lost
    received = again.accept()
    assert received.message["state"] == "active"
    assert received.message["generation"] == 8
    os.write(received.fds["wake"], b"y")
    assert os.read(reading, 1) == b"y"
    for fd in (reading, writing, start.fds["wake"], received.fds["wake"]):
        os.close(fd)
    control._lose()
    again.close()


def test_a_child_that_is_not_ready_yet_says_hello_to_the_next_supervisor_when_it_is(gate: Gate, tmp_path: Path) -> None:
    """Said earlier it would be turned away, and go on serving beside the one started in its place."""
    control = Control(tmp_path, "message-manager", 0)
    control.connect()
    gate.accept()
    assert gate.line is not None
    packets.send(gate.line, start_packet())
    assert wait_for_start(control, "message-manager", 0) is not None
    gate.line.close()
    assert control.receive() == []
    assert control.lost
    assert not control.tick(1.0)
    control.send("ready")
    assert control.tick(2.0)
    assert gate.accept().message["state"] == "standby"
    control._lose()


def test_a_child_whose_data_directory_is_gone_ends(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    control = Control(tmp_path / "run", "router", 0)
    assert not control.tick(1.0)
    (tmp_path / "run").rmdir()
    with pytest.raises(SystemExit):
        control.tick(2.0)


def test_many_descriptors_arrive_together_with_their_message() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, open(os.devnull) as file:
        names = {f"fd-{number}": file.fileno() for number in range(230)}
        packets.send(ours, {"command": "start"}, names)
        received = packets.Receiver(theirs).receive()
        assert received is not None
        assert received.message == {"command": "start"}
        assert list(received.fds) == list(names)
        for fd in received.fds.values():
            assert not os.get_inheritable(fd)
            os.close(fd)


def test_descriptors_of_a_peer_that_did_not_finish_are_closed() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, open(os.devnull) as file:
        packets._send(ours, {"more": True}, ["a"], {"a": file.fileno()})
        ours.close()
        before = len(os.listdir("/proc/self/fd"))
        assert packets.Receiver(theirs).receive() is None
        assert len(os.listdir("/proc/self/fd")) == before


def test_an_answer_may_be_longer_than_a_packet(gate: Gate, tmp_path: Path) -> None:
    control = Control(tmp_path, "message-manager", 0)
    assert control.run_dir == tmp_path
    control.connect()
    gate.accept()
    assert gate.line is not None
    control.answer(7, ok=True, answer="x" * 1_000_000)
    received = packets.Receiver(gate.line).receive()
    assert received is not None
    assert received.message == {"event": "answer", "number": 7}
    assert _read_answer(received.fds) == {"ok": True, "answer": "x" * 1_000_000}
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(received.fds["answer"])
    control._lose()
    control.answer(8, ok=True)  # nobody is there to hear it


def test_an_answer_that_is_none_is_a_no() -> None:
    assert _read_answer({}) == {}
    fd = os.memfd_create("noise")
    os.write(fd, b"noise")
    assert _read_answer({"answer": fd})["ok"] is False
