"""Known answers: what was sealed once can be opened for ever."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from nacl.public import Box, PrivateKey
from nacl.public import PublicKey as PublicX25519
from nacl.secret import Aead

from fairlead.sealing import Keyring, SharedKey, seals, sodium
from fairlead.sealing.bound import written
from fairlead.sealing.keys import KeyPair, PublicKey, pair_of

BOUND = {"to": "AZ", "from": "AX", "id": "1"}
AX = pair_of("AX", b"\x01" * 32, b"\x02" * 32, since="2026-11-16")
AZ = pair_of("AZ", b"\x03" * 32, b"\x04" * 32)
SHARED = SharedKey("letters", b"\x05" * 32)


def counted(size: int) -> bytes:
    return bytes(range(size))


def agree(other: PublicKey, own: KeyPair) -> bytes:
    return sodium.agree(other.box, own.box_secret)


def test_ids_of_keys_stay_what_they_are() -> None:
    assert AX.public.id.hex() == "8b441605ba4015e42c63d3a61d6568df"
    assert SHARED.id.hex() == "1169460305fa8aff158fb9e942c6fdac"


def test_a_body_under_a_shared_key() -> None:
    sealed = seals.seal_under(SHARED, b"hello", written(BOUND), random=counted)
    assert sealed.hex() == (
        "89464c5345414c0a01011169460305fa8aff158fb9e942c6fdac000102030405060708090a0b0c0d"
        "0e0f1011121314151617bcea09db259b0080dd2cfab74be174e1e6167efc7a"
    )
    assert Keyring(shared=[SHARED]).unseal(sealed, instructions=BOUND).body == b"hello"


def test_a_body_for_an_application() -> None:
    sealed = seals.seal_for([AZ.public], b"hello", written(BOUND), sender=AX, agree=agree, random=counted)
    assert hashlib.sha256(sealed).hexdigest() == "cb1193733a6d6a006ddf83e99bc5b4b60561f34571a028f1bfc1bf32cfe19d76"
    az = Keyring([AZ])
    az.learn("AX", [AX.public.record()])
    assert az.unseal(sealed, instructions=BOUND).body == b"hello"


def test_the_format_is_as_the_page_says() -> None:
    """Read by hand, with other people's hashes and signatures where they have them."""
    sealed = seals.seal_for([AZ.public], b"hello", written(BOUND), sender=AX, agree=agree)
    assert sealed[:10] == bytes.fromhex("89464c5345414c0a 01 02")
    public = AX.public.box + AX.public.sign
    assert sealed[10:26] == hashlib.blake2b(public, digest_size=16, person=b"fairlead.pair").digest()
    assert sealed[26] == 1
    holder, box_nonce, box = sealed[27:43], sealed[43:67], sealed[67:115]
    assert holder == AZ.public.id
    head, nonce, signature, ciphertext = sealed[:139], sealed[115:139], sealed[139:203], sealed[203:]
    bound = head + written(BOUND)
    digest = hashlib.blake2b(bound + ciphertext, digest_size=32, person=b"fairlead.seal").digest()
    Ed25519PublicKey.from_public_bytes(AX.public.sign).verify(signature, b"fairlead seal 1\0" + digest)
    content = Box(PrivateKey(AZ.box_secret), PublicX25519(AX.public.box)).decrypt(box, box_nonce)
    assert Aead(content).decrypt(ciphertext, bound, nonce) == b"hello"
    assert SHARED.id == hashlib.blake2b(SHARED.secret, digest_size=16, person=b"fairlead.shared").digest()


def test_a_record_is_signed_as_the_page_says() -> None:
    newer = pair_of("AX", b"\x06" * 32, b"\x07" * 32, older=AX)
    record = newer.public.record()
    fields = {name: record.get(name) for name in ("app", "id", "box", "sign", "since", "previous")}
    for key, role, signature in ((newer, b"own", "signature"), (AX, b"successor", "endorsement")):
        signed = b"fairlead key 1 " + role + b"\0" + written(fields)
        Ed25519PublicKey.from_public_bytes(key.public.sign).verify(base64.b64decode(record[signature]), signed)


def test_the_sizes_on_the_page_are_right() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "sealing.md").read_text(encoding="utf-8")
    (sizes,) = re.findall(r"It costs (\d+) bytes under a shared key, and (\d+) and (\d+) for each holder else", page)
    body, bound = b"x" * 100, written(BOUND)
    assert len(seals.seal_under(SHARED, body, bound)) - len(body) == int(sizes[0])
    for count in (1, 3):
        sealed = seals.seal_for([AZ.public] * count, body, bound, sender=AX, agree=agree)
        assert len(sealed) - len(body) == int(sizes[1]) + count * int(sizes[2])
