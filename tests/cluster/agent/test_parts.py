"""The agent's small parts: slices by group, placement, the directory, the choke, who serves."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.bus.port import Peer, View
from fairlead.cluster import demux
from fairlead.cluster.client_manager.announcing import Announcing
from fairlead.cluster.client_manager.choke import Choke
from fairlead.cluster.client_manager.directory import Directory, Entry
from fairlead.cluster.client_manager.edge.names_file import NamesFile
from fairlead.cluster.client_manager.group_link import Served
from fairlead.cluster.client_manager.placement import Group, Placement
from fairlead.cluster.client_manager.serving import serving_of
from fairlead.cluster.outgoing import Link
from fairlead.errors import RemoteProtocolError
from fairlead.wire.durable import KIND_ANSWER, KIND_COMMAND, KIND_STORE
from fairlead.wire.kinds import KIND_ERROR, KIND_PUBLISH
from tests.cluster.agent.world import Site

TWINS: list[ModuleType] = [demux]
try:
    from fairlead.cluster import _demux

    TWINS.append(_demux)
except ImportError:  # not built
    pass

LOOKED_AT = (KIND_COMMAND, KIND_ANSWER, KIND_ERROR, KIND_PUBLISH)
FRAMES = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2**64 - 1]),
        st.sampled_from([KIND_STORE, 0x72, 0x75, *LOOKED_AT]),
        st.sampled_from([0, 1, 1 << 24, 1 << 24 | 9, 127 << 24, 2**32 - 1]),
        st.binary(max_size=30),
    ),
    max_size=12,
)


def bytes_of(frames: list[tuple[int, int, int, bytes]]) -> bytearray:
    link = Link(0)
    for uid, kind, number, body in frames:
        link.frame(uid, 1, kind, number=number, body=body)
    return bytearray(b"".join(bytes(piece) for piece in link.out))


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: str(twin.__name__))
@given(frames=FRAMES, apart=st.booleans(), cut=st.integers(0, 60))
def test_runs_are_all_frames_in_order_apart_by_group(
    twin: ModuleType, frames: list[tuple[int, int, int, bytes]], apart: bool, cut: int
) -> None:
    data = bytes_of(frames)
    end = max(0, len(data) - cut)
    found, used = twin.runs(data, 0, end, apart)
    assert used == demux.scan(data, 0, end)[1]
    at, previous = 0, None
    for group, start, beyond in found:
        assert start == at
        at = beyond
        inside = demux.scan(data, start, beyond)[0]
        if group == demux.LOOKED_AT:
            assert len(inside) == 1
            assert inside[0][0] == 0 or inside[0][2] in LOOKED_AT
        else:
            assert group != previous
            for frame in inside:
                assert frame[0] != 0
                assert frame[2] not in LOOKED_AT
                assert group == (frame[4] >> 24 if apart else 0)
        previous = group
    assert at == used


@given(data=st.binary(max_size=400), apart=st.booleans())
def test_the_twins_agree_on_runs_of_any_bytes(data: bytes, apart: bool) -> None:
    answers = []
    for twin in TWINS:
        try:
            answers.append(twin.runs(bytearray(data), 0, len(data), apart))
        except RemoteProtocolError as error:
            answers.append(str(error))
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: str(twin.__name__))
def test_a_frame_that_contradicts_its_envelope_is_looked_at(twin: ModuleType) -> None:
    data = bytes_of([(1, KIND_STORE, 5, b"abc"), (1, KIND_STORE, 5, b"abc")])
    data[16] = 200  # the first frame's own length
    assert twin.runs(data, 0, len(data), True)[0] == [(-1, 0, 51), (0, 51, 102)]


@pytest.mark.requirement("CLU-87")
@given(names=st.lists(st.text("abc.", min_size=1, max_size=8), min_size=1, max_size=50, unique=True))
def test_a_group_more_takes_names_only_to_itself(names: list[str]) -> None:
    three = Placement([Group("a"), Group("b"), Group("c")])
    four = Placement([Group("a"), Group("b"), Group("c"), Group("d")])
    for name in names:
        assert four.of(name) in (three.of(name), 3)


def test_names_are_spread_and_pins_and_reserved_names_come_first() -> None:
    placement = Placement([Group("a"), Group("b", ("orders", "eu.*"))])
    shares = [placement.of(f"q{number}") for number in range(1000)]
    assert 400 < sum(shares) < 600
    assert placement.of("orders") == 1
    assert placement.of("eu.west") == 1
    assert placement.of("_ADMIN") == placement.of("_anything") == 0
    assert placement.of("_DMQ.b") == placement.of("_LOG.b") == 1


def test_a_name_that_two_groups_claim_is_the_firsts_and_then_the_others() -> None:
    directory = Directory(2)
    assert not bool(directory.is_complete)
    directory.replace(1, {"x": ("queue", "1")})
    assert directory.replace(0, {"x": ("topic", "0")}).add == {"x": Entry(0, "topic", "0")}
    assert directory.is_complete
    assert not directory.update(1, {"x": ("queue", "1")}, [])
    assert directory.update(0, {}, ["x"]).add == {"x": Entry(1, "queue", "1")}
    assert directory.update(1, {}, ["x"]).remove == ["x"]
    assert len(directory) == 0
    assert not directory.update(1, {}, ["x"])


def test_an_announcement_is_over_when_all_have_answered_or_are_gone() -> None:
    announcing, over = Announcing(), []
    first = announcing.begin({1, 2}, lambda: over.append("first"))
    announcing.begin({2}, lambda: over.append("second"))
    announcing.acknowledged(1, first)
    assert over == []
    announcing.lost(2)
    assert over == ["first", "second"]
    announcing.begin(set(), lambda: over.append("nobody"))
    assert over[-1] == "nobody"
    assert len(announcing) == 0


@pytest.mark.requirement("CLU-102")
def test_the_choke_closes_above_the_high_mark_and_opens_below_the_low_one() -> None:
    choke = Choke(100, 20)
    assert not choke.look([])
    assert not choke.look([100, 5])
    assert choke.look([5, 101])
    assert bool(choke.closed)
    assert not choke.look([21])
    assert choke.look([20])
    assert not choke.closed
    assert choke.times == 1


def test_who_serves_is_said_by_tags_and_the_later_epoch_counts() -> None:
    def peer(name: str, **groups: object) -> Peer:
        return Peer(name, 1, 0, tag={"kind": "mm", "groups": groups})

    old = {"role": "primary", "epoch": 3, "serving": True}
    new = {"role": "primary", "epoch": 4, "serving": True}
    silent = {"role": "primary", "epoch": 9, "serving": False}
    peers = [peer("m1", a=old, b=new), peer("m2", a=new, b=old, c=silent), Peer("cm", 1, 2, tag={"groups": "odd"})]
    view = View(1, {one.name: one for one in peers})
    assert serving_of(view) == {"a": Served("m2", 4), "b": Served("m1", 4)}


def test_the_names_of_a_group_that_is_away_outlive_the_agent(tmp_path: Path) -> None:
    site = Site(tmp_path, pins={"left": "a", "right": "b"})
    site.lead("a"), site.lead("b")
    site.settle()
    file = NamesFile(tmp_path / "names.json", site.agent)
    site.client(7, site.manager())
    site.producer(7, site.session(7, "b"), "right")
    file.keep(site.now_s)
    site.kill("b")
    site.start_agent()
    NamesFile(tmp_path / "names.json", site.agent)
    site.view()
    link = site.manager()
    assert not bool(link.is_known)
    site.wait(1.5)
    assert link.is_known
    site.client(8, link)
    assert site.ask(8, "locate", destination="right")["group"] == "b"
    assert site.ask(8, "locate", destination="unknown")["error"] == "no-message-manager"
    site.lead("b")
    site.settle()
    assert site.ask(8, "locate", destination="unknown")["kind"] == ""
    (tmp_path / "names.json").write_bytes(b"\x00nonsense")
    NamesFile(tmp_path / "names.json", site.agent)
