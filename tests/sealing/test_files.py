from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import ConfigError
from fairlead.sealing import Keyring, Pins, new_pair, new_shared, texts
from fairlead.sealing.edge import files
from fairlead.sealing.edge.files import Keys
from fairlead.sealing.keys import to_text

FIRST = new_pair("AX", since="2026-11-16")
KEYS = Keys((FIRST, new_pair("AX", older=FIRST), new_pair('A"Z\\ü')), (new_shared("letters"), new_shared("letters")))
TEXT = texts.write_keys(*KEYS)


def test_keys_come_back_from_their_text() -> None:
    pairs, shared = texts.read_keys(TEXT, "x")
    assert (tuple(pairs), tuple(shared)) == KEYS


def test_pins_come_back_from_their_text() -> None:
    pins = Pins().learn("AX", Keyring(KEYS.pairs[:1]).public()).pin(KEYS.pairs[2].public)
    pins = pins.learn("AX", Keyring(KEYS.pairs[:2]).public())
    again = texts.read_pins(texts.write_pins(pins), "x")
    assert list(again) == list(pins)
    assert {pin.how for pin in again} == {"first use", "by hand", "successor"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[pair", "not valid TOML"),
        ("[[pairs]]\n", "pairs"),
        ("pair = 7\n", "write"),
        ("[[pair]]\napp = 7\n", "text"),
        ("[[pair]]\nother = ''\n", "other"),
        ("[[pair]]\napp = 'AX'\n", "number 1"),
        ("[[shared]]\nname = 'x'\nkey = 'AAAA'\n", "base64"),
        (TEXT.replace(FIRST.public.id.hex(), "00" * 16, 1), "was changed"),
        (TEXT.replace(KEYS.shared[0].id.hex(), "00" * 16), "was changed"),
        ("".join(TEXT.partition("[[pair]]")[1:]).replace("[[pair]]", "[[shared]]", 1), "app"),
    ],
)
def test_a_file_that_is_none_is_refused_by_its_name_and_without_its_secrets(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        texts.read_keys(text, "ax.keys")
    assert "ax.keys" in str(caught.value)
    assert to_text(FIRST.box_secret) not in str(caught.value)


def test_a_pair_whose_predecessor_is_missing_is_refused() -> None:
    with pytest.raises(ConfigError, match="not before it"):
        texts.read_keys(texts.write_keys(KEYS.pairs[1:], ()), "x")


@settings(deadline=None)
@given(st.text(max_size=200) | st.text(max_size=60).map(lambda text: "[[pinned]]\nhow = 'by hand'\n" + text))
def test_any_text_at_all_is_read_or_refused(text: str) -> None:
    for read in (texts.read_keys, texts.read_pins):
        try:
            read(text, "x")
        except ConfigError:
            pass


def test_a_key_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ax.keys"
    before = os.umask(0)
    try:
        files.update(path, lambda keys: KEYS)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert files.read(path) == KEYS
    assert [name.name for name in path.parent.iterdir()] == ["ax.keys"]
    for mode in (0o640, 0o604, 0o620, 0o601):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 600"):
            Keyring.load(path)


def test_pins_that_others_can_change_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ax.keys.pins"
    files.update_pins(path, lambda pins: pins.pin(FIRST.public))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    assert len(files.read_pins(path)) == 1
    path.chmod(0o662)
    with pytest.raises(ConfigError, match="others can change"):
        files.read_pins(path)


def test_a_file_that_is_not_there_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fairlead key new"):
        Keyring.load(tmp_path / "ax.keys")
    with pytest.raises(ConfigError, match="cannot read"):
        Keyring.load(tmp_path)


def test_a_file_of_anything_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ax.keys"
    path.write_bytes(b"\xff\xfe")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="not text"):
        Keyring.load(path)
    os.truncate(path, files.BYTES_MAX + 1)
    with pytest.raises(ConfigError, match="too large"):
        Keyring.load(path)


def test_where_modes_and_locks_mean_nothing_it_works_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    path = tmp_path / "ax.keys"
    files.update(path, lambda keys: KEYS)
    path.chmod(0o666)
    assert files.read(path) == KEYS
    files.update_pins(files.pins_beside(path), lambda pins: pins.pin(FIRST.public))
    assert len(Keyring.load(path).pins) == 1


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "ax.keys"
    files.update(path, lambda keys: KEYS)

    def fail(keys: Keys) -> Keys:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        files.update(path, fail)
    assert files.read(path) == KEYS
    assert len(list(tmp_path.iterdir())) == 1
