"""The commands for named cursors, asked of a whole message manager; every answer outlives a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster import reserving
from fairlead.cluster.parameters import Parameters
from fairlead.wire.durable import KIND_NOTICE

from .core_rig import Rig

A, B = 1001, 1002


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    rig = Rig(tmp_path)
    rig.session(A)
    return rig


def fill(rig: Rig, name: str, count: int, kind: str = "queue", **facts: Any) -> None:
    producer = rig.producer(A, name, kind)
    home = rig.core.find(name)
    assert home is not None
    rig.store(A, producer, home.next, *(b"%d" % number for number in range(count)), **facts)
    rig.settle()
    rig.take(A)


def open_(rig: Rig, name: str = "q", cursor: str = "c", **facts: Any) -> dict[str, Any]:
    return rig.ask(A, "cursor-open", destination=name, name=cursor, **{"create": True, **facts})


def reserve(rig: Rig, start: int, messages: int = 0, name: str = "q", **facts: Any) -> Any:
    facts = {"destination": name, "name": "c", "start": start, "messages": messages, **facts}
    answer = rig.ask(A, "cursor-reserve", **facts)
    return answer.get("end", answer)


def commit(rig: Rig, end: int, name: str = "q") -> Any:
    answer = rig.ask(A, "cursor-commit", destination=name, name="c", end=end)
    return answer.get("at", answer)


def back(rig: Rig, *, checkpoint: bool = False) -> None:
    """Killed, and back; what was answered is there."""
    if checkpoint:
        rig.checkpoint().step()
    rig.restart()
    rig.session(A)


def spans(rig: Rig, first: int, beyond: int) -> list[tuple[int, int]]:
    home = rig.core.find("q")
    assert home is not None
    return reserving.find(home, "c").spans(first, beyond)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_queue_from_open_to_release_with_a_crash_behind_every_answer(rig: Rig, checkpoint: bool) -> None:
    fill(rig, "q", 10)
    back(rig, checkpoint=checkpoint)
    assert open_(rig) == {"kind": "queue", "at": 0, "reserved": 0}
    back(rig, checkpoint=checkpoint)
    assert open_(rig, create=False) == {"kind": "queue", "at": 0, "reserved": 0}
    assert reserve(rig, 0, 4) == 4
    back(rig, checkpoint=checkpoint)
    assert spans(rig, 0, 4) == [(1, 5)]
    assert reserve(rig, 0, 6) == 6
    assert commit(rig, 3) == 3
    back(rig, checkpoint=checkpoint)
    assert open_(rig) == {"kind": "queue", "at": 3, "reserved": 6}
    assert spans(rig, 0, 9) == [(4, 7)]
    assert commit(rig, 3) == 3
    assert commit(rig, 1) == 3
    assert rig.ask(A, "cursor-release", destination="q", name="c") == {"released": 3}
    back(rig, checkpoint=checkpoint)
    assert open_(rig, create=False)["error"] == "bad-name"
    assert open_(rig) == {"kind": "queue", "at": 6, "reserved": 6}
    rig.consumer(A, "q")
    rig.settle()
    assert [order for order, _, _ in rig.delivered(A)] == [4, 5, 6, 7, 8, 9, 10]


def test_what_is_refused(rig: Rig) -> None:
    fill(rig, "q", 5)
    assert rig.ask(A, "cursor-open", destination="none", name="c", create=True)["error"] == "no-destination"
    assert rig.ask(A, "cursor-open", destination="q", name="c")["error"] == "bad-name"
    assert rig.ask(A, "cursor-open", destination="q", name="a b", create=True)["error"] == "bad-name"
    assert rig.ask(A, "cursor-open", destination="q", name="_c", create=True)["error"] == "not-allowed"
    assert reserve(rig, 0)["error"] == "bad-name"
    assert commit(rig, 0)["error"] == "bad-name"
    assert rig.ask(A, "cursor-release", destination="q", name="c")["error"] == "bad-name"
    open_(rig)
    assert reserve(rig, 1)["error"] == "bad-parameter"
    assert reserve(rig, 0, 3) == 3
    assert commit(rig, 4)["error"] == "bad-parameter"
    assert commit(rig, 2) == 2
    refused = reserve(rig, 1)
    assert refused["error"] == "offset-gone"
    assert "[1, 2]" in refused["text"]
    for field in ({"start": -1}, {"start": "x"}, {"start": 0, "messages": 1 << 70}, {}):
        facts: dict[str, Any] = {"destination": "q", "name": "c", **field}
        assert rig.ask(A, "cursor-reserve", **facts)["error"] == "bad-request"
    assert rig.ask(A, "cursor-commit", destination="q", name="c", end=None)["error"] == "bad-request"
    assert rig.core.faults == 0


def test_hostile_names_and_numbers_change_nothing(rig: Rig) -> None:
    fill(rig, "q", 1)
    names: tuple[Any, ...] = ("", "x" * 256, "x" * 60_000, "\x00", "ä", {}, [], 7, None)
    for name in names:
        for do in ("cursor-open", "cursor-reserve", "cursor-commit", "cursor-release"):
            answer = rig.ask(A, do, destination="q", name=name, create=True, start=0, end=0)
            assert answer["error"] in ("bad-name", "bad-request")
    assert rig.core.faults == 0
    home = rig.core.find("q")
    assert home is not None
    assert home.facts()["ready"] == 1


def test_the_answer_waits_for_the_disk(rig: Rig) -> None:
    fill(rig, "q", 3)
    open_(rig)
    number = rig.command(A, "cursor-reserve", destination="q", name="c", start=0, messages=2)
    for _ in range(3):
        rig.turn()
    assert rig.take(A) == []
    home = rig.core.find("q")
    assert home is not None
    assert home.facts()["locked"] == 2
    again = rig.command(A, "cursor-reserve", destination="q", name="c", start=0, messages=2)
    rig.turn()
    assert rig.take(A) == [], "what is reserved already, and not safe, is not told either"
    assert rig.answer(A, number) == rig.answer(A, again) == {"end": 2}


def test_a_topic_from_open_to_release_with_a_crash_behind_every_answer(rig: Rig) -> None:
    fill(rig, "t", 5, "topic")
    assert open_(rig, "t", start="first") == {"kind": "topic", "at": 6, "reserved": 6}, "nobody kept what came before"
    fill(rig, "t", 10, "topic")
    back(rig)
    assert open_(rig, "t", create=False) == {"kind": "topic", "at": 6, "reserved": 16}
    assert reserve(rig, 6, 4, "t") == 10
    assert reserve(rig, 6, 0, "t") == 16
    assert reserve(rig, 6, 0, "t", bytes=1) == 7
    assert reserve(rig, 17, 1, "t")["error"] == "bad-parameter"
    assert commit(rig, 17, "t")["error"] == "bad-parameter"
    assert commit(rig, 9, "t") == 9
    back(rig, checkpoint=True)
    assert open_(rig, "t") == {"kind": "topic", "at": 9, "reserved": 16}
    assert commit(rig, 4, "t") == 9
    assert reserve(rig, 8, 1, "t")["error"] == "offset-gone"
    home = rig.core.find("t")
    assert home is not None
    assert home.first == 9, "what is committed is let go, the rest is kept"
    assert rig.ask(A, "cursor-release", destination="t", name="c") == {"released": 7}
    back(rig)
    assert open_(rig, "t", create=False)["error"] == "bad-name"
    home = rig.core.find("t")
    assert home is not None
    assert home.first == 16


def test_where_a_cursor_of_a_topic_begins(rig: Rig) -> None:
    rig.core.create("t", "topic", Parameters(retain_messages=-1))
    rig.settle()
    fill(rig, "t", 5, "topic")
    assert open_(rig, "t", "first", start="first")["at"] == 1
    assert open_(rig, "t", "third", start=3)["at"] == 3
    assert open_(rig, "t", "new", start="new")["at"] == 6
    assert open_(rig, "t", "time", start={"ms": 0})["at"] == 1
    assert open_(rig, "t", "bad", start={"x": 0})["error"] == "bad-parameter"
    assert open_(rig, "t", "third", start="first")["at"] == 3, "one that is there stays where it is"


def test_one_name_in_several_topics(rig: Rig) -> None:
    for name in ("t", "u"):
        fill(rig, name, 1, "topic")
        assert open_(rig, name)["at"] == 2
        fill(rig, name, 3, "topic")
    assert commit(rig, 4, "t") == 4
    back(rig)
    assert (open_(rig, "t")["at"], open_(rig, "u")["at"]) == (4, 2)
    assert rig.ask(A, "cursor-release", destination="t", name="c") == {"released": 1}
    assert open_(rig, "u", create=False)["at"] == 2


@pytest.mark.requirement("CLU-17")
def test_nobody_consumes_from_a_cursor_and_no_subscription_becomes_one(rig: Rig) -> None:
    rig.ask(B, "session", ack="individual", user="pipeline")
    fill(rig, "t", 1, "topic")
    consume = {"session": 1, "destination": "t", "durable": "c", "messages": 10, "bytes": 1000}
    assert open_(rig, "t")["at"] == 2
    for _ in range(2):
        assert rig.ask(B, "consume", **consume, user="pipeline")["error"] == "duplicate-subscription"
        assert rig.ask(B, "unsubscribe", name="c", user="pipeline")["error"] == "duplicate-subscription"
        back(rig)
        rig.ask(B, "session", ack="individual", user="pipeline")
    assert "consumer" in rig.ask(A, "consume", **consume), "another client may have a subscription of that name"
    assert rig.ask(A, "cursor-release", destination="t", name="c") == {"released": 0}
    assert "consumer" in rig.ask(B, "consume", **consume, user="pipeline")
    assert open_(rig, "t")["error"] == "duplicate-subscription"


@pytest.mark.requirement("CLU-23")
def test_messages_do_not_expire_for_a_cursor_of_a_topic(rig: Rig) -> None:
    fill(rig, "t", 1, "topic")
    open_(rig, "t")
    rig.consumer(A, "t", "topic", durable="other", messages=0)
    fill(rig, "t", 3, "topic", ttl_ms=100)
    rig.now_ms += 1000
    rig.settle()
    home = rig.core.find("t")
    assert home is not None
    assert [one.depth for one in home.subscriptions()] == [3, 0]
    assert open_(rig, "t") == {"kind": "topic", "at": 2, "reserved": 5}


def test_a_temporary_queue_is_its_connections_own(rig: Rig) -> None:
    name = rig.ask(A, "temporary", session=1, kind="queue")["name"]
    rig.session(B)
    refused = rig.ask(B, "cursor-open", destination=name, name="c", create=True)
    assert refused["error"] == "not-allowed"
    assert open_(rig, name)["at"] == 0


def test_a_deleted_queue_answers_who_waits(rig: Rig) -> None:
    fill(rig, "q", 3, key=b"k")
    open_(rig)
    rig.journal.cold = True
    number = rig.command(A, "cursor-reserve", destination="q", name="c", start=0)
    rig.turn()
    home = rig.core.find("q")
    assert home is not None
    assert home.ledger is not None
    assert home.ledger.asked
    rig.core.delete(home, "gone")
    assert rig.answer(A, number)["error"] == "destination-deleted"


def test_who_has_left_reserves_nothing_more(rig: Rig) -> None:
    fill(rig, "q", 3, key=b"k")
    open_(rig)
    rig.journal.cold = True
    rig.command(A, "cursor-reserve", destination="q", name="c", start=0)
    rig.turn()
    (line,) = (line for link in rig.core.links.values() for line in link.lines.values() if line.uid == A)
    rig.core.line_gone(rig.link, line)
    rig.settle()
    home = rig.core.find("q")
    assert home is not None
    assert home.ledger is not None
    assert not home.ledger.asked
    assert home.facts()["locked"] == 0


def test_administration(rig: Rig) -> None:
    def ask(name: str, /, **args: Any) -> Any:
        told: list[dict[str, Any]] = []
        rig.core.admin.execute(name, args, told.append)
        rig.settle()
        (answer,) = told
        return answer.get("ok", answer)

    fill(rig, "q", 10)
    fill(rig, "t", 1, "topic")
    open_(rig)
    open_(rig, "t")
    fill(rig, "t", 2, "topic")
    rig.now_ms += 500
    rig.settle()
    assert reserve(rig, 0, 6) == 6
    assert commit(rig, 2) == 2
    queue, topic = ask("cursors")["cursors"]
    assert queue == {
        "destination": "q", "name": "c", "kind": "queue", "at": 2, "reserved": 6, "rows": 4, "bytes": queue["bytes"],
        "opened_ms": 1_000_000, "used_ms": 1_000_500,
    }  # fmt: skip
    assert 4 * 17 <= queue["bytes"] < 4 * 100
    assert (topic["destination"], topic["kind"], topic["at"], topic["rows"]) == ("t", "topic", 2, 2)
    assert ask("cursors", destination="t")["cursors"] == [topic]
    assert ask("cursors", destination="none")["error"]["code"] == "no-destination"
    assert ask("release-cursor", destination="q", name="x")["error"]["code"] == "bad-name"
    assert ask("release-cursor", destination="q", name="c") == {"released": 4}
    assert ask("release-cursor", destination="t", name="c") == {"released": 2}
    assert ask("cursors")["cursors"] == []
    back(rig)
    assert ask("cursors")["cursors"] == []
    assert rig.core.faults == 0
    assert not [got for got in rig.take(A) if got.kind == KIND_NOTICE]
