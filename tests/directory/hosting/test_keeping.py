"""The directory in a message manager's core: answers wait for the log, and the log says everything again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.cluster import records
from fairlead.cluster.options import Options
from fairlead.directory.operations import ADMIN, APP, BROKER
from fairlead.runtime.settings import Directory
from fairlead.wire import durable
from tests.cluster.core_rig import Got, Rig, frames_of
from tests.cluster.members.test_replica import Follower

ON = Options(directory=Directory(serve=True, lease_s=15, reserve_s=10))
ME = 7


def row(name: str, **facts: Any) -> dict[str, Any]:
    return {"name": name, "ip": "127.0.0.1", "port": 7400, "identity": f"id-{name}", **facts}


def link(number: int, broker: str) -> dict[str, Any]:
    return {"identity": f"{number:032x}", "broker": broker, "client": "c/1"}


class Desk:
    """Asks a rig's directory as an administrator, or with the rights it is given."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig

    def __call__(self, op: str, may: tuple[str, ...] = (ADMIN,), **arguments: Any) -> dict[str, Any]:
        return self.rig.ask(ME, "directory", op=op, may=list(may), **arguments)

    def state(self) -> dict[str, Any]:
        return self.rig.core.directory.snapshot()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(Rig(tmp_path, ON))


def fill(desk: Desk) -> None:
    """A bit of everything."""
    for name in "ABC":
        desk("put_broker", broker=row(name), clusters=["one", "two"])
    for number in range(4):
        desk("pick_broker", app="AX", cluster="one", request=f"r{number}")
    desk("connection_opened", app="AX", link=link(1, "A"), reservation="r0")
    desk("connection_opened", app="AX", link=link(2, "B"), reservation="r1")
    desk("connection_closed", app="AX", identity=f"{2:032x}", broker="B")
    desk("register_app", app="AZ", kind="static", broker="C", user="zoe")
    desk("report_failure", app="AX", broker="C", client="c1", reason="refused", reservation="r2")
    desk("set_cluster", cluster="two", heuristic="centralised", rule="least_connections")
    desk("leave_cluster", cluster="two", broker="B")


def test_arguments_named_like_what_a_manager_knows_are_the_clients_own(desk: Desk) -> None:
    fill(desk)
    (app,) = desk("list_apps", app="AZ")["apps"]
    assert app["user"] == "zoe"
    assert desk("status")["failures_by_broker"]["C"]["reporters"] == ["c1"]
    assert all(line.user == "" for line in desk.rig.link.lines.values()), "an argument became the user of a connection"


@pytest.mark.requirement("DIR-21", state="half", note="a journal in memory; real servers in tests/processes/directory")
def test_what_was_acknowledged_is_there_after_a_crash_and_what_was_not_is_not(desk: Desk) -> None:
    fill(desk)
    before = desk.state()
    desk.rig.command(ME, "directory", op="put_broker", broker=row("D"), may=[ADMIN])
    desk.rig.turn()  # written, not synced
    assert "D" in [one["name"] for one in desk.rig.core.directory.tables.ask("list_brokers", NOTHING, 0)["brokers"]]
    desk.rig.restart()
    assert desk.state() == before


def test_a_reader_hears_nothing_that_is_not_safe_yet(desk: Desk) -> None:
    write = desk.rig.command(ME, "directory", op="put_broker", broker=row("A"), may=[ADMIN])
    read = desk.rig.command(ME + 1, "directory", op="list_brokers")
    desk.rig.turn()
    assert not [got for got in desk.rig.inbox if got.number in (write, read) and got.uid >= ME]
    assert [one["name"] for one in desk.rig.answer(ME + 1, read)["brokers"]] == ["A"]
    assert "revision" in desk.rig.answer(ME, write)


def test_a_checkpoint_and_the_records_behind_it_are_the_whole_directory(desk: Desk) -> None:
    for name in "AB":
        desk("put_broker", broker=row(name), clusters=["one"])
    checkpoint = desk.rig.checkpoint()
    while not checkpoint.step(most_parts=1):
        desk("pick_broker", app="AX", cluster="one", request=f"during-{desk.state()['revision']}")
    fill(desk)
    before = desk.state()
    desk.rig.restart()
    assert desk.rig.journal.covers > 0
    assert desk.state() == before


def test_a_backup_that_was_told_the_records_has_the_same_directory(desk: Desk, tmp_path: Path) -> None:
    follower = Follower(desk.rig, tmp_path / "backup")
    fill(desk)
    follower.catch_up()
    assert follower.core.directory.snapshot() == desk.state()


@pytest.mark.requirement("DIR-49", state="half", note="the members' machines; several servers in tests/processes")
def test_the_next_primary_goes_on_in_the_same_rotation_and_knows_every_request(desk: Desk) -> None:
    for name in "ABC":
        desk("put_broker", broker=row(name), clusters=["one"])
    first = [desk("pick_broker", app="AX", cluster="one", request=f"r{n}")["broker"]["name"] for n in range(4)]
    desk.rig.restart()  # as whoever reads the same log
    assert desk("pick_broker", app="AX", cluster="one", request="r3")["broker"]["name"] == first[3]
    then = [desk("pick_broker", app="AX", cluster="one", request=f"r{n}")["broker"]["name"] for n in range(4, 9)]
    assert first + then == list("ABCABCABC")


@pytest.mark.requirement("DIR-22", state="half", note="virtual time; a killed broker in tests/processes/directory")
def test_a_lease_that_ends_is_a_record_and_whoever_begins_to_lead_gives_a_fresh_one(desk: Desk) -> None:
    desk("put_broker", broker=row("A"), clusters=["one"])
    desk("connection_opened", app="AX", link=link(1, "A"))
    desk.rig.now_ms += 14_000
    desk.rig.restart()
    desk.rig.now_ms += 14_000
    desk.rig.settle()
    assert desk("lookup_app", app="AX")["app"]["links"]
    desk.rig.now_ms += 2_000
    written = len(desk.rig.journal.records)
    desk.rig.settle()
    assert records.DIRECTORY in [one.kind for one in desk.rig.journal.records[written:]]
    assert desk("lookup_app", app="AX")["app"] is None
    (broker,) = desk("list_brokers")["brokers"]
    assert not broker.get("available", False)
    assert desk("renew", name="A", identity="id-A")["known"]
    assert desk("list_brokers")["brokers"][0]["available"]


@pytest.mark.requirement("DIR-51", state="half", note="the core with virtual time")
def test_a_pick_that_comes_to_nothing_is_over_after_its_time(desk: Desk) -> None:
    desk("put_broker", broker=row("A", limit=1), clusters=["one"])
    desk("pick_broker", app="AX", cluster="one", request="r1")
    assert desk("pick_broker", app="AX", cluster="one", request="r2")["error"] == "none-available"
    desk.rig.now_ms += 10_500
    assert desk("pick_broker", app="AX", cluster="one", request="r2")["broker"]["name"] == "A"


@pytest.mark.requirement("DIR-34", state="half", note="the core's side; users files in tests/processes/directory")
@pytest.mark.parametrize(
    ("may", "op", "arguments"),
    [
        ((BROKER + "A",), "remove_broker", {"name": "B"}),
        ((BROKER + "A",), "join_cluster", {"cluster": "one", "broker": "B"}),
        ((BROKER + "A",), "put_broker", {"broker": row("B")}),
        ((APP + "AX",), "connection_opened", {"app": "AY", "link": link(9, "A")}),
        ((APP + "AX",), "pick_broker", {"app": "AY", "cluster": "one", "request": "r"}),
        ((APP + "AX",), "rebalance", {"cluster": "one"}),
        ((), "pick_broker", {"app": "AX", "cluster": "one", "request": "r"}),
        ((), "put_broker", {"broker": row("D")}),
    ],
)
def test_who_has_no_right_changes_nothing(desk: Desk, may: tuple[str, ...], op: str, arguments: dict[str, Any]) -> None:
    fill(desk)
    before = desk.state()
    assert desk(op, may=may, **arguments)["error"] == "not-allowed"
    assert desk.state() == before


def test_every_request_is_answered_however_wrong_it_is(desk: Desk) -> None:
    fill(desk)
    before = desk.state()
    for op, facts in (
        (None, {}),
        (7, {}),
        ("nonsense", {}),
        ("pick_broker", {}),
        ("pick_broker", {"app": 5, "cluster": [], "request": None}),
        ("put_broker", {"broker": {"name": "A"}}),
        ("put_broker", {"broker": row("x" * 10_000)}),
        ("list_apps", {"unknown": 1}),
        ("restate", {"name": "A", "identity": "id-A", "links": [[1, 2, 3]]}),
    ):
        answer = desk.rig.ask(ME, "directory", op=op, may=[ADMIN], **facts)
        assert answer.get("error") in ("bad-parameter", "bad-name"), (op, facts, answer)
    for may in ("text", {"a": 1}, 5, [[1]]):
        answer = desk.rig.ask(ME, "directory", op="remove_broker", name="A", may=may)
        assert answer.get("error"), (may, answer)
    assert desk.state() == before


def test_a_fault_of_our_own_is_answered_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(desk.rig.core.directory.tables, "ask", broken)
    assert desk("list_brokers")["error"] == "internal"


def test_a_server_that_keeps_no_directory_says_so_and_loses_nothing(desk: Desk) -> None:
    fill(desk)
    before = desk.state()
    desk.rig.options = Options(directory=Directory(serve=False))
    desk.rig.restart()
    assert desk("list_brokers")["error"] == "no-directory"
    desk.rig.options = Options()
    desk.rig.restart()
    assert desk("list_brokers")["error"] == "no-directory"
    desk.rig.options = ON
    desk.rig.restart()
    assert desk.state() == before


def test_a_full_disk_refuses_what_needs_room_and_takes_what_frees_it(desk: Desk) -> None:
    fill(desk)
    desk.rig.journal.full = "the disk is full"
    assert desk("put_broker", broker=row("D"))["error"] == "store-full"
    assert "revision" in desk("remove_broker", name="A")
    assert "known" in desk("renew", name="B", identity="id-B")
    assert desk("list_brokers")["brokers"]


def test_settings_change_while_it_runs(desk: Desk) -> None:
    desk.rig.core.configure(Options(directory=Directory(serve=True, lease_s=3)))
    assert desk("put_broker", broker=row("A"))["lease_s"] == 3
    desk.rig.core.configure(Options(directory=Directory(serve=False)))
    assert desk("list_brokers")["error"] == "no-directory"


@pytest.mark.requirement("DIR-38", state="half", note="one member; a set that is cut in tests/processes/directory")
def test_who_does_not_serve_answers_reads_as_stale_and_refuses_changes(desk: Desk, tmp_path: Path) -> None:
    from fairlead.errors import NoDirectory

    follower = Follower(desk.rig, tmp_path / "backup")
    fill(desk)
    follower.catch_up()
    kept = follower.core.directory
    answer = kept.stale({"op": "get_cluster", "cluster": "one"})
    assert answer["stale"] is True
    assert [one["name"] for one in answer["brokers"]] == ["A", "B", "C"]
    for op, facts in (
        ("put_broker", {"broker": row("D")}),
        ("pick_broker", {"app": "AX", "cluster": "one", "request": "r"}),
        ("get_cluster", {"cluster": "newer"}),
    ):
        with pytest.raises(NoDirectory):
            kept.stale({"op": op, **facts})


def test_a_long_answer_comes_in_several_frames(desk: Desk) -> None:
    desk("put_broker", broker=row("A"))
    body = b"x" * (5 << 19)
    line = next(iter(desk.rig.link.lines.values()))
    desk.rig.core.answer_long(line, 99, body)
    got: list[Got] = [one for one in frames_of(desk.rig.link) if one.number == 99]
    assert [len(one.body) for one in got] == [1 << 20, 1 << 20, 1 << 19]
    assert b"".join(one.body for one in got) == body
    assert all(one.kind == durable.KIND_ANSWER for one in got)


class _Nothing(msgspec.Struct):
    pass


NOTHING = _Nothing()
