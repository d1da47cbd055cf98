"""A vote's name, and what it must not forget (CLU-145)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.cluster.configuration.edge.files import NOTES
from fairlead.cluster.edge.vote import Vote, VoteBook
from fairlead.cluster.replication.messages import PromiseAsk, Promised, decode, encode
from fairlead.cluster.replication.record import ControlRecord
from fairlead.cluster.replication.settings import Settings

FOUNDING = ControlRecord(0, 0, "", frozenset(), frozenset({"n1.0", "n2.0", "n3.0"}), 2)


def found(data: Path) -> None:
    data.mkdir(exist_ok=True)
    (data / NOTES).write_bytes(b"{}")


@pytest.mark.requirement("CLU-145")
def test_a_founded_node_votes_under_the_founding_name_until_it_loses_its_file(tmp_path: Path) -> None:
    found(tmp_path)
    first, _ = VoteBook(tmp_path, "n1").open("a", FOUNDING)
    again, _ = VoteBook(tmp_path, "n1").open("a", FOUNDING)
    assert first.identity == again.identity == "n1.0"
    (tmp_path / "votes" / "a.json").unlink()
    lost, _ = VoteBook(tmp_path, "n1").open("a", FOUNDING)
    assert lost.identity.startswith("n1.")
    assert lost.identity != "n1.0"
    other, _ = VoteBook(tmp_path, "n1").open("b", FOUNDING)
    assert other.identity == "n1.0"


@pytest.mark.requirement("CLU-145")
def test_a_node_whose_disk_was_emptied_is_another_voter_for_ever(tmp_path: Path) -> None:
    book = VoteBook(tmp_path, "n1")
    assert book.open("a", FOUNDING)[0].identity != "n1.0"
    found(tmp_path)  # what configuration writes later changes nothing about that
    assert VoteBook(tmp_path, "n1").open("b", FOUNDING)[0].identity != "n1.0"


class Line:
    """A bus that shows the vote's file as it is when something is sent."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.sent: list[tuple[str, Any, dict[str, Any]]] = []
        self.handler: Any = None

    def listen(self, port: str, handler: Any) -> None:
        assert port == "voter:a"
        self.handler = handler

    def send(self, to: str, port: str, data: bytes) -> bool:
        self.sent.append((to, decode(data), msgspec.json.decode(self.file.read_bytes())))
        return True


@pytest.mark.requirement("CLU-144")
def test_what_is_promised_is_on_disk_before_it_is_said(tmp_path: Path) -> None:
    found(tmp_path)
    bus = Line(tmp_path / "votes" / "a.json")
    Vote(bus, "a", VoteBook(tmp_path, "n1"), Settings(), FOUNDING, lambda: 100.0)  # type: ignore[arg-type]
    bus.handler("n2", memoryview(b"\x00nonsense"))
    bus.handler("n2", memoryview(encode(PromiseAsk(3, "n2.77"))))
    ((to, said, on_disk),) = bus.sent
    assert (to, said) == ("n2", Promised("n1.0", 3, FOUNDING))
    assert (on_disk["notes"]["promised"], on_disk["notes"]["promised_to"]) == (3, "n2.77")
    again = VoteBook(tmp_path, "n1").open("a", FOUNDING)[0]
    assert again.notes.promised == 3
