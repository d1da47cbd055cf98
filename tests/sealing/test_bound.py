from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import BadParameter
from fairlead.sealing.bound import BYTES_MAX, COUNT_MAX, instructions_of, written

VALUES = st.none() | st.text(max_size=12) | st.integers(-(2**70), 2**70) | st.binary(max_size=12)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


def test_the_bytes_are_these_and_stay_so() -> None:
    assert written({"to": "AZ", "n": 7, "id": b"\x01\x02"}) == bytes.fromhex(
        "0003"  # three of them, in the order of their names
        "02" "6964" "62" "00000002" "0102"
        "01" "6e" "69" "00000001" "37"
        "02" "746f" "73" "00000002" "415a"
    )  # fmt: skip
    assert written(None) == written({}) == b"\0\0"


def test_what_is_empty_counts_as_not_there() -> None:
    assert written({"to": "AZ", "correlation": "", "reply-to": None, "id": b""}) == written({"to": "AZ"})
    assert written({"n": 0}) != written({})


def test_the_instructions_of_a_message_have_fixed_names() -> None:
    bound = instructions_of(
        to="AZ", sender="AX", id="1", correlation="2", reply_to="inbox", content_type="text/plain", time=3
    )
    assert list(bound) == ["to", "from", "id", "correlation", "reply-to", "content-type", "time"]


@settings(deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=5), st.dictionaries(NAMES, VALUES, max_size=5))
def test_different_instructions_never_give_the_same_bytes(one: dict[str, Any], other: dict[str, Any]) -> None:
    def there(instructions: dict[str, Any]) -> dict[str, Any]:
        return {name: (type(value), value) for name, value in instructions.items() if value not in (None, "", b"")}

    assert (written(one) == written(other)) == (there(one) == there(other))


@settings(deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_the_order_they_are_given_in_does_not_matter(instructions: dict[str, Any]) -> None:
    assert written(dict(reversed(instructions.items()))) == written(instructions)


@pytest.mark.parametrize(
    "instructions",
    [
        {"n": 1.5},
        {"n": True},
        {"n": ["a"]},
        {"": "x"},
        {"n" * 256: "x"},
        {"n": "\ud800"},
        {"\ud800": "n"},
        {"n": 1 << 300},
        {"n": "x" * BYTES_MAX},
        {str(number): "x" for number in range(COUNT_MAX + 1)},
    ],
)
def test_what_cannot_be_bound_is_refused(instructions: dict[str, Any]) -> None:
    with pytest.raises(BadParameter):
        written(instructions)
