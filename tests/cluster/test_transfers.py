"""Very large messages: in by pieces, out by pieces, with files that live exactly as long as they are needed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.edge.large import SideFiles, SideWriter
from fairlead.wire.durable import (
    ACKNOWLEDGE,
    ENTRY_LARGE,
    KIND_DATA,
    LARGE,
    STORED_NEW,
    STORED_REFUSED,
)
from fairlead.wire.entry_codec import encode
from fairlead.wire.kinds import FLAG_LAST
from tests.cluster.manager_rig import Client, Manager, Refused

FRAGMENT = 1024


@pytest.fixture
def manager(tmp_path: Path) -> Manager:
    return Manager(tmp_path, fragment_bytes=FRAGMENT)


def files(manager: Manager) -> list[int]:
    return sorted(SideFiles(manager.folder / "large").listed())


def large_entry(transfer: int, body: bytes) -> bytes:
    return encode(LARGE.pack(transfer, len(body), hashlib.sha256(body).digest()), flags=ENTRY_LARGE)


class Sender:
    def __init__(self, manager: Manager, resume: dict[str, Any] | None = None) -> None:
        self.manager = manager
        self.client: Client = manager.client()
        self.facts = self.client.do("session", **({"resume": resume} if resume else {}))
        self.session = self.facts["session"]
        self.producer = self.client.do("produce", session=self.session, destination="q", create=True)["producer"]

    def again(self) -> Sender:
        facts = {"id": self.facts["id"], "secret": self.facts["secret"], "incarnation": self.facts["incarnation"] + 1}
        return Sender(self.manager, facts)

    def begin(self, transfer: int, **how: Any) -> dict[str, Any]:
        return self.client.do(
            "transfer", session=self.session, producer=self.producer, transfer=transfer, **{"length": None, **how}
        )

    def upload(self, transfer: int, body: bytes, start: int = 0, end: int | None = None) -> int:
        """Send within what is granted; how far it came."""
        at, granted = start, start + 8 * FRAGMENT
        end = len(body) if end is None else end
        while at < end or (not body and at == 0):
            for notice in self.client.notices("transfer"):
                if notice["transfer"] == transfer:
                    granted = max(granted, notice["offset"])
            piece = body[at : min(at + FRAGMENT, end, granted)]
            if not piece and body:
                raise AssertionError("no more is granted")
            is_last = at + len(piece) == len(body)
            self.client.piece(self.producer, transfer, at, piece, last=is_last)
            at += len(piece)
            self.manager.turn()
            if is_last:
                break
        return at

    def store(self, first: int, transfer: int, body: bytes, transaction: int = 0) -> None:
        self.client.store_raw(
            self.producer,
            first,
            large_entry(transfer, body),
            1,
            ids=self.facts["ids"][0] + first,
            transaction=transaction,
        )

    def send(self, first: int, transfer: int, body: bytes) -> None:
        self.begin(transfer)
        self.upload(transfer, body)
        self.store(first, transfer, body)
        self.manager.turn()


class Receiver:
    def __init__(self, manager: Manager, messages: int = 10) -> None:
        self.manager = manager
        self.client = manager.client()
        session = self.client.do("session")["session"]
        self.consumer = self.client.do(
            "consume", session=session, destination="q", create=True, messages=messages, bytes=1 << 20
        )["consumer"]

    def read(self, order: int, window: int = 4 * FRAGMENT) -> bytes:
        found, up_to = b"", window
        while True:
            self.client.pull(self.consumer, order, up_to)
            self.manager.turn()
            data = [frame for frame in self.client.of_kind(KIND_DATA) if frame.correlation == order]
            found = b"".join(frame.body for frame in data)
            assert len(found) <= up_to
            assert [frame.peer for frame in data] == list(range(0, max(len(found), 1), FRAGMENT))
            if data and data[-1].flags & FLAG_LAST:
                return found
            up_to = len(found) + window

    def ack(self, order: int) -> None:
        self.client.settle(self.consumer, (order, order + 1, ACKNOWLEDGE))
        self.manager.turn()


@pytest.mark.requirement("CLU-93", "CLU-95")
@pytest.mark.parametrize("size", [0, 1, FRAGMENT - 1, FRAGMENT, FRAGMENT + 1, 40 * FRAGMENT + 7])
def test_there_and_back(manager: Manager, size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    sender, receiver = Sender(manager), Receiver(manager)
    sender.send(1, 9, body)
    assert sender.client.stored()[-1][:3] == (1, 1, STORED_NEW)
    (message,) = receiver.client.delivered(receiver.consumer)
    assert message.flags & ENTRY_LARGE
    assert LARGE.unpack(bytes(message.body))[1:] == (size, hashlib.sha256(body).digest())
    assert receiver.read(message.order) == body
    assert len(files(manager)) == 1
    receiver.ack(message.order)
    assert files(manager) == []


@pytest.mark.requirement("CLU-98")
def test_nothing_is_visible_before_it_is_complete_and_a_resume_goes_on(manager: Manager) -> None:
    body = bytes(1000) * 50
    sender, receiver = Sender(manager), Receiver(manager)
    assert sender.begin(1, length=len(body))["offset"] == 0
    sender.upload(1, body, end=20 * FRAGMENT)
    sender.client.gone()
    assert not receiver.client.delivered(receiver.consumer)
    sender = sender.again()
    assert sender.begin(1, resume=True, length=len(body))["offset"] == 20 * FRAGMENT
    sender.upload(1, body, start=20 * FRAGMENT)
    sender.store(1, 1, body)
    manager.turn()
    (message,) = receiver.client.delivered(receiver.consumer)
    assert receiver.read(message.order) == body


@pytest.mark.requirement("CLU-98")
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_restart_in_the_middle_goes_on_where_the_file_ends(manager: Manager, checkpoint: bool) -> None:
    body = b"0123456789" * 3000
    sender = Sender(manager)
    sender.begin(1)
    sender.upload(1, body, end=10 * FRAGMENT)
    if checkpoint:
        manager.checkpoint()
    manager.crash()
    sender = sender.again()
    offset = sender.begin(1, resume=True)["offset"]
    assert offset == 10 * FRAGMENT
    sender.upload(1, body, start=offset)
    manager.crash()  # complete, not yet stored
    sender = sender.again()
    assert sender.begin(1, resume=True) == {"offset": len(body), "window": 8 * FRAGMENT, "complete": True}
    sender.store(1, 1, body)
    manager.turn()
    manager.crash()
    receiver = Receiver(manager)
    (message,) = receiver.client.delivered(receiver.consumer)
    assert receiver.read(message.order) == body
    receiver.ack(message.order)
    assert files(manager) == []


@pytest.mark.requirement("CLU-98")
def test_what_nobody_finishes_is_discarded_after_the_resume_time(manager: Manager) -> None:
    sender = Sender(manager)
    sender.begin(1)
    sender.upload(1, bytes(50_000), end=5 * FRAGMENT)
    sender.client.gone()
    manager.later(9_000)
    assert len(files(manager)) == 1
    manager.later(2_000)
    assert files(manager) == []


def test_files_no_record_names_are_collected_at_the_start(manager: Manager) -> None:
    sender = Sender(manager)
    sender.send(1, 1, b"kept" * 1000)
    (kept,) = files(manager)
    (manager.folder / "large" / f"{kept + 5:016x}").write_bytes(b"orphan")
    manager.crash()
    assert files(manager) == [kept]
    sender = sender.again()
    sender.send(2, 2, b"new" * 1000)
    assert files(manager)[1] > kept + 5


def test_a_wrong_digest_is_refused_and_the_next_send_goes_on(manager: Manager) -> None:
    sender = Sender(manager)
    sender.begin(1)
    sender.upload(1, b"right" * 1000)
    sender.store(1, 1, b"wrong" * 1000)
    sender.store(2, 77, b"never sent")
    sender.client.store(sender.producer, 3, b"small", ids=sender.facts["ids"][0] + 3)
    manager.turn()
    assert [(first, status) for first, _, status, _ in sender.client.stored()] == [
        (1, STORED_REFUSED),
        (2, STORED_REFUSED),
        (3, STORED_NEW),
    ]
    assert {notice["code"] for notice in sender.client.notices("refused")} == {"transfer-failed"}


@pytest.mark.requirement("CLU-99")
def test_nothing_of_the_same_session_overtakes_it(manager: Manager) -> None:
    body = b"x" * 5000
    sender, other, receiver = Sender(manager), Sender(manager), Receiver(manager)
    sender.begin(1)
    at = 0
    while at < len(body):
        sender.client.piece(sender.producer, 1, at, body[at : at + FRAGMENT], last=at + FRAGMENT >= len(body))
        at += FRAGMENT
    sender.store(1, 1, body)
    sender.client.store(sender.producer, 2, b"behind", ids=sender.facts["ids"][0])
    other.client.store(other.producer, 1, b"of another", ids=other.facts["ids"][0])
    manager.turn(jobs=False)  # the disk is slow
    assert receiver.client.bodies(receiver.consumer) == [b"of another"]
    manager.turn()
    received = receiver.client.delivered(receiver.consumer)
    assert bool(received[1].flags & ENTRY_LARGE)
    assert bytes(received[2].body) == b"behind"


@pytest.mark.requirement("CLU-99")
def test_a_client_that_sends_more_than_is_granted_is_refused(manager: Manager) -> None:
    sender = Sender(manager)
    sender.begin(1)
    for number in range(9):
        sender.client.piece(sender.producer, 1, number * FRAGMENT, bytes(FRAGMENT))
    manager.turn()
    (notice,) = sender.client.notices("refused")
    assert notice["code"] == "transfer-failed"
    assert files(manager) == []
    with pytest.raises(Refused):
        sender.client.do("transfer", session=sender.session, producer=99, transfer=1)


def test_a_length_that_was_said_is_kept_to(manager: Manager) -> None:
    sender = Sender(manager)
    sender.begin(1, length=10)
    sender.client.piece(sender.producer, 1, 0, b"short", last=True)
    manager.turn()
    assert "10 bytes" in sender.client.notices("refused")[0]["text"]


def test_a_disk_that_fails_is_told(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = Sender(manager)
    sender.begin(1)

    def full(self: SideWriter, pieces: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SideWriter, "write", full)
    sender.client.piece(sender.producer, 1, 0, b"x", last=True)
    sender.client.store(sender.producer, 1, b"behind", ids=sender.facts["ids"][0])
    manager.turn()
    assert "No space" in sender.client.notices("refused")[0]["text"]
    assert sender.client.stored()[-1][:3] == (1, 1, STORED_NEW)  # what waited behind it goes on


@pytest.mark.requirement("CLU-100")
def test_a_reader_may_stop_and_may_acknowledge_first(manager: Manager) -> None:
    body = b"0123456789" * 5000
    sender, receiver = Sender(manager), Receiver(manager)
    sender.send(1, 1, body)
    sender.send(2, 2, body)
    one, two = receiver.client.delivered(receiver.consumer)
    receiver.client.pull(receiver.consumer, one.order, 4 * FRAGMENT)
    manager.turn()
    receiver.client.pull(receiver.consumer, one.order, 0, stop=True)
    receiver.client.pull(receiver.consumer, two.order, 4 * FRAGMENT)
    manager.turn()
    receiver.ack(one.order)
    receiver.ack(two.order)
    assert len(files(manager)) == 1  # the second is still being read
    assert receiver.read(two.order) == body
    assert files(manager) == []
    assert (
        sum(len(frame.body) for frame in receiver.client.of_kind(KIND_DATA) if frame.correlation == one.order) == 4096
    )
    receiver.client.pull(receiver.consumer, one.order, 4 * FRAGMENT)
    manager.turn()
    assert receiver.client.notices("refused")[-1]["code"] == "transfer-failed"


@pytest.mark.requirement("CLU-94")
def test_many_readers_take_turns(manager: Manager) -> None:
    sender, receivers = Sender(manager), [Receiver(manager, messages=1) for _ in range(3)]
    for number in range(3):
        sender.send(number + 1, number + 1, bytes([number]) * 20_000)
    jobs: list[int] = []
    for receiver in receivers:
        (message,) = receiver.client.delivered(receiver.consumer)
        receiver.client.pull(receiver.consumer, message.order, 1 << 30)
    manager.turn(jobs=False)
    for _ in range(20):
        jobs.append(len(manager.jobs))
        waiting, manager.jobs[:] = list(manager.jobs), []
        for job, then in waiting:
            then(job())
        manager.turn(jobs=False)
    assert set(jobs) == {3}  # each has one piece under way, never more
    manager.turn()
    assert all(len(receiver.client.of_kind(KIND_DATA)) == 20 for receiver in receivers)


def test_in_a_transaction_it_is_there_after_the_commit(manager: Manager) -> None:
    body = b"z" * 3000
    client = manager.client()
    facts = client.do("session", ack="transacted")
    sender = Sender.__new__(Sender)
    sender.manager, sender.client, sender.facts, sender.session = manager, client, facts, facts["session"]
    sender.producer = client.do("produce", session=sender.session, destination="q", create=True)["producer"]
    receiver = Receiver(manager)
    sender.begin(1)
    sender.client.piece(sender.producer, 1, 0, body[:1024])
    sender.client.piece(sender.producer, 1, 1024, body[1024:2048])
    sender.client.piece(sender.producer, 1, 2048, body[2048:], last=True)
    sender.store(1, 1, body, transaction=1)
    number = client.ask("commit", session=sender.session, transaction=1, sends={str(sender.producer): 1})
    manager.turn()
    assert client.answer(number) == {}
    (message,) = receiver.client.delivered(receiver.consumer)
    assert receiver.read(message.order) == body


def test_a_side_file_is_hashed_while_it_grows_and_when_it_is_taken_up_again(tmp_path: Path) -> None:
    store = SideFiles(tmp_path / "large")
    writer = store.writer(3)
    writer.write([b"abc", b"def"])
    writer.close()
    writer = store.writer(3)
    assert writer.length == 6
    writer.write([b"ghi"])
    assert writer.finish() == (9, hashlib.sha256(b"abcdefghi").digest())
    assert store.read(3, 2, 4) == b"cdef"
    assert store.listed() == {3: 9}
    (tmp_path / "large" / "not a number").touch()
    assert store.listed() == {3: 9}
    store.delete(3)
    store.delete(3)
    assert store.listed() == {}


def test_what_the_client_gives_up_is_discarded_at_once(manager: Manager) -> None:
    sender = Sender(manager)
    body = bytes(5 * FRAGMENT)
    sender.begin(1)
    sender.upload(1, body, end=3 * FRAGMENT)
    manager.turn()
    assert len(files(manager)) == 1
    assert sender.client.do("transfer", session=sender.session, transfer=1, drop=True) == {}
    manager.turn()
    assert files(manager) == []
    assert sender.client.do("transfer", session=sender.session, transfer=1, drop=True) == {}  # nothing to give up
    assert sender.begin(2)["offset"] == 0
