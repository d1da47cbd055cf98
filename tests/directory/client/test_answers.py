"""Answers from the wire: read, or refused as a fault of the server; nothing in between."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.directory import answers
from fairlead.directory.answers import Answer, read_answer
from fairlead.errors import RemoteProtocolError

KINDS: list[type[Answer]] = [getattr(answers, name) for name in answers.__all__ if name != "read_answer"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted({field for kind in KINDS for field in kind.__struct_fields__})


@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_object_is_an_answer_or_a_fault_of_the_server(kind: type[Answer], facts: dict[str, Any]) -> None:
    try:
        found = read_answer("op", kind, facts)
    except RemoteProtocolError:
        return
    assert type(found) is kind
    assert isinstance(found.revision, int)


def test_fields_of_newer_servers_are_left_out() -> None:
    row = {"name": "A", "ip": "::1", "port": 1, "colour": "red"}
    found = read_answer("pick_broker", answers.Picked, {"revision": 1, "broker": row, "more": [1]})
    assert found.broker.name == "A"
    assert not found.stale


def test_a_status_keeps_everything() -> None:
    found = read_answer("status", answers.Status, {"revision": 4, "stale": True, "picks": 2})
    assert (found.revision, found.stale, found.facts["picks"]) == (4, True, 2)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(RemoteProtocolError, match=r"totals cannot be read: .*revision"):
        read_answer("totals", answers.Counted, {"total": 3})
