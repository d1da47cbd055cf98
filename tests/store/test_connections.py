"""The connection table over a bytearray: who writes what, and what a death in between leaves behind."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.store import layout
from fairlead.store.connections import ConnectionTable, fit

NOW_NS = 1_700_000_000_000_000_000


def make(managers: int = 2, per_manager: int = 4) -> tuple[ConnectionTable, bytearray]:
    buffer = bytearray(layout.connections_bytes(managers, per_manager))
    struct.pack_into("<II", buffer, layout.CONNECTIONS_MANAGERS, managers, per_manager)
    table = ConnectionTable(buffer)
    table.begin_uids(1_700_000_000)
    return table, buffer


@pytest.mark.requirement("SRV-27")
def test_uids_begin_beyond_those_of_any_earlier_store_and_survive_a_dispatcher() -> None:
    table, buffer = make()
    assert table.open(0, "a:1", NOW_NS) == (1_700_000_000 << 20, 0)
    again = ConnectionTable(buffer)
    again.begin_uids(1_800_000_000)
    assert again.open(1, "a:2", NOW_NS) == ((1_700_000_000 << 20) + 1, 0)


@pytest.mark.requirement("SRV-11")
def test_an_entry_shows_what_is_known_and_disappears_at_close() -> None:
    table, _ = make()
    opened = table.open(1, "127.0.0.1:5000", NOW_NS)
    assert opened is not None
    uid, index = opened
    entry = table.read(1, index)
    assert entry is not None
    assert (entry.uid, entry.peer, entry.state, entry.descriptor) == (uid, "127.0.0.1:5000", "handed over", -1)
    assert table.adopt(1, index, uid, 17)
    table.set_live(1, index, user="ann", type="ui", instance="ui-1", org="o")
    entry = table.read(1, index)
    assert entry is not None
    assert (entry.manager, entry.state, entry.descriptor, entry.opened_ns) == (1, "live", 17, NOW_NS)
    assert (entry.user, entry.type, entry.instance, entry.org) == ("ann", "ui", "ui-1", "o")
    assert [one.uid for one in table.read_all()] == [uid]
    table.set_closing(1, index)
    table.close(1, index)
    assert table.read(1, index) is None
    assert list(table.read_all()) == []


def test_texts_of_an_earlier_connection_do_not_shine_through() -> None:
    table, _ = make(1, 1)
    uid, index = table.open(0, "a" * 60, NOW_NS) or (0, 0)
    table.adopt(0, index, uid, 3)
    table.set_live(0, index, user="somebody", type="t", instance="i", org="o")
    table.close(0, index)
    uid, index = table.open(0, "b", NOW_NS) or (0, 0)
    entry = table.read(0, index)
    assert entry is not None
    assert (entry.peer, entry.user, entry.type) == ("b", "", "")


def test_the_load_is_what_was_handed_over_and_not_closed() -> None:
    table, _ = make()
    for _ in range(3):
        table.open(0, "p", NOW_NS)
    assert (table.load(0), table.load(1)) == (3, 0)
    table.close(0, 1)
    assert table.load(0) == 2
    table.take_back(0, 0)
    assert table.load(0) == 1


def test_freed_entries_rest_before_they_are_used_again() -> None:
    table, _ = make(1, 4)
    assert [table.open(0, "p", NOW_NS)[1] for _ in range(2)] == [0, 1]  # type: ignore[index]
    table.close(0, 0)
    assert [table.open(0, "p", NOW_NS)[1] for _ in range(3)] == [2, 3, 0]  # type: ignore[index]
    assert table.open(0, "p", NOW_NS) is None


def test_a_manager_adopts_only_what_is_still_its_own() -> None:
    table, _ = make()
    uid, index = table.open(0, "p", NOW_NS) or (0, 0)
    assert not table.adopt(0, index, uid + 1, 5)
    assert not table.adopt(0, index + 1, uid, 5)
    assert table.adopt(0, index, uid, 5)
    assert not table.adopt(0, index, uid, 5)


def test_the_sweep_frees_what_was_never_adopted_and_is_old() -> None:
    table, _ = make()
    old = table.open(0, "old", NOW_NS)
    adopted = table.open(0, "adopted", NOW_NS)
    fresh = table.open(0, "fresh", NOW_NS + 10)
    assert old
    assert adopted
    assert fresh
    table.adopt(0, adopted[1], adopted[0], 5)
    assert table.sweep(0, NOW_NS + 10) == 1
    assert sorted(one.peer for one in table.read_all()) == ["adopted", "fresh"]
    assert table.load(0) == 2


@pytest.mark.requirement("SRV-115", state="half")
def test_a_successor_finds_what_its_predecessor_had_in_service() -> None:
    table, _ = make()
    entries = [table.open(0, "p", NOW_NS) or (0, 0) for _ in range(3)]
    for uid, index in entries[:2]:
        table.adopt(0, index, uid, 5)
    table.set_live(0, entries[1][1], user="", type="t", instance="i", org="")
    assert table.lost(0) == [entries[0], entries[1]]  # the third is still on its way


def test_draining_and_pid_are_the_managers_words() -> None:
    table, _ = make()
    table.begin_manager(1, 4711)
    table.set_draining(1)
    assert (table.pid(0), table.pid(1)) == (0, 4711)
    assert (table.draining(0), table.draining(1)) == (False, True)
    table.begin_manager(1, 4712)
    assert not table.draining(1)


def test_loads_are_mended_after_a_death_between_two_words() -> None:
    table, buffer = make()
    table.open(0, "p", NOW_NS)
    struct.pack_into("<Q", buffer, layout.CONNECTIONS_MANAGER_FIRST + layout.MANAGER_HANDED, 9)  # counted, not written
    table.recount(0)
    assert table.load(0) == 1
    struct.pack_into("<Q", buffer, layout.CONNECTIONS_MANAGER_FIRST + layout.MANAGER_CLOSED, 0)
    struct.pack_into("<Q", buffer, layout.CONNECTIONS_MANAGER_FIRST + layout.MANAGER_HANDED, 5)
    table.begin_manager(0, 1)
    assert table.load(0) == 1


@given(st.text(max_size=80))
def test_texts_are_cut_at_whole_characters(text: str) -> None:
    data = fit(text)
    assert len(data) <= layout.CONNECTION_TEXT_BYTES
    assert text.encode("utf-8", "replace").startswith(data)
    data.decode()


@given(st.lists(st.tuples(st.sampled_from(["open", "adopt", "close", "sweep"]), st.integers(0, 7)), max_size=60))
def test_load_and_entries_always_agree(steps: list[tuple[str, int]]) -> None:
    table, _ = make(1, 4)
    waiting: list[tuple[int, int]] = []
    served: list[int] = []
    for step, number in steps:
        if step == "open" and (opened := table.open(0, "p", NOW_NS)):
            waiting.append(opened)
        elif step == "adopt" and waiting:
            uid, index = waiting.pop(number % len(waiting))
            assert table.adopt(0, index, uid, number)
            served.append(index)
        elif step == "close" and served:
            table.close(0, served.pop(number % len(served)))
        elif step == "sweep":
            assert table.sweep(0, NOW_NS + 1) == len(waiting)
            waiting.clear()
        assert table.load(0) == table.in_use(0) == len(waiting) + len(served)
