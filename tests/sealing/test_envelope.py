from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import FairleadError, IntegrityError
from fairlead.sealing import envelope
from fairlead.sealing.envelope import HOLDERS_MAX, MAGIC, PAIRS, SHARED, Holder
from tests.sealing.parts import two

AX, AZ = two("letters")
WHOLE = [AX.seal(b"body", to="AZ"), AX.seal(b"body", under="letters")]


def test_the_parts_are_read_back_as_they_were_written() -> None:
    holders = tuple(Holder(bytes([n]) * 16, bytes([n]) * 24, bytes([n]) * 48) for n in range(1, HOLDERS_MAX + 1))
    for kind, some in ((SHARED, ()), (PAIRS, holders[:1]), (PAIRS, holders)):
        head = envelope.head(kind, b"k" * 16, some, b"n" * 24)
        signature = b"s" * 64 if kind == PAIRS else b""
        found = envelope.read(head + signature + b"c" * 20)
        assert found == (kind, b"k" * 16, some, b"n" * 24, head, signature, b"c" * 20)


def test_a_byte_too_few_is_noticed_wherever_it_is_missing() -> None:
    for whole in WHOLE:
        shortest = whole[: len(whole) - len(b"body")]
        envelope.read(shortest)
        for size in range(len(shortest)):
            with pytest.raises(IntegrityError):
                envelope.read(shortest[:size])


@pytest.mark.parametrize("count", [0, HOLDERS_MAX + 1, 255])
def test_the_number_of_holders_has_bounds(count: int) -> None:
    start = MAGIC + bytes((1, PAIRS)) + b"k" * 16
    with pytest.raises(IntegrityError, match="holders"):
        envelope.read(start + bytes((count,)) + b"x" * 100_000)


def test_what_another_version_wrote_is_said_to_be_that() -> None:
    for changed in (MAGIC + b"\x02\x01", MAGIC + b"\x01\x03"):
        with pytest.raises(IntegrityError, match="newer Fairlead"):
            envelope.read(changed + b"x" * 200)


def test_a_sealed_body_is_known_by_its_first_bytes() -> None:
    assert all(envelope.looks_sealed(whole) for whole in WHOLE)
    assert not envelope.looks_sealed(b"")
    assert not envelope.looks_sealed(MAGIC[:-1])


@settings(deadline=None)
@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: MAGIC + b"\x01" + tail))
def test_any_bytes_at_all_are_an_integrity_error_and_nothing_else(data: bytes) -> None:
    try:
        found = envelope.read(data)
    except IntegrityError:
        pass
    else:
        assert found.head + found.signature + found.sealed == data
    with pytest.raises(IntegrityError):
        AZ.unseal(data)


@settings(deadline=None)
@given(st.sampled_from(WHOLE), st.data())
def test_a_sealed_body_that_was_damaged_is_never_opened(whole: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(whole) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "add", "drop"]))
    damaged = {
        "flip": whole[:at] + bytes((whole[at] ^ data.draw(st.integers(1, 255)),)) + whole[at + 1 :],
        "cut": whole[:at],
        "add": whole[:at] + data.draw(st.binary(min_size=1, max_size=3)) + whole[at:],
        "drop": whole[:at] + whole[at + 1 :],
    }[how]
    if damaged == whole:
        return
    with pytest.raises(FairleadError) as caught:
        AZ.unseal(damaged)
    assert type(caught.value) is IntegrityError
