"""The three kinds of keys: shared ones, key pairs of an application, and the public half of somebody's pair.

A key pair is two: X25519 to open what is sealed for it, Ed25519 to sign what it seals. Its public half travels as a
record of texts (`PublicKey.record`), signed by itself and, when it replaces an older pair, by that one too: whoever
trusts the older one then trusts the new one (DIR-80).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import force_setattr

from fairlead.errors import BadParameter
from fairlead.sealing import sodium
from fairlead.sealing.bound import written

NAME_MAX: Final = 255
_FIELDS: Final = ("app", "id", "box", "sign", "since", "previous")  # what the signatures of a record are about
_ALL: Final = frozenset((*_FIELDS, "signature", "endorsement"))
_TEXT_MAX: Final = 512


class SharedKey(Struct, frozen=True):
    """One secret for all who have it: they can read and write what is sealed under it, and are not told apart."""

    name: str
    secret: bytes
    since: str = ""  # when it was made, for people
    id: bytes = field(default=b"")

    def __post_init__(self) -> None:
        force_setattr(self, "id", sodium.fingerprint(self.secret, purpose=b"fairlead.shared"))

    def __repr__(self) -> str:  # a secret must not get into a log by accident
        return f"SharedKey(name={self.name!r}, id={self.id.hex()})"


class PublicKey(Struct, frozen=True, kw_only=True):
    """The public half of an application's key pair."""

    app: str
    id: bytes
    box: bytes
    sign: bytes
    since: str = ""
    previous: bytes = b""  # id of the pair it replaces
    signature: bytes = b""  # of this pair
    endorsement: bytes = b""  # of the pair it replaces

    def record(self) -> dict[str, str]:
        """As it is published, shown and pinned."""
        texts = _texts(self) | {"signature": to_text(self.signature), "endorsement": to_text(self.endorsement)}
        return {name: text for name, text in texts.items() if text}

    def endorsed_by(self, older: PublicKey) -> bool:
        """Has this older pair of the same application signed it as its successor?"""
        if older.app != self.app or older.id != self.previous:
            return False
        try:
            sodium.verify(_signed(self, b"successor"), self.endorsement, older.sign)
        except sodium.Broken:
            return False
        return True


class KeyPair(Struct, frozen=True, kw_only=True):
    """A key pair of an application of ours; `public` is all that may leave this machine."""

    public: PublicKey
    box_secret: bytes
    sign_seed: bytes
    sign_secret: bytes = field(default=b"")

    def __post_init__(self) -> None:
        force_setattr(self, "sign_secret", sodium.sign_pair(self.sign_seed)[1])

    def __repr__(self) -> str:  # as above
        return f"KeyPair(app={self.public.app!r}, id={self.public.id.hex()})"


def new_shared(name: str, *, since: str = "", random: Callable[[int], bytes] = sodium.random) -> SharedKey:
    return SharedKey(check_name(name), random(sodium.KEY_BYTES), since)


def new_pair(
    app: str,
    *,
    since: str = "",
    older: KeyPair | None = None,
    random: Callable[[int], bytes] = sodium.random,
) -> KeyPair:
    """A fresh pair; `older` is the one it replaces, and signs it."""
    return pair_of(app, random(sodium.KEY_BYTES), random(sodium.KEY_BYTES), since=since, older=older)


def pair_of(app: str, box_secret: bytes, sign_seed: bytes, *, since: str = "", older: KeyPair | None = None) -> KeyPair:
    check_name(app)
    box, (sign, secret) = sodium.box_public(box_secret), sodium.sign_pair(sign_seed)
    public = PublicKey(
        app=app,
        id=_pair_id(box, sign),
        box=box,
        sign=sign,
        since=since,
        previous=older.public.id if older else b"",
    )
    signature = sodium.sign(_signed(public, b"own"), secret)
    endorsement = sodium.sign(_signed(public, b"successor"), older.sign_secret) if older else b""
    facts = {name: getattr(public, name) for name in PublicKey.__struct_fields__}
    facts |= {"signature": signature, "endorsement": endorsement}
    return KeyPair(public=PublicKey(**facts), box_secret=box_secret, sign_seed=sign_seed)


def read_record(record: object) -> PublicKey:
    """The key of a published record, if the record is whole and signed by it; BadParameter says what is wrong.

    This says nothing about whose key it is: see `pins`.
    """
    if not isinstance(record, Mapping) or not record.keys() <= _ALL:
        raise BadParameter("Not the record of a public key.")
    texts: dict[str, Any] = {name: record.get(name, "") for name in _ALL}
    if not all(isinstance(text, str) and len(text) <= _TEXT_MAX for text in texts.values()):
        raise BadParameter("Not the record of a public key: its fields are short texts.")
    key = PublicKey(
        app=check_name(texts["app"]),
        id=id_of(texts["id"]),
        box=of_text(texts["box"], sodium.KEY_BYTES),
        sign=of_text(texts["sign"], sodium.KEY_BYTES),
        since=check_since(texts["since"]),
        previous=id_of(texts["previous"]) if texts["previous"] else b"",
        signature=of_text(texts["signature"], sodium.SIGNATURE_BYTES),
        endorsement=of_text(texts["endorsement"], sodium.SIGNATURE_BYTES) if texts["endorsement"] else b"",
    )
    if key.id != _pair_id(key.box, key.sign):
        raise BadParameter(f"The record of key {key.id.hex()} has another key in it.")
    if not sodium.can_be_box_key(key.box):
        raise BadParameter(f"Key {key.id.hex()} is a value that keeps no secret.")
    try:
        sodium.verify(_signed(key, b"own"), key.signature, key.sign)
    except sodium.Broken:
        raise BadParameter(f"The record of key {key.id.hex()} was changed: its signature is wrong.") from None
    return key


def check_name(name: object) -> str:
    """The name of an application or of a shared key."""
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_MAX or not name.isprintable() or name != name.strip():
        raise BadParameter(f"{name!r:.80} is not a name: 1 to {NAME_MAX} printable characters, no spaces around it.")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadParameter("A name has characters that are none.") from None
    return name


def check_since(text: str) -> str:
    if len(text) > 40 or not text.isascii() or not (text.isprintable() or not text):
        raise BadParameter("The date of a key is not a date.")
    return text


def to_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def of_text(text: str, size: int) -> bytes:
    """Bytes of this size from their base64."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != size or to_text(data) != text:
        raise BadParameter(f"A key or signature has to be {size} bytes in base64.")
    return data


def id_of(text: str) -> bytes:
    """The id of a key from its 32 hexadecimal digits."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) != sodium.ID_BYTES or data.hex() != text:
        raise BadParameter(f"{text!r:.80} is not the id of a key: {2 * sodium.ID_BYTES} hexadecimal digits.")
    return data


def _pair_id(box: bytes, sign: bytes) -> bytes:
    return sodium.fingerprint(box + sign, purpose=b"fairlead.pair")


def _texts(key: PublicKey) -> dict[str, str]:
    return {
        "app": key.app,
        "id": key.id.hex(),
        "box": to_text(key.box),
        "sign": to_text(key.sign),
        "since": key.since,
        "previous": key.previous.hex(),
    }


def _signed(key: PublicKey, role: bytes) -> bytes:
    return b"fairlead key 1 " + role + b"\0" + written(_texts(key))
