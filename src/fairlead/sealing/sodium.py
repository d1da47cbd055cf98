"""Everything that is asked of libsodium, through PyNaCl; no cipher, hash or signature comes from anywhere else.

A check that fails is `Broken`; whoever called knows what that means for whom.
"""

from __future__ import annotations

from typing import Any, Final

from fairlead.errors import ConfigError


class Broken(Exception):
    """Not what was encrypted or signed, or not with this key."""


try:
    from nacl import bindings, encoding, public, signing, utils
    from nacl import hash as hashes
    from nacl.exceptions import CryptoError
except ImportError:  # said when something is to be sealed or opened, and not where names are only imported

    class _Missing:
        def __getattr__(self, name: str) -> Any:
            raise ConfigError("sealed messages need PyNaCl: run `pip install 'fairlead[sealing]'`")

    bindings = encoding = public = signing = utils = hashes = _Missing()  # type: ignore[assignment]
    CryptoError = Broken  # type: ignore[assignment,misc]

KEY_BYTES: Final = 32  # of every kind of key: shared, X25519, Ed25519
NONCE_BYTES: Final = 24
TAG_BYTES: Final = 16
SIGNATURE_BYTES: Final = 64
ID_BYTES: Final = 16


def random(size: int) -> bytes:
    return utils.random(size)


def fingerprint(data: bytes, *, purpose: bytes) -> bytes:
    """BLAKE2b of 16 bytes; `purpose` (at most 16 bytes) keeps fingerprints of different things apart."""
    found: bytes = hashes.blake2b(data, digest_size=ID_BYTES, person=purpose, encoder=encoding.RawEncoder)
    return found


def digest(data: bytes, *, purpose: bytes) -> bytes:
    """BLAKE2b of 32 bytes."""
    found: bytes = hashes.blake2b(data, digest_size=32, person=purpose, encoder=encoding.RawEncoder)
    return found


def encrypt(plain: bytes, bound: bytes, *, nonce: bytes, key: bytes) -> bytes:
    """XChaCha20-Poly1305: ciphertext and tag; `bound` is not in it and has to be the same again when it is opened."""
    return bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(plain, bound, nonce, key)


def decrypt(sealed: bytes, bound: bytes, *, nonce: bytes, key: bytes) -> bytes:
    try:
        return bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(sealed, bound, nonce, key)
    except CryptoError:
        raise Broken from None


def box_public(box_secret: bytes) -> bytes:
    return bytes(public.PrivateKey(box_secret).public_key)


def sign_pair(seed: bytes) -> tuple[bytes, bytes]:
    """Public and secret key of Ed25519; the secret one is the seed and the public one, as libsodium wants it."""
    return bindings.crypto_sign_seed_keypair(seed)


def can_be_box_key(box_key: bytes) -> bool:
    """Not one of the few points for which X25519 gives the same secret with everybody."""
    try:
        bindings.crypto_box_beforenm(box_key, bytes(range(KEY_BYTES)))
    except CryptoError:
        return False
    return True


def agree(box_key: bytes, box_secret: bytes) -> bytes:
    """What two of an X25519 pair each can work out, and nobody else: a key for `wrap` and `unwrap`."""
    try:
        return bindings.crypto_box_beforenm(box_key, box_secret)
    except CryptoError:
        raise Broken from None


def wrap(plain: bytes, *, nonce: bytes, agreed: bytes) -> bytes:
    return bindings.crypto_box_easy_afternm(plain, nonce, agreed)


def unwrap(wrapped: bytes, *, nonce: bytes, agreed: bytes) -> bytes:
    try:
        return bindings.crypto_box_open_easy_afternm(wrapped, nonce, agreed)
    except CryptoError:
        raise Broken from None


def sign(data: bytes, sign_secret: bytes) -> bytes:
    return bindings.crypto_sign(data, sign_secret)[:SIGNATURE_BYTES]


def verify(data: bytes, signature: bytes, sign_key: bytes) -> None:
    try:
        signing.VerifyKey(sign_key).verify(data, signature)
    except (CryptoError, ValueError):
        raise Broken from None
