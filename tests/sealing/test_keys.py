from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import BadParameter
from fairlead.sealing import new_pair, new_shared
from fairlead.sealing.keys import KeyPair, check_name, pair_of, read_record, to_text

OLD = new_pair("AZ", since="2026-01-01")
NEW = new_pair("AZ", since="2026-02-02", older=OLD)


def test_a_record_says_all_and_nothing_secret() -> None:
    record = NEW.public.record()
    assert read_record(record) == NEW.public
    assert record.keys() == {"app", "id", "box", "sign", "since", "previous", "signature", "endorsement"}
    assert not {to_text(NEW.box_secret), to_text(NEW.sign_seed), to_text(NEW.sign_secret)} & set(record.values())
    assert "previous" not in OLD.public.record()


def test_secrets_are_not_shown() -> None:
    shared = new_shared("letters")
    for key, secrets in ((NEW, (NEW.box_secret, NEW.sign_seed)), (shared, (shared.secret,))):
        for secret in secrets:
            assert repr(secret)[2:-1] not in repr(key)
            assert secret.hex() not in repr(key)


def test_the_same_secrets_give_the_same_key() -> None:
    again = pair_of("AZ", NEW.box_secret, NEW.sign_seed, since="2026-02-02", older=OLD)
    assert again == NEW
    assert NEW.public.id != OLD.public.id


def test_a_successor_is_signed_by_the_one_it_replaces() -> None:
    assert NEW.public.endorsed_by(OLD.public)
    assert not NEW.public.endorsed_by(new_pair("AZ").public)
    assert not OLD.public.endorsed_by(NEW.public)
    claimed = new_pair("AZ").public.record() | {"previous": OLD.public.id.hex()}
    with pytest.raises(BadParameter, match="signature"):
        read_record(claimed)  # says so after it was signed


def test_a_pair_that_only_says_whom_it_replaces_is_not_a_successor() -> None:
    impostor = new_pair("AZ", older=KeyPair(public=OLD.public, box_secret=bytes(32), sign_seed=bytes(32)))
    assert impostor.public.previous == OLD.public.id
    assert read_record(impostor.public.record()) == impostor.public  # whole in itself
    assert not impostor.public.endorsed_by(OLD.public)


def test_a_successor_of_another_application_is_none() -> None:
    other = new_pair("AY", older=OLD)
    assert not other.public.endorsed_by(OLD.public)


@pytest.mark.parametrize("field", ["app", "id", "box", "sign", "since", "previous", "signature"])
def test_a_record_with_one_field_of_another_is_refused(field: str) -> None:
    other = new_pair("AY", since="2025-05-05", older=new_pair("AY")).public.record()
    with pytest.raises(BadParameter):
        read_record(NEW.public.record() | {field: other[field]})


@pytest.mark.parametrize("point", [bytes(32), b"\x01" + bytes(31)])
def test_points_that_keep_no_secret_are_refused(point: bytes) -> None:
    from fairlead.sealing import keys, sodium

    sign, secret = sodium.sign_pair(bytes(32))
    key = keys.PublicKey(app="AZ", id=keys._pair_id(point, sign), box=point, sign=sign)
    record = key.record() | {"signature": to_text(sodium.sign(keys._signed(key, b"own"), secret))}
    with pytest.raises(BadParameter, match="no secret"):
        read_record(record)


ANY = st.none() | st.integers() | st.text(max_size=40) | st.lists(st.integers(), max_size=2)


@settings(deadline=None)
@given(ANY | st.dictionaries(st.sampled_from([*NEW.public.record(), "other"]), ANY))
def test_any_record_at_all_is_refused_politely(record: Any) -> None:
    with pytest.raises(BadParameter):
        read_record(record)
    if isinstance(record, dict) and record:
        with pytest.raises(BadParameter):
            read_record(NEW.public.record() | record | {"app": 7})


@pytest.mark.parametrize("name", ["", " a", "a\n", "x" * 256, "\ud800", 7, None])
def test_what_is_not_a_name(name: Any) -> None:
    with pytest.raises(BadParameter):
        check_name(name)
