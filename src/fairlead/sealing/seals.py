"""Sealing and opening one body, with the keys in hand. Which keys those are is the keyring's business.

Under a shared key the body is encrypted with it. For holders of key pairs it is encrypted with a fresh content key,
that one is put into a box for each of them, and the whole is signed: a holder cannot pass on the content key with
another body and have the other holders believe that it came from the sender.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairlead.errors import IntegrityError
from fairlead.sealing import envelope, sodium
from fairlead.sealing.envelope import PAIRS, SHARED, Envelope, Holder
from fairlead.sealing.keys import KeyPair, PublicKey, SharedKey

CHANGED = (
    "The message is not as its sender sealed it: its body or one of its delivery instructions was changed on the way. "
    "It is not delivered."
)


def seal_under(key: SharedKey, body: bytes, bound: bytes, *, random: Callable[[int], bytes] = sodium.random) -> bytes:
    nonce = random(sodium.NONCE_BYTES)
    head = envelope.head(SHARED, key.id, (), nonce)
    return head + sodium.encrypt(body, head + bound, nonce=nonce, key=key.secret)


def open_under(key: SharedKey, found: Envelope, bound: bytes) -> bytes:
    try:
        return sodium.decrypt(found.sealed, found.head + bound, nonce=found.nonce, key=key.secret)
    except sodium.Broken:
        raise IntegrityError(CHANGED) from None


def seal_for(
    holders: Sequence[PublicKey],
    body: bytes,
    bound: bytes,
    *,
    sender: KeyPair,
    agree: Callable[[PublicKey, KeyPair], bytes],
    random: Callable[[int], bytes] = sodium.random,
) -> bytes:
    """`agree` gives what `sodium.agree` does; the keyring remembers it, since it is the dear part."""
    content, nonce = random(sodium.KEY_BYTES), random(sodium.NONCE_BYTES)
    boxes = []
    for holder in holders:
        box_nonce = random(sodium.NONCE_BYTES)
        box = sodium.wrap(content, nonce=box_nonce, agreed=agree(holder, sender))
        boxes.append(Holder(holder.id, box_nonce, box))
    head = envelope.head(PAIRS, sender.public.id, tuple(boxes), nonce)
    sealed = sodium.encrypt(body, head + bound, nonce=nonce, key=content)
    return head + sodium.sign(_signed(head, bound, sealed), sender.sign_secret) + sealed


def open_for(box: Holder, found: Envelope, bound: bytes, *, sender: PublicKey, agreed: bytes) -> bytes:
    try:
        sodium.verify(_signed(found.head, bound, found.sealed), found.signature, sender.sign)
        content = sodium.unwrap(box.box, nonce=box.nonce, agreed=agreed)
        return sodium.decrypt(found.sealed, found.head + bound, nonce=found.nonce, key=content)
    except sodium.Broken:
        raise IntegrityError(CHANGED) from None


def _signed(head: bytes, bound: bytes, sealed: bytes) -> bytes:
    return b"fairlead seal 1\0" + sodium.digest(head + bound + sealed, purpose=b"fairlead.seal")
