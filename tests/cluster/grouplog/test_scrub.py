"""Reading everything again finds what is damaged, with its place, and nothing where nothing is."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.edge.scrub import Scrub
from fairlead.cluster.edge.workers import Workers
from fairlead.journal.edge.journal import Journal
from fairlead.journal.layout import offset_of, segment_of
from tests.cluster.grouplog.rig import Leader, digest, inline, options


def filled(folder: Path, count: int = 300) -> Journal:
    journal, found = Journal.open(folder, options())
    found.finish()
    for number in range(count):
        journal.append(7, b"%d" % number, random.Random(number).randbytes(number * 7 % 900))
    journal.flush()
    return journal


@pytest.mark.requirement("CLU-114")
def test_every_flipped_bit_of_a_record_is_found(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    places = [(one.index, one.place, len(one.body)) for one in journal.replay(1, 300)]
    out: list[dict[str, Any]] = []
    Scrub(journal, inline, out.append, 1 << 40)
    assert out.pop() | {"bytes": 0} == {
        "records": 300,
        "bytes": 0,
        "segments": len({segment_of(place) for _, place, _ in places}),
        "complete": True,
        "damage": [],
    }
    chance = random.Random(1)
    for index, place, size in chance.sample(places[5:], 25):
        path = tmp_path / f"{segment_of(place):08d}.seg"
        good = path.read_bytes()
        data = bytearray(good)
        data[offset_of(place) + chance.randrange(-40, size)] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        Scrub(journal, inline, out.append, 1 << 40)
        found = out.pop()["damage"]
        assert [one["segment"] for one in found] == [segment_of(place)]
        assert found[0]["first"] <= index <= found[0]["last"]
        path.write_bytes(good)
    assert not journal._room.pins
    journal.close()


def test_it_keeps_to_its_rate_and_can_be_stopped(tmp_path: Path) -> None:
    journal = filled(tmp_path, 3000)
    workers = Workers(1)
    out: list[dict[str, Any]] = []
    began = time.monotonic()
    scrub = Scrub(journal, workers.work, out.append, 4 << 20)
    while not out and time.monotonic() < began + 0.1:
        workers.collect()
    assert not out, f"{scrub.read_bytes} bytes are not read in so short a time"
    scrub.stop()
    while not out and time.monotonic() < began + 10:
        workers.collect()
    assert out[0]["complete"] is False
    workers.close()
    journal.close()


def test_a_digest_tells_one_bit_of_one_message(tmp_path: Path) -> None:
    digests = []
    for number, body in enumerate((b"same", b"same", b"sane")):
        leader = Leader(tmp_path / str(number))
        leader.begin()
        leader.session(1)
        leader.store(1, leader.producer(1, "orders"), 1, b"first", body)
        leader.settle()
        digests.append(digest(leader.core, leader.real))
        consumer = leader.consumer(1, "orders")
        leader.settle()
        leader.settle_range(1, consumer, 1, 2)
        leader.settle()
        assert digest(leader.core, leader.real)["orders"] != digests[-1]["orders"]
        leader.real.close()
    assert digests[0] == digests[1]
    assert {name for name in digests[0] if digests[0][name] != digests[2][name]} == {"orders"}
