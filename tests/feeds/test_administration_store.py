"""The administration's file: what was written is read again, and a damaged one is never taken for the truth."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.errors import ConfigError
from fairlead.feeds.administration.kept import Kept, KeptGroup, KeptMember, KeptPass
from fairlead.feeds.edge.administration.store import FILE, Store
from fairlead.feeds.source_relations import configured
from fairlead.feeds.words import Relation

from .administration_scene import Scene

KEPT = Kept(
    groups=(
        KeptGroup(
            stream="prices.emea",
            epoch=7,
            highest=8,
            active="a",
            threshold=8,
            promised=(8, "b"),
            members=(
                KeptMember(name="a", address="h:1", incarnation=5, preference=1, heartbeat_s=0.2, link_token="l"),
            ),
            passes=(KeptPass(token="t", client="c", user="u", expires_s=12.5),),
            revoked={"r": 3.5},
            barred_users=("eve",),
        ),
    ),
    lenient_until_s=99.0,
)


def test_what_was_written_is_read_and_only_its_owner_can(tmp_path: Path) -> None:
    path = tmp_path / "new" / FILE
    assert Store(path).read() is None
    Store(path).write(KEPT)
    store = Store(path)
    assert (store.read(), store.damaged) == (KEPT, "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    Store(path).write(Kept())
    assert Store(path).read() == Kept()
    assert [one.name for one in path.parent.iterdir()] == [FILE]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_put_aside(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / FILE
    Store(path).write(KEPT)
    whole = path.read_bytes()
    if data.draw(st.booleans()):
        broken = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        at = data.draw(st.integers(0, len(whole) - 1))
        broken = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    path.write_bytes(broken)
    store = Store(path)
    assert store.read() is None
    assert store.damaged
    assert not path.exists()
    assert path.with_name(f"{FILE}.damaged").read_bytes() == broken


@pytest.mark.parametrize("body", [b"", b"null", b'{"groups": [{"stream": 1}]}', b"\xff"])
def test_a_file_with_a_right_checksum_and_wrong_content_is_damaged_too(tmp_path: Path, body: bytes) -> None:
    import zlib

    path = tmp_path / FILE
    path.write_bytes(b"fairlead-streams 1 %08x\n" % zlib.crc32(body) + body)
    store = Store(path)
    assert store.read() is None
    assert store.damaged


def test_everything_the_machine_knows_for_good_survives() -> None:
    scene = Scene()
    scene.adapter("a"), scene.adapter("b")
    scene.client("one"), scene.client("two", "u")
    scene.order(do="revoke", user="u")
    scene.order(do="switch")
    scene.tick(1)
    before = scene.machine.kept(scene.now_s)
    scene.restart()
    after = scene.machine.kept(scene.now_s)
    assert msgspec.json.encode(after) == msgspec.json.encode(before)
    assert before.groups[0].epoch == 2


# --- Relations in the configuration ---------------------------------------------------------------------------------
def test_relations_as_an_operator_writes_them() -> None:
    lines = ["s: b equivalent a offset -5", "s: b sibling c", "t: y successor x start 10"]
    assert configured(lines) == {
        "s": {"b": (Relation(kind="equivalent", of="a", offset=-5), Relation(kind="sibling", of="c"))},
        "t": {"y": (Relation(kind="successor", of="x", start=10),)},
    }


@pytest.mark.parametrize(
    "line",
    [
        "",
        "s b sibling a",
        "s: b sibling",
        "s: b cousin a",
        "s: b equivalent a offset",
        "s: b equivalent a offset x",
        "s: b equivalent a slack 1",
        "s: b successor a start -1",
        ": b sibling a",
    ],
)
def test_a_line_that_is_none_is_refused_with_the_form(line: str) -> None:
    with pytest.raises(ConfigError, match="STREAM: SOURCE"):
        configured([line])
