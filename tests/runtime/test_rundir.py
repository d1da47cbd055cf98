"""The data directory: locks, notes, sockets deep down."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fairlead.runtime import rundir
from fairlead.runtime.rundir import ChildNote, PortNote, ServerNote


def test_a_directory_is_served_once(tmp_path: Path) -> None:
    fd = rundir.lock(tmp_path / "data")
    with pytest.raises(rundir.AlreadyServed, match=f"already served by process {os.getpid()}"):
        rundir.lock(tmp_path / "data")
    os.close(fd)
    os.close(rundir.lock(tmp_path / "data"))


def test_a_lock_is_handed_over_a_re_exec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = rundir.lock(tmp_path)
    os.set_inheritable(fd, True)
    monkeypatch.setenv(rundir.LOCK_FD_VARIABLE, str(fd))
    assert rundir.lock(tmp_path) == fd
    assert not os.get_inheritable(fd)
    assert rundir.LOCK_FD_VARIABLE not in os.environ
    os.close(fd)


def test_notes_are_read_back_and_nonsense_is_no_note(tmp_path: Path) -> None:
    assert rundir.read_server_note(tmp_path) is None
    assert rundir.read_children_note(tmp_path) == []
    note = ServerNote("/store", 1, 2, 1, ["127.0.0.1:7400"], 5)
    child = ChildNote("router", 0, 10, 20, 3, "python")
    rundir.write_note(tmp_path / "server.json", note)
    rundir.write_note(tmp_path / "children.json", [child])
    assert rundir.read_server_note(tmp_path) == note
    assert rundir.read_children_note(tmp_path) == [child]
    (tmp_path / "server.json").write_text("{")
    (tmp_path / "children.json").write_text("[1]")
    assert rundir.read_server_note(tmp_path) is None
    assert rundir.read_children_note(tmp_path) == []


def test_a_process_is_known_by_number_and_start_time() -> None:
    started = rundir.process_start_time(os.getpid())
    assert started is not None
    mine = ChildNote("router", 0, os.getpid(), started, 1, "python")
    other = ChildNote("router", 0, os.getpid(), started + 1, 1, "python")
    gone = ChildNote("router", 0, 2**22 + 1, 1, 1, "python")
    assert rundir.living([mine, other, gone]) == [mine]


def test_sockets_work_in_a_directory_deeper_than_a_socket_address_is_long(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with rundir.listen_unix(deep / "a.sock", socket.SOCK_STREAM), socket.socket(socket.AF_UNIX) as client:
        with rundir.short_path(deep / "a.sock") as path:
            client.connect(path)
        assert (deep / "a.sock").stat().st_mode & 0o777 == 0o600
    rundir.listen_unix(deep / "a.sock", socket.SOCK_STREAM).close()  # what is there is replaced


def test_ports_are_looked_up_in_a_directory_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert rundir.read_port_note(7400) is None
    note = PortNote("/data", "/data/run", 1)
    path = rundir.write_port_note(7400, note)
    assert path == tmp_path / "fairlead" / "7400.json"
    assert rundir.read_port_note(7400) == note
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert rundir.ports_directory() == tmp_path / f"fairlead-{os.getuid()}"
