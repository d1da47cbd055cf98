from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import BadParameter, IntegrityError, KeyChanged, NoKey
from fairlead.sealing import Keyring, envelope, instructions_of, new_pair, new_shared, sodium
from fairlead.sealing.edge import files
from fairlead.sealing.edge.files import Keys
from fairlead.sealing.envelope import HOLDERS_MAX
from tests.sealing.parts import two

LETTER = instructions_of(
    to="AZ", sender="AX", id="0815", correlation="c", reply_to="inbox.A.1", content_type="text/plain", time=7
)


@pytest.mark.requirement("DIR-79", state="half", note="sealed and opened, with nothing in between")
@settings(deadline=None)
@given(st.binary(max_size=2000))
def test_what_is_sealed_for_an_application_only_that_one_opens(body: bytes) -> None:
    ax, az = two()
    sealed = ax.seal(body, to="AZ", instructions=LETTER)
    opened = az.unseal(sealed, instructions=LETTER)
    assert (opened.body, opened.sender, opened.under) == (body, "AX", "")
    assert opened.key == ax.pairs[0].public.id.hex()
    assert len(body) < 4 or body not in envelope.read(sealed).sealed
    for other in (Keyring(), ax, Keyring([new_pair("AZ")])):
        with pytest.raises(IntegrityError, match="not sealed for any key pair"):
            other.unseal(sealed, instructions=LETTER)


@settings(deadline=None)
@given(st.binary(max_size=2000))
def test_what_is_sealed_under_a_shared_key_all_who_have_it_open(body: bytes) -> None:
    ax, az = two("letters")
    sealed = ax.seal(body, under="letters", instructions=LETTER)
    opened = az.unseal(sealed, instructions=LETTER)
    assert (opened.body, opened.sender, opened.under) == (body, "", "letters")
    with pytest.raises(IntegrityError, match="not in this keyring"):
        Keyring().unseal(sealed, instructions=LETTER)


@pytest.mark.requirement("DIR-80", state="half", note="changed in hand, not in a broker's store")
@pytest.mark.parametrize("how", ["to", "under"])
@pytest.mark.parametrize("field", LETTER)
def test_a_delivery_instruction_that_was_changed_is_noticed(how: str, field: str) -> None:
    ax, az = two("AZ")
    az.learn("AY", Keyring([new_pair("AY")]).public())
    sealed = ax.seal(b"body", **{how: "AZ"}, instructions=LETTER)  # type: ignore[arg-type]
    assert az.unseal(sealed, instructions=LETTER).body == b"body"
    for value in ("AY", None, 8):
        with pytest.raises(IntegrityError):
            az.unseal(sealed, instructions=LETTER | {field: value})
    with pytest.raises(IntegrityError):
        az.unseal(sealed, instructions=LETTER | {"more": "x"})
    with pytest.raises(IntegrityError):
        az.unseal(sealed, instructions=LETTER | {"more": object()})  # type: ignore[dict-item]


def test_every_sealing_of_the_same_looks_different() -> None:
    ax, _ = two("letters")
    assert len({ax.seal(b"same", to="AZ")[-20:] for _ in range(50)}) == 50
    assert len({ax.seal(b"same", under="letters")[-20:] for _ in range(50)}) == 50


def test_a_message_is_from_whom_its_key_says() -> None:
    _, az = two()
    ay = Keyring([new_pair("AY")])
    ay.learn("AZ", az.public())
    az.learn("AY", ay.public())
    forged = ay.seal(b"I am AX", to="AZ", instructions=LETTER)
    with pytest.raises(IntegrityError, match="signed by AY"):
        az.unseal(forged, instructions=LETTER)


def test_a_holder_cannot_pass_another_body_on_to_the_others() -> None:
    """AY opens the letter to AY and AZ, and puts another body under the same boxes, with the same content key."""
    ax, az = two()
    ay = Keyring([new_pair("AY")])
    ax.learn("AY", ay.public())
    ay.learn("AX", ax.public())
    sealed = ax.seal(b"pay 10", to=["AY", "AZ"])
    assert az.unseal(sealed).body == ay.unseal(sealed).body == b"pay 10"
    found = envelope.read(sealed)
    agreed = sodium.agree(ax.pairs[0].public.box, ay.pairs[0].box_secret)
    content = sodium.unwrap(found.holders[0].box, nonce=found.holders[0].nonce, agreed=agreed)
    other = sodium.encrypt(b"pay 99", found.head + b"\0\0", nonce=found.nonce, key=content)
    with pytest.raises(IntegrityError):
        az.unseal(found.head + found.signature + other)


def test_whose_keys_have_to_be_learnt_before_it_can_be_opened() -> None:
    ax, az = Keyring([new_pair("AX")], [new_shared("s")]), Keyring([new_pair("AZ")])
    assert (ax.knows("AX"), ax.knows("AZ")) == (True, False)
    with pytest.raises(NoKey, match="fairlead key"):
        ax.seal(b"", to="AZ")
    ax.learn("AZ", az.public())
    assert ax.knows("AZ")
    sealed = ax.seal(b"body", to="AZ", instructions=LETTER)
    assert az.stranger(sealed, LETTER) == "AX"
    with pytest.raises(IntegrityError, match="fairlead key pin"):
        az.unseal(sealed, instructions=LETTER)
    az.learn("AX", ax.public())
    assert az.stranger(sealed, LETTER) == ""
    assert az.unseal(sealed, instructions=LETTER).body == b"body"
    assert az.stranger(ax.seal(b"", under="s", instructions=LETTER), LETTER) == ""
    with pytest.raises(IntegrityError):
        az.stranger(b"not sealed", LETTER)


def test_the_newest_key_seals_and_all_of_them_open() -> None:
    ax, az = two("letters")
    before = [ax.seal(b"1", to="AZ"), ax.seal(b"1", under="letters")]
    pairs = [*az.pairs, new_pair("AZ", older=az.pairs[-1])]
    shared = [*az.shared, new_shared("letters")]
    az = Keyring(pairs, shared, az.pins)
    ax = Keyring(ax.pairs, shared, ax.pins)
    ax.learn("AZ", az.public())
    after = [ax.seal(b"2", to="AZ"), ax.seal(b"2", under="letters")]
    assert [az.unseal(sealed).body for sealed in before + after] == [b"1", b"1", b"2", b"2"]
    assert az.unseal(after[1]).key == shared[-1].id.hex()
    newest_only = Keyring(pairs[1:], shared[1:], az.pins)
    assert [newest_only.unseal(sealed).body for sealed in after] == [b"2", b"2"]


def test_an_application_can_write_to_itself() -> None:
    ax, _ = two()
    assert ax.unseal(ax.seal(b"note", to="AX")).sender == "AX"


def test_what_cannot_be_sealed() -> None:
    ax, _ = two("letters")
    with pytest.raises(BadParameter, match="either"):
        ax.seal(b"")
    with pytest.raises(BadParameter, match="either"):
        ax.seal(b"", to="AZ", under="letters")
    with pytest.raises(NoKey, match="post"):
        ax.seal(b"", under="post")
    with pytest.raises(NoKey, match="AY"):
        ax.seal(b"", to="AZ", sender="AY")
    with pytest.raises(NoKey, match="any application"):
        Keyring(pins=ax.pins).seal(b"", to="AZ")
    both = Keyring([*ax.pairs, new_pair("AY")], pins=ax.pins)
    with pytest.raises(BadParameter, match="sender"):
        both.seal(b"", to="AZ")
    assert both.seal(b"", to="AZ", sender="AY")
    many = [new_pair(f"A{number}") for number in range(HOLDERS_MAX + 1)]
    for pair in many:
        ax.learn(pair.public.app, [pair.public.record()])
    with pytest.raises(BadParameter, match="more than"):
        ax.seal(b"", to=[pair.public.app for pair in many])


def make(path: Path, app: str) -> Keyring:
    files.update(path, lambda keys: Keys((*keys.pairs, new_pair(app)), keys.shared))
    return Keyring.load(path)


def test_what_is_pinned_on_first_use_is_still_known_after_a_restart(tmp_path: Path) -> None:
    make(tmp_path / "ax.keys", "AX").learn("AZ", Keyring([new_pair("AZ")]).public())
    again = Keyring.load(tmp_path / "ax.keys")
    assert again.knows("AZ")
    with pytest.raises(KeyChanged):
        again.learn("AZ", Keyring([new_pair("AZ")]).public())
    assert len(Keyring.load(tmp_path / "ax.keys").pins) == 1
    strict = Keyring.load(tmp_path / "ax.keys", pins=tmp_path / "other.pins", first_use=False)
    with pytest.raises(NoKey):
        strict.learn("AZ", Keyring([new_pair("AZ")]).public())
    assert not (tmp_path / "other.pins").exists()


def test_what_another_process_has_pinned_meanwhile_counts(tmp_path: Path) -> None:
    one, other = make(tmp_path / "ax.keys", "AX"), Keyring.load(tmp_path / "ax.keys")
    one.learn("AZ", Keyring([new_pair("AZ")]).public())
    with pytest.raises(KeyChanged):
        other.learn("AZ", Keyring([new_pair("AZ")]).public())


def test_many_can_pin_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    make(tmp_path / "ax.keys", "AX")
    published = {f"A{number}": Keyring([new_pair(f"A{number}")]).public() for number in range(12)}

    def learn(app: str) -> None:
        Keyring.load(tmp_path / "ax.keys").learn(app, published[app])

    threads = [threading.Thread(target=learn, args=(app,)) for app in published]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {pin.key.app for pin in Keyring.load(tmp_path / "ax.keys").pins} == published.keys()
