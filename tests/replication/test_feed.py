"""The flow to one backup: a window, one message per wake-up and place, and no flood when something is lost."""

from __future__ import annotations

from random import Random

from fairlead.cluster.replication.feed import Feed
from fairlead.cluster.replication.messages import Append
from fairlead.cluster.replication.record import ControlRecord
from fairlead.cluster.replication.settings import Settings
from tests.simulation.disk import SimLog

RECORD = ControlRecord(1, 0, "a1.0", frozenset({"a1.0"}), frozenset({"a1.0"}), 1)
SETTINGS = Settings(append_bytes=320, window_bytes=1000)


class Rig:
    def __init__(self, records: int) -> None:
        self.log = SimLog(Random(0))
        for number in range(records):
            self.log.push(1, b"record %6d" % number)
        self.feed = Feed(self.log.last + 1, SETTINGS)

    def pump(self) -> list[Append]:
        return self.feed.pump(self.log, 1, RECORD, 0, 0.0)

    def stored(self, upto: int, want: int = 0, now_s: float = 0.0) -> list[Append]:
        self.feed.on_stored("a2.0", upto, want, self.log.last, now_s)
        return self.pump()


def test_nothing_goes_before_it_is_known_where_to_begin() -> None:
    rig = Rig(50)
    assert rig.pump() == []
    assert [append.first for append in rig.stored(0, want=1)] == [1], "one, to see whether it fits"
    assert rig.pump() == []
    assert len(rig.stored(10)) > 1, "then as many as the window takes"


def test_the_window_bounds_what_is_under_way() -> None:
    rig = Rig(500)
    rig.stored(0, want=1)
    rig.stored(10)
    assert SETTINGS.window_bytes <= rig.feed.under_way_bytes < SETTINGS.window_bytes + SETTINGS.append_bytes
    assert rig.pump() == []
    sent_to = rig.feed.next - 1
    assert [append.first for append in rig.stored(30)][:1] == [sent_to + 1]


def test_one_lost_message_is_sent_again_once() -> None:
    rig = Rig(500)
    rig.stored(0, want=1)
    rig.stored(10)
    again = [append.first for _ in range(20) for append in rig.stored(10, want=11, now_s=1.0)]
    assert again == [11], "all that was under way behind it wishes for the same"
    assert [append.first for append in rig.stored(10, want=11, now_s=1.0 + SETTINGS.repair_s)] == [11], "lost again"


def test_further_back_is_granted_at_once() -> None:
    rig = Rig(500)
    assert [append.first for want in (300, 200, 7) for append in rig.stored(0, want)] == [300, 200, 7]


def test_what_is_only_in_the_state_is_not_sent() -> None:
    rig = Rig(50)
    rig.log.first = 20
    assert rig.stored(0, want=5) == []
    life = rig.feed.sign_of_life(rig.log, 1, RECORD, 0, 0.0)
    assert (life.oldest, life.first, life.epochs) == (20, 51, ()), "the backup sees that records do not help"


def test_another_disk_begins_anew() -> None:
    rig = Rig(50)
    assert [append.first for append in rig.stored(0, want=5)] == [5]
    assert rig.stored(0, want=9) == [], "too soon after the last wish"
    rig.feed.on_stored("a2.1", 0, 9, rig.log.last, 0.0)
    assert [append.first for append in rig.pump()] == [9]
