"""Stages and sinks: exactly once per query and batch, whatever is lost, and nothing of a batch before all of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from fairlead.cluster import publication, publish_parts, records, staged
from fairlead.cluster.parameters import Parameters
from fairlead.cluster.publication import Appearance
from fairlead.cluster.recovery import Checkpoint, Recovery
from fairlead.cluster.stages import Stages
from fairlead.cluster.staging import Staging
from fairlead.journal.faults import StoreFull
from fairlead.wire import durable
from fairlead.wire.entry_codec import encode
from tests.cluster.manager_rig import Client, Manager, MemoryJournal, MemorySheet, Refused
from tests.cluster.stage_world import World


@pytest.fixture
def manager(tmp_path: Path) -> Manager:
    return Manager(tmp_path)


class Writer:
    """A task of a job: fills one stage of a batch."""

    def __init__(self, manager: Manager, name: str = "p0", query: str = "job", batch: int = 0, user: str = "ann"):
        self.manager, self.name, self.query, self.batch = manager, name, query, batch
        self.client = manager.client(user)
        self.counts: dict[str, int] = {}
        self.handles: dict[str, int] = {}

    def open(self, destination: str, kind: str = "queue") -> dict[str, Any]:
        facts = {"stage": self.name, "query": self.query, "batch": self.batch}
        answer = self.client.do("stage", destination=destination, kind=kind, create=True, **facts)
        self.handles[destination] = answer["stage"]
        self.counts[destination] = answer["accepted"]
        return answer

    def put(self, destination: str, *bodies: bytes, kind: str = "queue", first: int = 0, **how: Any) -> None:
        entries = b"".join(encode(body, **how) for body in bodies)
        self.put_raw(destination, entries, len(bodies), kind=kind, first=first)

    def put_raw(self, destination: str, entries: bytes, count: int, *, kind: str = "queue", first: int = 0) -> None:
        if destination not in self.handles:
            self.open(destination, kind)
        first = first or self.counts[destination] + 1
        self.client.store_raw(self.handles[destination], first, entries, count, ids=0)
        self.counts[destination] = max(self.counts[destination], first + count - 1)
        self.manager.turn()

    @property
    def named(self) -> list[Any]:
        return [self.name, self.counts]


def publish(client: Client, *writers: Writer, query: str = "job", batch: int = 0) -> dict[str, Any]:
    number = client.ask("publish", query=query, batch=batch, stages=[writer.named for writer in writers])
    settle(client.manager)
    answer = client.answer(number)
    assert answer is not None
    return answer


def settle(manager: Manager) -> None:
    """Until nothing of a publishing is left to do."""
    for _ in range(10_000):
        manager.turn()
        publisher = manager.core.stages.publisher
        if not publisher.is_busy and not list(publisher.rows()):
            return
        manager.now_ms += 1
    raise AssertionError("a publishing is never done")


def shown(manager: Manager, name: str) -> list[bytes]:
    destination = manager.core.find(name)
    assert destination is not None
    return [seen.body for seen in destination.browse(0, 1000).messages]


def heard(manager: Manager, topic: str) -> list[bytes]:
    """By transient subscribers."""
    return [frame.body for frame in manager.published if frame.topic == topic]


# --- Filling ------------------------------------------------------------------------------------------------------
def test_what_is_staged_is_nobodys_before_it_is_published(manager: Manager) -> None:
    one, two = Writer(manager), Writer(manager, "p1")
    one.put("q", b"a", b"b")
    two.put("q", b"c")
    two.put("t", b"d", kind="topic")
    assert shown(manager, "q") == [] == shown(manager, "t")
    assert one.client.stored() == [(1, 2, durable.STORED_NEW, 0)]
    driver = manager.client("ann")
    assert publish(driver, two, one) == {"published": "now", "messages": 4}
    assert shown(manager, "q") == [b"c", b"a", b"b"]  # stages in the order named, rows as they were staged
    assert heard(manager, "t") == [b"d"]
    assert not manager.core.stages.open


def test_a_row_is_stored_once_and_a_gap_is_refused(manager: Manager) -> None:
    writer = Writer(manager)
    writer.put("q", b"a", b"b")
    writer.put("q", b"b", b"c", first=2)
    assert writer.client.stored()[1:] == [(2, 1, durable.STORED_AGAIN, 0), (3, 1, durable.STORED_NEW, 0)]
    writer.put("q", b"a", b"b", b"c", first=1)
    assert writer.client.stored()[-1] == (1, 3, durable.STORED_AGAIN, 0)
    handle = writer.handles["q"]
    writer.client.store(handle, 5, b"e", ids=0)
    manager.turn()
    refused = writer.client.notices("refused")
    assert [(one["producer"], one["first"], one["code"]) for one in refused] == [(handle, 5, "out-of-order")]
    writer.client.gone()
    assert Writer(manager).open("q")["accepted"] == 3
    assert publish(manager.client("ann"), writer)["messages"] == 3
    assert shown(manager, "q") == [b"a", b"b", b"c"]


def test_rows_are_confirmed_when_they_are_safe(manager: Manager) -> None:
    writer = Writer(manager)
    writer.open("q")
    manager.is_holding = True
    writer.put("q", b"a")
    writer.put("q", b"a", first=1)
    assert writer.client.stored() == []
    manager.is_holding = False
    manager.turn()
    assert [item[2] for item in writer.client.stored()] == [durable.STORED_NEW, durable.STORED_AGAIN]


def test_a_stage_outlives_a_restart_and_its_ids_stay(manager: Manager) -> None:
    writer = Writer(manager)
    writer.put("q", b"a", b"b")
    manager.crash()
    again = Writer(manager)
    assert again.open("q")["accepted"] == 2
    again.put("q", b"c")
    before = [record.body for record in manager.journal.records if record.kind == records.HIDDEN]
    assert publish(manager.client("ann"), again)["messages"] == 3
    home = manager.core.find("q")
    assert home is not None
    ids = [seen.id for seen in home.browse(0, 10).messages]
    assert len(set(ids)) == 3
    manager.crash()
    home = manager.core.find("q")
    assert home is not None
    assert [seen.id for seen in home.browse(0, 10).messages] == ids
    assert len(before) == 2


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        (b"rubbish that is no entry", "bad-request"),
        (encode(b"x", headers=b"\x05:from\x03\x00sme"), "bad-request"),
        (encode(b"x", headers=b"\x05:cron\x04\x00sbad", flags=durable.ENTRY_CRON), "bad-parameter"),
        (durable.ENTRY.pack(64, durable.ENTRY_LARGE, 4, 0, 0, 0) + bytes(48), "frame-too-large"),
    ],
    ids=["rubbish", "forged", "no schedule", "very large"],
)
def test_a_frame_is_taken_whole_or_not_at_all(manager: Manager, entries: bytes, code: str) -> None:
    writer = Writer(manager)
    writer.put("q", b"a")
    good = encode(b"y")
    writer.client.store_raw(writer.handles["q"], 2, good + entries, 2, ids=0)
    manager.turn()
    assert [one["code"] for one in writer.client.notices("refused")] == [code]
    writer.put("q", b"b")
    assert publish(manager.client("ann"), writer)["messages"] == 2
    assert shown(manager, "q") == [b"a", b"b"]
    assert manager.core.faults == 0


def test_no_room_on_the_disk_is_told_and_nothing_waits(tmp_path: Path) -> None:
    manager = Manager(tmp_path)
    writer = Writer(manager)
    writer.put("q", b"a")
    append = manager.journal.append

    def full(kind: int, head: Any, payload: Any = b"") -> tuple[int, int]:
        if kind == records.HIDDEN:
            raise StoreFull("no room")
        return append(kind, head, payload)

    manager.journal.append = full  # type: ignore[method-assign]
    writer.client.store(writer.handles["q"], 2, b"b", ids=0)
    manager.turn()
    assert [one["code"] for one in writer.client.notices("refused")] == ["store-full"]
    manager.journal.append = append  # type: ignore[method-assign]
    writer.put("q", b"b", first=2)
    assert publish(manager.client("ann"), writer) == {"published": "now", "messages": 2}


def test_who_fills_a_stage_waits_while_the_destination_is_full(manager: Manager) -> None:
    manager.core.create("q", "queue", Parameters(max_messages=2))
    manager.turn()
    writer = Writer(manager)
    assert not writer.open("q")["blocked"]
    other = manager.client("ann")
    session = other.do("session")
    producer = other.do("produce", session=session["session"], destination="q")["producer"]
    other.store(producer, 1, b"1", b"2", ids=session["ids"][0])
    manager.turn()
    writer.put("q", b"a")
    writer.put("q", b"b")
    writer.put("q", b"a", first=1)
    manager.later(1000)
    assert writer.client.stored() == []  # it waits, once its window is full
    home = manager.core.find("q")
    assert home is not None
    home.purge()
    manager.turn()
    manager.later(1000)
    new, again = durable.STORED_NEW, durable.STORED_AGAIN
    assert writer.client.stored() == [(1, 1, new, 0), (2, 1, new, 0), (1, 1, again, 0)]
    other.store(producer, 3, b"3", b"4", ids=session["ids"][0] + 2)
    manager.turn()
    assert Writer(manager, "p1").open("q")["blocked"]


def test_a_connection_that_stays_keeps_no_stages_that_are_over(manager: Manager) -> None:
    writer = Writer(manager)
    for batch in range(5):
        writer.batch = batch
        writer.handles.clear()
        writer.put("q", b"%d" % batch)
        publish(writer.client, writer, batch=batch)
    line = manager.link.lines[writer.client.uid]
    assert len(line.handles) == 1
    assert shown(manager, "q") == [b"0", b"1", b"2", b"3", b"4"]


# --- Publishing ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_batch_is_published_once_also_after_a_restart(manager: Manager, checkpoint: bool) -> None:
    writer = Writer(manager)
    writer.put("q", b"a")
    assert publish(manager.client("ann"), writer)["published"] == "now"
    assert publish(manager.client("ann"), writer) == {"published": "before", "messages": 1}
    if checkpoint:
        manager.checkpoint()
    manager.crash()
    late = Writer(manager)  # the same batch again, as a job does that did not hear of it
    assert late.open("q")["published"]
    late.put("q", b"a")
    assert publish(manager.client("ann"), late) == {"published": "before", "messages": 1}
    assert shown(manager, "q") == [b"a"]
    assert not manager.core.stages.open  # what was staged for nothing is dropped
    assert publish(manager.client("ann"), batch=7) == {"published": "now", "messages": 0}
    assert publish(manager.client("ann"), batch=6) == {"published": "before", "messages": 0}


def in_parts(client: Client, *parts: list[Any], batch: int = 0) -> dict[str, Any]:
    for number, part in enumerate(parts[:-1]):
        facts = {"query": "job", "batch": batch, "stages": part, "part": number, "more": True}
        assert client.do("publish", **facts) == {"parts": number + 1}
    number = client.ask("publish", query="job", batch=batch, stages=parts[-1], part=len(parts) - 1)
    settle(client.manager)
    answer = client.answer(number)
    assert answer is not None
    return answer


def test_ten_thousand_stages_are_published_in_parts_as_one_batch(manager: Manager) -> None:
    named = []
    for number in range(10_000):
        if number % 50 == 0:
            client = manager.client("ann")  # tasks have connections of their own
        name = f"{number}/0-0123456789abcdef"
        facts = client.do("stage", destination="q", kind="queue", create=True, stage=name, query="job", batch=0)
        client.store_raw(facts["stage"], 1, encode(b"%d" % number), 1, ids=0)
        client.received.clear()
        named.append([name, {"q": 1}])
    parts = [named[first : first + 900] for first in range(0, len(named), 900)]
    assert in_parts(client, *parts) == {"published": "now", "messages": 10_000}
    home = manager.core.find("q")
    assert home is not None
    bodies: list[bytes] = []
    at: int | None = 0
    while at is not None:
        page = home.browse(at, 1000)
        bodies += [seen.body for seen in page.messages]
        at = page.next
    assert bodies == [b"%d" % number for number in range(10_000)]
    assert in_parts(client, *parts)["published"] == "before"
    assert not manager.core.stages.open
    assert not manager.core.stages.publisher.parts.bytes


def test_parts_have_to_follow_each_other_on_one_connection(manager: Manager) -> None:
    one, two = Writer(manager, "p0"), Writer(manager, "p1")
    for writer in (one, two):
        writer.put("q", writer.name.encode())
    first = {"query": "job", "batch": 0, "stages": [one.named], "part": 0, "more": True}
    last = {"query": "job", "batch": 0, "stages": [two.named], "part": 1}
    driver = manager.client("ann")
    driver.do("publish", **first)
    for wrong in (
        {**last, "part": 2},
        {**last, "batch": 1},
        {**last, "query": "other"},
        {**last, "stages": 7},
        {**last, "part": -1},
    ):
        with pytest.raises(Refused, match=r"out-of-order|bad-request"):
            driver.do("publish", **wrong)
    with pytest.raises(Refused, match="out-of-order"):
        manager.client("ann").do("publish", **last)
    assert shown(manager, "q") == []
    driver.gone()
    assert not manager.core.stages.publisher.parts.bytes
    again = manager.client("ann")
    with pytest.raises(Refused, match="out-of-order"):
        again.do("publish", **last)
    assert in_parts(again, [one.named], [two.named])["messages"] == 2
    assert shown(manager, "q") == [b"p0", b"p1"]


def test_a_stage_that_was_cut_goes_on_in_the_next_part(manager: Manager) -> None:
    one, two = Writer(manager, "p0"), Writer(manager, "p1")
    for name in ("a", "b", "c"):
        one.put(name, b"1")
    two.put("a", b"2")
    driver = manager.client("ann")
    with pytest.raises(Refused, match="named twice"):
        in_parts(driver, [["p0", {"a": 1, "b": 1, "c": 1}]], [["p0", {"c": 1}]])
    cut = [["p0", {"a": 1}]], [["p0", {"b": 1}]], [["p0", {"c": 1}], two.named]
    assert in_parts(driver, *cut)["messages"] == 4
    assert shown(manager, "a") == [b"1", b"2"]


def test_parts_that_never_end_cost_a_bounded_amount_of_memory(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_parts, "LINE_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(publish_parts, "ALL_BYTES_MAX", 3 << 20)
    parts = manager.core.stages.publisher.parts
    refused = 0
    for _ in range(5):
        driver = manager.client("ann")
        for number in range(100):
            stages = [[f"{number}-{one}" + "x" * 400, {}] for one in range(100)]
            try:
                driver.do("publish", query="job", batch=0, stages=stages, part=number, more=True)
            except Refused as error:
                assert error.code == "too-many"
                refused += 1
                break
            assert parts.bytes <= 3 << 20
    assert refused == 5
    assert not parts.bytes, "whoever asked for too much has to begin again"


def test_a_batch_that_is_not_wholly_there_is_not_published(manager: Manager) -> None:
    writer = Writer(manager)
    writer.put("q", b"a", b"b")
    writer.put("k", b"c")
    driver = manager.client("ann")
    for counts in ({"q": 1, "k": 1}, {"q": 3, "k": 1}, {"q": 2}, {"q": 2, "k": 1, "x": 1}, {}):
        with pytest.raises(Refused, match="stage-missing"):
            driver.do("publish", query="job", batch=0, stages=[["p0", counts]])
    for stages in ([["p1", {"q": 1}]], [writer.named, writer.named]):
        with pytest.raises(Refused, match="stage-missing"):
            driver.do("publish", query="job", batch=0, stages=stages)
    assert shown(manager, "q") == [] == shown(manager, "k")
    assert publish(driver, writer)["messages"] == 3


def test_publishing_drops_other_stages_of_the_query_up_to_that_batch(manager: Manager) -> None:
    winner, loser = Writer(manager, "p0-1"), Writer(manager, "p0-0")
    later, other = Writer(manager, batch=1), Writer(manager, query="other")
    for writer in (winner, loser, later, other):
        writer.put("q", writer.name.encode())
    publish(manager.client("ann"), winner)
    assert shown(manager, "q") == [b"p0-1"]
    assert sorted(key[:2] for key in manager.core.stages.open) == [("job", 1), ("other", 0)]
    loser.put("q", b"more")
    assert [one["code"] for one in loser.client.notices("refused")] == ["stage-missing"]


def test_abandoning_never_undoes_a_published_batch(manager: Manager) -> None:
    writer = Writer(manager)
    writer.put("q", b"a")
    driver = manager.client("ann")
    assert driver.do("abandon", query="job", batch=1) == {"dropped": 0}
    publish(driver, writer)
    assert driver.do("abandon", query="job", batch=0) == {"dropped": 0}
    assert shown(manager, "q") == [b"a"]
    later = Writer(manager, batch=1)
    later.put("q", b"b")
    assert driver.do("abandon", query="job", batch=1) == {"dropped": 1}
    manager.crash()
    assert not manager.core.stages.open
    with pytest.raises(Refused, match="stage-missing"):
        manager.client("ann").do("publish", query="job", batch=1, stages=[later.named])


def test_a_stage_and_a_query_belong_to_their_user(manager: Manager) -> None:
    writer = Writer(manager)
    writer.put("q", b"a")
    stranger = manager.client("bob")
    for do, more in (
        ("stage", {"destination": "q", "stage": "p0"}),
        ("publish", {"stages": [writer.named]}),
        ("abandon", {}),
    ):
        with pytest.raises(Refused, match="not-allowed"):
            stranger.do(do, query="job", batch=0, **more)
    publish(manager.client("ann"), writer)
    with pytest.raises(Refused, match="not-allowed"):
        stranger.do("publish", query="job", batch=1, stages=[])
    assert shown(manager, "q") == [b"a"]


def once(body: bytes, identity: bytes) -> bytes:
    header = b"\x06:dedup" + (len(identity) + 1).to_bytes(2, "little") + b"s" + identity
    return encode(body, headers=header, flags=durable.ENTRY_DEDUP)


def test_deduplication_ids_count_when_the_batch_is_published(manager: Manager) -> None:
    one, two = Writer(manager), Writer(manager, "p1")
    one.put_raw("q", once(b"a", b"1") + encode(b"plain") + once(b"again", b"1") + once(b"b", b"2"), 4)
    two.put_raw("q", once(b"b again", b"2") + once(b"c", b"3") + once(b"sent before", b"0"), 3)
    sender = manager.client("ann")
    session = sender.do("session")
    producer = sender.do("produce", session=session["session"], destination="q")["producer"]
    sender.store_raw(producer, 1, once(b"first", b"0"), 1, ids=session["ids"][0])
    manager.turn()
    assert publish(manager.client("ann"), one, two)["messages"] == 4
    expected = [b"first", b"a", b"plain", b"b", b"c"]
    assert shown(manager, "q") == expected
    manager.crash()
    assert shown(manager, "q") == expected
    later = Writer(manager, batch=1)
    later.put_raw("q", once(b"c again", b"3"), 1)
    assert publish(manager.client("ann"), later, batch=1)["messages"] == 0


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_an_unfinished_publishing_wrote_again_is_not_published(manager: Manager, checkpoint: bool) -> None:
    writer = Writer(manager)
    writer.put_raw("q", once(b"a", b"1") + once(b"again", b"1") + encode(b"b"), 3)
    manager.is_holding = True
    manager.client("ann").ask("publish", query="job", batch=0, stages=[writer.named])
    settle(manager)
    (published,) = [record.index for record in manager.journal.records if record.kind == records.PUBLISH]
    manager.core.on_safe(published - 1)
    manager.crash()
    assert shown(manager, "q") == []
    if checkpoint:
        manager.checkpoint()
        manager.crash()
    assert Writer(manager).open("q")["accepted"] == 3
    assert publish(manager.client("ann"), writer) == {"published": "now", "messages": 2}
    assert shown(manager, "q") == [b"a", b"b"]
    manager.crash()
    assert shown(manager, "q") == [b"a", b"b"]


def test_times_priorities_and_selectors_hold_for_staged_messages(manager: Manager) -> None:
    reader = manager.client("ann")
    session = reader.do("session")["session"]
    wish = {"session": session, "messages": 100, "bytes": 1 << 20, "create": True}
    picky = reader.do("consume", destination="t", kind="topic", selector="JMSPriority > 5", **wish)["consumer"]
    queue = reader.do("consume", destination="q", **wish)["consumer"]
    writer = Writer(manager)
    writer.put("t", b"low", kind="topic", priority=1)
    writer.put("t", b"high", kind="topic", priority=9)
    writer.put("q", b"later", delay_ms=5000)
    writer.put("q", b"short", ttl_ms=1000)
    writer.put("q", b"now")
    publish(manager.client("ann"), writer)
    assert reader.bodies(picky) == [b"high"]
    assert reader.bodies(queue) == [b"short", b"now"]
    manager.later(6000)
    assert reader.bodies(queue)[2:] == [b"later"]
    assert sorted(heard(manager, "t")) == [b"high", b"low"]


class Cold(MemoryJournal):
    """Nothing is in memory when it is first asked for."""

    def __init__(self, before: MemoryJournal) -> None:
        self.__dict__.update(before.__dict__)
        self.asked: set[int] = set()

    def read(self, place: int, size: int, skip: int = 0) -> memoryview | None:
        if place in self.asked:
            return super().read(place, size)
        self.asked.add(place)
        return None


def test_what_has_to_be_looked_into_may_have_to_be_fetched(manager: Manager) -> None:
    writer = Writer(manager)
    for number in range(5):
        writer.put("t", b"%d" % number, kind="topic", priority=number)
        writer.put("q", b"%d" % number, ttl_ms=100_000)
    manager.journal = manager.core.journal = cold = Cold(manager.journal)
    assert publish(manager.client("ann"), writer)["messages"] == 10
    settle(manager)
    assert heard(manager, "t") == [b"0", b"1", b"2", b"3", b"4"]
    cold.asked = set(range(1 << 20))
    assert shown(manager, "q") == [b"0", b"1", b"2", b"3", b"4"]


def test_nothing_of_a_batch_is_there_before_all_of_it(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "RECORDS_PER_STEP", 3)
    monkeypatch.setattr(publication, "COLLECTED_PER_STEP", 4)
    writer = Writer(manager)
    for number in range(20):
        writer.put("q", b"%d" % number)
        writer.put("t", b"%d" % number, kind="topic")
    sender = manager.client("ann")
    session = sender.do("session")
    producer = sender.do("produce", session=session["session"], destination="q")["producer"]
    driver = manager.client("ann")
    number = driver.ask("publish", query="job", batch=0, stages=[writer.named])
    manager.turn()
    steps = 0
    sender.store(producer, 1, b"behind", ids=session["ids"][0])
    while manager.core.stages.publisher.is_busy:
        assert driver.answer(number) is None
        assert sender.stored() == []
        assert shown(manager, "q") == [] == shown(manager, "t")
        steps += 1
        manager.now_ms += 1
        manager.turn()
    assert steps > 10
    assert driver.answer(number) == {"published": "now", "messages": 40}
    assert shown(manager, "q") == [*(b"%d" % one for one in range(20)), b"behind"]
    manager.crash()
    assert shown(manager, "q") == [*(b"%d" % one for one in range(20)), b"behind"]


def test_a_message_moved_in_between_does_no_harm(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead messages are stored by the task of another destination, which does not stand still."""
    monkeypatch.setattr(publication, "RECORDS_PER_STEP", 1)
    sender = manager.client("ann")
    session = sender.do("session")
    producer = sender.do("produce", session=session["session"], destination="k", create=True)["producer"]
    sender.store(producer, 1, b"moved", ids=session["ids"][0])
    writer = Writer(manager)
    for number in range(4):
        writer.put("q", b"%d" % number)
    manager.client("ann").ask("publish", query="job", batch=0, stages=[writer.named])
    manager.turn()
    source, target = manager.core.find("k"), manager.core.find("q")
    assert source is not None
    assert target is not None
    while len(target.index) < 2:
        manager.now_ms += 1
        manager.turn()
    assert source.move([1], target) == 1
    settle(manager)
    assert shown(manager, "q") == [b"0", b"1", b"2", b"3", b"moved"]
    manager.crash()
    assert shown(manager, "q") == [b"0", b"1", b"2", b"3", b"moved"]


def test_a_destination_deleted_meanwhile(manager: Manager) -> None:
    writer = Writer(manager)
    writer.put("q", b"a")
    writer.put("k", b"b")
    home = manager.core.find("q")
    assert home is not None
    manager.core.delete(home, "It was in the way.")
    manager.turn()
    assert [one["handle"] for one in writer.client.notices("ended")] == [writer.handles["q"]]
    with pytest.raises(Refused, match="stage-missing"):
        manager.client("ann").do("publish", query="job", batch=0, stages=[writer.named])
    manager.crash()
    assert manager.client("ann").do("publish", query="job", batch=0, stages=[["p0", {"k": 1}]])["messages"] == 1


def test_two_who_publish_the_same_batch_at_once(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "RECORDS_PER_STEP", 1)
    writer = Writer(manager)
    for number in range(5):
        writer.put("q", b"%d" % number)
    one, two = manager.client("ann"), manager.client("ann")
    first = one.ask("publish", query="job", batch=0, stages=[writer.named])
    second = two.ask("publish", query="job", batch=0, stages=[writer.named])
    third = two.ask("abandon", query="job", batch=0)
    settle(manager)
    assert one.answer(first) == {"published": "now", "messages": 5}
    assert two.answer(second) == {"published": "before", "messages": 5}
    assert two.answer(third) == {"dropped": 0}
    assert len(shown(manager, "q")) == 5


def test_more_pieces_than_one_record_can_name_are_refused(tmp_path: Path) -> None:
    manager = Manager(tmp_path, segment_bytes=24 * 4 * 10)
    writer = Writer(manager)
    for _ in range(11):
        writer.put("q", b"x")
    with pytest.raises(Refused, match="too-many"):
        manager.client("ann").do("publish", query="job", batch=0, stages=[writer.named])


# --- Time and bounds ----------------------------------------------------------------------------------------------
def test_a_stage_left_behind_is_dropped_and_that_is_an_event(tmp_path: Path) -> None:
    manager = Manager(tmp_path, stage_retention_s=100)
    old, used = Writer(manager, "old"), Writer(manager, "used")
    old.put("q", b"a")
    used.put("q", b"b")
    manager.later(60_000)
    used.put("q", b"c")
    manager.crash()  # being away is no silence of the client's
    manager.later(60_000)
    assert len(manager.core.stages.open) == 2
    again = Writer(manager, "used")
    again.open("q")
    manager.later(60_000)
    assert [key[2] for key in manager.core.stages.open] == ["used"]
    assert [one["code"] for one in manager.log_records if one["code"] == "stage-dropped"] == ["stage-dropped"]
    manager.crash()
    assert [key[2] for key in manager.core.stages.open] == ["used"]


def test_queries_idle_for_long_are_forgotten_when_there_are_too_many(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.cluster.stages.SINKS_MAX", 2)
    driver = manager.client("ann")
    for query in ("a", "b"):
        publish(driver, query=query)
    with pytest.raises(Refused, match="too-many"):
        driver.do("publish", query="c", batch=0, stages=[])
    publish(driver, query="a", batch=1)
    manager.later(31 * 86_400_000)
    publish(driver, query="c")
    assert set(manager.core.stages.sinks) == {"a", "c"}
    assert [one["query"] for one in manager.log_records if one["code"] == "sink-forgotten"] == ["b"]
    manager.crash()
    assert set(manager.core.stages.sinks) == {"a", "c"}


@pytest.mark.parametrize(
    "request_",
    [
        {"do": "stage", "destination": "q", "create": True, "stage": "", "query": "x", "batch": 0},
        {"do": "stage", "destination": "q", "create": True, "stage": "s" * 513, "query": "x", "batch": 0},
        {"do": "stage", "destination": "q", "create": True, "stage": "s", "query": "x", "batch": -1},
        {"do": "stage", "destination": "q", "create": True, "stage": "s", "query": "x", "batch": 2**64},
        {"do": "stage", "destination": "_LOG", "stage": "s", "query": "x", "batch": 0},
        {"do": "stage", "destination": "nowhere", "stage": "s", "query": "x", "batch": 0},
        {"do": "publish", "query": "x", "batch": 0, "stages": {}},
        {"do": "publish", "query": "x", "batch": 0, "stages": [["s", {"q": -1}]]},
        {"do": "publish", "query": "x", "batch": 0, "stages": [["s"]]},
        {"do": "publish", "query": "x", "batch": 0, "stages": [["s", {"q": 2**63 - 1}]]},
        {"do": "abandon", "query": ["x"], "batch": 0},
    ],
)
def test_bad_requests_are_refused_and_change_nothing(manager: Manager, request_: dict[str, Any]) -> None:
    client = manager.client("ann")
    with pytest.raises(Refused):
        client.do(**request_)
    assert not manager.core.stages.open
    assert not manager.core.stages.sinks
    assert manager.core.faults == 0


def test_hostile_records_of_a_transaction_are_no_stage(manager: Manager) -> None:
    """The number that marks staged records can be sent as a transaction's; it opens no door."""
    client = manager.client("ann")
    session = client.do("session")
    producer = client.do("produce", session=session["session"], destination="q", create=True)["producer"]
    client.store(producer, 1, b"x", ids=session["ids"][0], transaction=records.STAGED)
    manager.turn()
    manager.crash()
    assert shown(manager, "q") == []
    assert not manager.core.stages.open


def test_administration(manager: Manager) -> None:
    told: list[dict[str, Any]] = []

    def admin(name: str, **arguments: Any) -> dict[str, Any]:
        manager.core.admin.execute(name, arguments, told.append, user="boss")
        manager.turn()
        return told.pop()

    writer, other = Writer(manager), Writer(manager, query="other")
    writer.put("q", b"a", b"b")
    other.put("q", b"c")
    publish(manager.client("ann"), writer)
    found = admin("sinks")["ok"]["sinks"]
    assert [(one["query"], one["batch"], one["messages"], one["user"]) for one in found] == [("job", 0, 2, "ann")]
    assert admin("sinks", query="none")["ok"]["sinks"] == []
    (stage,) = admin("stages")["ok"]["stages"]
    assert (stage["query"], stage["stage"], stage["messages"]) == ("other", "p0", 1)
    assert stage["destinations"] == {"q": 1}
    assert admin("stages", query="job")["ok"]["total"] == 0
    assert admin("drop-stage", query="other", batch=0, stage="p0")["ok"] == {"messages": 1}
    assert admin("drop-stage", query="other", batch=0, stage="p0")["error"]["code"] == "stage-missing"
    assert admin("forget-sink", query="job")["ok"]["batch"] == 0
    assert admin("forget-sink", query="job")["error"]["code"] == "stage-missing"
    manager.crash()
    assert not manager.core.stages.open
    assert publish(manager.client("bob"), batch=0)["published"] == "now"


# --- Restarts -----------------------------------------------------------------------------------------------------
def test_a_checkpoint_of_an_older_version_knows_no_stages(manager: Manager) -> None:
    sheet = MemorySheet()
    assert Checkpoint(manager.core, sheet, 1).step(most_parts=1000)
    del sheet.blobs[b"stages"]
    recovery = Recovery(manager.core)
    recovery.restore(sheet.blobs.items())
    assert not manager.core.stages.open


def test_a_record_lost_to_damage_leaves_a_hole_that_is_told(manager: Manager) -> None:
    writer = Writer(manager)
    for body in (b"a", b"b", b"c"):
        writer.put("q", body)
    publish(manager.client("ann"), writer)
    hidden = [record for record in manager.journal.records if record.kind == records.HIDDEN]
    for lost in (hidden[1], hidden[2]):
        manager.journal.records.remove(lost)
    manager.crash()
    assert shown(manager, "q") == [b"a"]
    assert "messages-lost" in {one["code"] for one in manager.log_records}
    later = Writer(manager, batch=1)
    later.put("q", b"d")
    publish(manager.client("ann"), later, batch=1)
    assert shown(manager, "q") == [b"a", b"d"]


class Restarts(RuleBasedStateMachine):
    """Steps and crashes chosen by hypothesis, against a model."""

    @initialize(seed=st.integers(0, 1 << 16))
    def begin(self, seed: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.world = World(Path(self.folder.name), seed)

    @rule(name=st.sampled_from(sorted(set(World.STEPS))))
    def step(self, name: str) -> None:
        getattr(self.world, name)()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.check()
            self.world.crash()
            self.folder.cleanup()


TestRestarts = Restarts.TestCase
TestRestarts.settings = settings(max_examples=25, stateful_step_count=50, deadline=None)


def caught(folder: Path, seeds: range, steps: int = 80) -> int | None:
    """The first seed whose run finds a fault."""
    for seed in seeds:
        try:
            World(folder / str(seed), seed).run(steps)
        except AssertionError:
            return seed
    return None


def test_whatever_is_lost_a_batch_is_there_once_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "RECORDS_PER_STEP", 2)
    assert caught(tmp_path, range(40)) is None


def forget_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    published = Stages.published

    def without_memory(self: Stages, facts: Any, ms: int, index: int) -> None:
        published(self, facts, ms, index)
        del self.sinks[facts["query"]]

    monkeypatch.setattr(Stages, "published", without_memory)


def count_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged.Stage, "accepted", lambda self, destination: 0)


def show_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Appearance.add

    def shown_too_early(self: Appearance, item: Any, plan: Any) -> None:
        add(self, item, plan)
        self.reveal()

    monkeypatch.setattr(Appearance, "add", shown_too_early)


def forget_stages_in_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stages, "restore", lambda self, state: None)


def lose_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = publication.placed
    monkeypatch.setattr(publication, "placed", lambda shares: placed(list(shares)[::-1]))


def keep_what_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stages, "drop", lambda self, stages: None)


def confirm_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.cluster.core.Core.after", lambda self, index, action, *, patient=False: action())


def take_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Staging._take

    def gapless(self: Staging, stager: Any, first: int, *rest: Any) -> None:
        expected = stager.stage.accepted(stager.destination.number) + 1
        take(self, stager, min(first, expected), *rest)

    monkeypatch.setattr(Staging, "_take", gapless)


@pytest.mark.parametrize(
    "bug",
    [
        forget_the_batch,
        count_no_rows,
        show_at_once,
        forget_stages_in_checkpoints,
        lose_the_order,
        keep_what_lost,
        confirm_too_early,
        take_gaps,
    ],
)
def test_a_planted_bug_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: Callable[[pytest.MonkeyPatch], None]
) -> None:
    bug(monkeypatch)
    assert caught(tmp_path, range(40)) is not None
