"""Delivery instructions: what is written is read, and whatever is read does no harm."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.directory.delivery.instructions import HOPS_MAX, Instructions, checked_headers, checked_recipient
from fairlead.errors import BadParameter
from fairlead.wire.properties import application_properties, encode_properties

names = st.text("ABCxyz019.-_ü", min_size=1, max_size=20)
values = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=30), st.binary())


@settings(deadline=None)
@given(
    st.builds(
        Instructions,
        to=names,
        id=names,
        queue=names,
        sender=names,
        label=names,
        reply_broker=names,
        hops=st.integers(0, HOPS_MAX),
        via=st.lists(names, max_size=HOPS_MAX).map(tuple),
        sealed=st.sampled_from(["", "text", "bytes"]),
        time=st.integers(0, 2**62),
        doubt=st.none() | st.tuples(names, names),
        again=st.booleans(),
    )
)
def test_they_come_out_as_they_went_in(instructions: Instructions) -> None:
    section = encode_properties(instructions.properties())
    assert Instructions.of(application_properties(section)) == instructions


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*sorted(Instructions._fields), "from", "reply-broker", "colour"]), values))
def test_whatever_somebody_wrote_is_read_without_harm(properties: dict[str, Any]) -> None:
    found = Instructions.of(properties)
    if found is None:
        assert not all(isinstance(properties.get(name), str) and properties[name] for name in ("to", "id", "queue"))
    else:
        assert found.to
        assert found.hops >= 0
        assert len(found.via) <= HOPS_MAX + 1
        found.onward("B").properties()


@pytest.mark.parametrize("hops", [-1, "1", True, 2.0, None])
def test_who_lies_about_hops_has_used_them_up(hops: Any) -> None:
    found = Instructions.of({"to": "AZ", "id": "1", "queue": "app.AZ", "hops": hops})
    assert found is not None
    assert found.hops == HOPS_MAX


def test_where_a_message_has_been_and_left_it_is_another_one() -> None:
    first = Instructions("AZ", "id", "app.AZ")
    to_c = first.onward("C")
    to_b = to_c.onward("B")
    back = to_b.onward("C")
    assert [one.key for one in (first, to_c, to_b, back)] == ["id", "id", "id", "id/3"]
    assert (back.hops, back.via) == (3, ("C", "B", "C"))
    assert back.onward("B").key == "id/4"


def test_what_a_broker_may_have_goes_to_the_queue_that_knows_its_id() -> None:
    """And is as it was before when it is there; elsewhere that queue means nothing."""
    doubtful = Instructions("AZ", "id", "app.AZ", doubt=("B", "carry.C::AZ"))
    assert [doubtful.queue_at(broker) for broker in "BC"] == ["carry.C::AZ", "app.AZ"]
    there = doubtful.onward("B")
    assert (there.doubt, there.via, there.key, there.hops) == (None, (), "id", 1)
    assert there.onward("C").via == ("C",)
    in_its_queue = Instructions("AZ", "id", "app.AZ", doubt=("B", "app.AZ")).onward("B")
    assert (in_its_queue.via, in_its_queue.key) == (("B",), "id")


@pytest.mark.parametrize("to", ["", None, 7, b"AZ", "@A", "a*", "a>", "a?", "a/b", "a\nb", "x" * 251, "\ud800"])
def test_nobody_is_no_recipient(to: Any) -> None:
    with pytest.raises(BadParameter):
        checked_recipient(to)


def test_a_recipient_and_headers_that_will_do() -> None:
    assert checked_recipient("AZ.eu-1 ü") == "AZ.eu-1 ü"
    assert checked_headers(None) == {}
    assert checked_headers({"colour": "red"}) == {"colour": "red"}
    for name in ("to", "from", "label", "id", "queue", "hops", "via", "reply-broker", "sealed", "time"):
        with pytest.raises(BadParameter, match=name):
            checked_headers({name: "x"})


def test_an_answer_goes_to_one_connection_only() -> None:
    assert Instructions("AX", "id", "temporary:1-1").is_answer
    assert not Instructions("AX", "id", "app.AX").is_answer
