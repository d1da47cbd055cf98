from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import BadParameter, KeyChanged, NoKey
from fairlead.sealing import Pins, new_pair
from fairlead.sealing.keys import KeyPair
from fairlead.sealing.pins import PER_APP_MAX, PUBLISHED_MAX, Pin


def line(length: int, app: str = "AZ") -> list[KeyPair]:
    """Pairs that replaced each other."""
    pairs = [new_pair(app)]
    while len(pairs) < length:
        pairs.append(new_pair(app, older=pairs[-1]))
    return pairs


def records(*pairs: KeyPair) -> list[dict[str, str]]:
    return [pair.public.record() for pair in pairs]


CHAIN = line(5)
FIRST, SECOND, THIRD, *_ = CHAIN


def test_the_first_key_seen_is_pinned() -> None:
    pins = Pins().learn("AZ", records(FIRST))
    assert [(pin.key, pin.how) for pin in pins] == [(FIRST.public, "first use")]
    assert pins.learn("AZ", records(FIRST)) is pins


def test_where_first_use_is_not_trusted_it_has_to_be_pinned_by_hand() -> None:
    with pytest.raises(NoKey, match=FIRST.public.id.hex()):
        Pins().learn("AZ", records(FIRST), first_use=False)
    pins = Pins().pin(FIRST.public)
    assert [pin.how for pin in pins.learn("AZ", records(FIRST, SECOND), first_use=False)] == ["by hand", "successor"]


@pytest.mark.requirement("DIR-80", state="half", note="the rule of pinned keys, without a directory")
def test_another_key_that_no_pinned_one_has_signed_is_an_error_that_says_what_to_do() -> None:
    pins = Pins().learn("AZ", records(FIRST))
    stranger = new_pair("AZ")
    with pytest.raises(KeyChanged, match=rf"(?s){stranger.public.id.hex()}.*fairlead key pin"):
        pins.learn("AZ", records(FIRST, stranger))
    forged = new_pair("AZ", older=KeyPair(public=FIRST.public, box_secret=bytes(32), sign_seed=bytes(32)))
    with pytest.raises(KeyChanged):
        pins.learn("AZ", records(forged))
    pinned = pins.pin(stranger.public)
    assert pinned.learn("AZ", records(FIRST, stranger)) is pinned


def test_a_successor_of_a_pinned_key_is_trusted_and_the_newest_is_sealed_for() -> None:
    pins = Pins().learn("AZ", records(FIRST)).learn("AZ", records(FIRST, SECOND))
    assert pins.newest("AZ") == [SECOND.public]
    assert pins.get(FIRST.public.id) == FIRST.public  # what it signed earlier may still be under way
    with pytest.raises(KeyChanged):
        Pins().learn("AZ", records(FIRST)).learn("AZ", records(THIRD))  # who vouches for the second is not there


@settings(deadline=None)
@given(st.permutations(CHAIN), st.integers(0, 4))
def test_a_line_of_successors_is_followed_in_whatever_order_it_is_told(told: list[KeyPair], start: int) -> None:
    pins = Pins().learn("AZ", records(CHAIN[start])).learn("AZ", records(*[p for p in told if p in CHAIN[start:]]))
    assert pins.newest("AZ") == [CHAIN[-1].public]
    assert len(pins) == len(CHAIN) - start


@settings(deadline=None)
@given(st.permutations(CHAIN), st.integers(0, 4))
def test_what_a_pinned_key_has_replaced_is_neither_trusted_nor_strange(told: list[KeyPair], start: int) -> None:
    pins = Pins().pin(CHAIN[start].public).learn("AZ", records(*told))
    assert {key.id for key in pins.of("AZ")} == {pair.public.id for pair in CHAIN[start:]}
    with pytest.raises(KeyChanged):
        pins.learn("AZ", records(*told, new_pair("AZ")))


def test_the_oldest_of_very_many_successors_are_forgotten() -> None:
    many = line(PER_APP_MAX + 3)
    pins = Pins().learn("AZ", records(many[0]))
    for start in range(1, len(many), 20):
        pins = pins.learn("AZ", records(*many[start : start + 20]))
    assert pins.of("AZ") == [pair.public for pair in many[3:]]
    assert pins.newest("AZ") == [many[-1].public]


def test_two_keys_at_the_first_use_are_both_sealed_for() -> None:
    one, other = new_pair("AZ"), new_pair("AZ")
    assert Pins().learn("AZ", records(one, other)).newest("AZ") == [one.public, other.public]


def test_records_that_are_broken_or_of_somebody_else_count_as_not_there() -> None:
    broken = FIRST.public.record() | {"since": "never"}
    published = [broken, *records(new_pair("AY")), {}, {"id": 7}]
    with pytest.raises(NoKey, match="published no key"):
        Pins().learn("AZ", published)
    pins = Pins().learn("AZ", records(FIRST))
    assert pins.learn("AZ", published) is pins


def test_only_so_many_records_are_looked_at() -> None:
    published = [{}] * PUBLISHED_MAX + records(FIRST)
    with pytest.raises(NoKey):
        Pins().learn("AZ", published)


def test_by_hand_a_key_can_take_the_place_of_all_others() -> None:
    pins = Pins().learn("AZ", records(FIRST, SECOND)).learn("AY", records(*line(1, "AY")))
    fresh = new_pair("AZ")
    only = pins.pin(fresh.public, only=True)
    assert only.of("AZ") == [fresh.public]
    assert len(only.of("AY")) == 1
    assert only.unpin(fresh.public.id).of("AZ") == []


def test_pins_have_a_bound() -> None:
    public = FIRST.public
    with pytest.raises(BadParameter):
        Pins(
            Pin(type(public)(app="AZ", id=number.to_bytes(16, "big"), box=public.box, sign=public.sign), "by hand")
            for number in range(PER_APP_MAX + 1)
        )
