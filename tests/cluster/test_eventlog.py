"""The event log: lines of JSON, written by a thread that never holds anybody up."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.cluster.edge import eventlog
from fairlead.cluster.edge.eventlog import EventLog, tail


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    it = EventLog(tmp_path / "log", node="mm-7")
    yield it
    it.close()


def records(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


@pytest.mark.requirement("CLU-195", "CLU-196")
def test_records_are_lines_of_json_with_their_node(log: EventLog) -> None:
    log.write(
        {"ms": 5, "level": "info", "code": "made", "text": "A queue\nwas made.", "destination": "q", "id": b"\x01"}
    )
    log.write({"ms": 6, "level": "debug", "code": "noise", "text": ""})
    assert log.flush()
    (record,) = records(log.path)
    assert record["node"] == "mm-7"
    assert (record["code"], record["destination"], record["text"]) == ("made", "q", "A queue\nwas made.")


@pytest.mark.requirement("CLU-78", "CLU-198")
def test_a_slow_disk_holds_nobody_up_and_what_is_lost_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    real = os.write

    def slow(fd: int, data: Any) -> int:
        gate.wait(10)
        return real(fd, data)

    log = EventLog(tmp_path, queue_max=100)
    monkeypatch.setattr(eventlog.os, "write", slow)
    log.write({"level": "info", "code": "first", "text": ""})
    time.sleep(0.05)  # the thread is in its write now
    began_s = time.monotonic()
    for number in range(300):
        log.write({"level": "info", "code": "flood", "text": "", "number": number})
    for number in range(20):
        log.write({"level": "error", "code": "grave", "text": "", "number": number})
    assert time.monotonic() - began_s < 8
    gate.set()
    assert log.flush()
    log.close()
    codes = [record["code"] for record in records(log.path)]
    assert codes.count("grave") == 20
    assert codes.count("flood") == 80
    assert log.dropped == 220
    (told,) = [record for record in records(log.path) if record["code"] == "log-dropped"]
    assert told["count"] == 220


def test_an_important_record_is_lost_only_if_all_are_important(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    log = EventLog(tmp_path, queue_max=3)
    monkeypatch.setattr(log, "_put", lambda batch: gate.wait(5))
    log.write({"level": "info", "code": "a", "text": ""})
    time.sleep(0.05)
    for _ in range(5):
        log.write({"level": "error", "code": "e", "text": ""})
    assert log.dropped == 2
    gate.set()
    log.close()


@pytest.mark.requirement("CLU-198")
def test_a_full_disk_is_survived_and_told_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(tmp_path)
    real = os.write

    def full(fd: int, data: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(eventlog.os, "write", full)
    log.write({"level": "error", "code": "lost", "text": ""})
    assert log.flush()
    monkeypatch.setattr(eventlog.os, "write", real)
    log.write({"level": "error", "code": "kept", "text": ""})
    assert log.flush()
    log.close()
    assert [record["code"] for record in records(log.path)] == ["kept", "log-dropped"]


def test_long_files_are_turned_over_and_few_are_kept(tmp_path: Path) -> None:
    log = EventLog(tmp_path, file_bytes_max=2_000, files_kept=2)
    for number in range(100):
        log.write({"level": "info", "code": "x", "text": "y" * 100, "number": number})
        log.flush()
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events.jsonl", "events.jsonl.1", "events.jsonl.2"]
    assert all(path.stat().st_size < 3_000 for path in tmp_path.iterdir())
    assert records(log.path)[-1]["number"] == 99


@pytest.mark.requirement("CLU-195")
def test_a_second_place_can_be_added_while_it_runs(log: EventLog, tmp_path: Path) -> None:
    address = str(tmp_path / "devlog")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as system:
        system.bind(address)
        system.settimeout(5)
        log.add_system_log(address)
        log.write({"ms": 1, "level": "error", "code": "grave", "text": "Something happened."})
        assert b"grave: Something happened." in system.recv(1000)
    Path(address).unlink()
    log.write({"ms": 2, "level": "error", "code": "again", "text": ""})
    assert log.flush()
    assert [record["code"] for record in records(log.path)] == ["grave", "again", "log-place"]


def test_the_tail_fits_what_is_asked_for(log: EventLog) -> None:
    for number in range(50):
        level = "error" if number % 10 == 0 else "info"
        log.write({"ms": number, "level": level, "code": "even" if number % 2 == 0 else "odd", "text": ""})
    assert log.flush()
    assert [record["ms"] for record in tail(log.path, lines=3)] == [47, 48, 49]
    assert [record["ms"] for record in tail(log.path, level="error")] == [0, 10, 20, 30, 40]
    assert [record["ms"] for record in tail(log.path, code="odd", since_ms=45)] == [45, 47, 49]
    assert tail(log.path.with_name("nothing")) == []
