"""The keys that tokens are checked with: from a secret, a PEM file or a JWKS, each good for certain algorithms only.

What a key is for follows from the key, never from the token (RFC 8725, section 3.1): a public key is no secret, so
nobody can sign with it as if it were one. A set is read whole or refused whole, but keys of a JWKS that are for
something else, or of a kind this version does not know, are left out: providers put such in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

import msgspec

__all__ = ["ALGORITHMS", "BadKeys", "Key", "KeySet", "read_keys"]

Algorithm = Literal["HS256", "HS384", "HS512", "RS256", "PS256", "ES256", "EdDSA"]
ALGORITHMS: Final[tuple[Algorithm, ...]] = ("HS256", "HS384", "HS512", "RS256", "PS256", "ES256", "EdDSA")
KEYS_BYTES_MAX: Final = 262_144
KEYS_MAX: Final = 64
SECRET_BYTES: Final = {"HS256": 32, "HS384": 48, "HS512": 64}  # RFC 7518, section 3.2: as long as the hash at least
RSA_BITS_MIN: Final = 2048
KID_MAX: Final = 256


class BadKeys(ValueError):
    """These bytes are no keys one could rely on; the text says why, and has nothing of them in it."""


class Key(NamedTuple):
    """One key. `kid` is its name in tokens; None: it has none and may be meant by any."""

    kid: str | None
    algorithms: frozenset[str]
    material: Any

    def __repr__(self) -> str:
        return f"Key({self.kid!r}, {sorted(self.algorithms)})"  # a secret must not get into a log by way of an error


class KeySet:
    """All keys of one issuer."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self.keys = tuple(keys)

    def candidates(self, kid: str | None, algorithm: str) -> list[Key]:
        """The keys that may have signed it: those of that name, else those without one."""
        fitting = [key for key in self.keys if algorithm in key.algorithms]
        if kid is None:
            return fitting
        return [key for key in fitting if key.kid == kid] or [key for key in fitting if key.kid is None]


def read_keys(data: bytes) -> KeySet:
    """What a file or an answer holds; BadKeys when that is not one of the three."""
    if len(data) > KEYS_BYTES_MAX:
        raise BadKeys(f"{len(data)} bytes are more than the {KEYS_BYTES_MAX} that keys may take")
    text = data.strip()
    if text.startswith(b"{"):
        return _jwks(text)
    if text.startswith(b"-----BEGIN"):
        return KeySet([_pem(text)])
    if len(text) < SECRET_BYTES["HS256"]:
        raise BadKeys(f"a secret of {len(text)} bytes can be guessed: at least {SECRET_BYTES['HS256']} are needed")
    return KeySet([Key(None, _secret_algorithms(text), text)])


def _secret_algorithms(secret: bytes) -> frozenset[str]:
    return frozenset(name for name, size in SECRET_BYTES.items() if len(secret) >= size)


def _jwks(text: bytes) -> KeySet:
    try:
        document = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadKeys(f"not a JWKS: {error}") from None
    entries = document.get("keys", [document])
    if not isinstance(entries, list) or len(entries) > KEYS_MAX or not all(isinstance(one, dict) for one in entries):
        raise BadKeys(f"not a JWKS: `keys` is no list of up to {KEYS_MAX} keys")
    found = [key for entry in entries if (key := _jwk(entry)) is not None]
    if not found:
        raise BadKeys(f"none of the {len(entries)} keys can be used for tokens")
    return KeySet(found)


def _jwk(entry: dict[str, Any]) -> Key | None:
    """One key of a JWKS; None if it is for something else or cannot be used here."""
    import jwt  # not before there are keys: see tokens.py

    kid, algorithm = entry.get("kid"), entry.get("alg")
    if entry.get("use", "sig") != "sig" or not isinstance(kid, str | None) or len(kid or "") > KID_MAX:
        return None
    operations = entry.get("key_ops")
    if isinstance(operations, list) and not {"verify", "sign"} & {str(one) for one in operations}:
        return None
    try:
        if entry.get("kty") == "oct":
            secret = jwt.algorithms.HMACAlgorithm.from_jwk(entry)
            material, fitting = secret, _secret_algorithms(secret)
        else:
            material, fitting = _public(_asymmetric(entry))
    except (jwt.exceptions.PyJWTError, BadKeys, ValueError, TypeError, KeyError, ImportError, AttributeError):
        return None
    if isinstance(algorithm, str):
        fitting &= {algorithm}
    return Key(kid, fitting, material) if fitting else None


def _asymmetric(entry: dict[str, Any]) -> Any:
    """The key of a JWK; all these need the extra `tokens`."""
    import jwt

    makers = {"RSA": "RSAAlgorithm", "EC": "ECAlgorithm", "OKP": "OKPAlgorithm"}
    maker = getattr(jwt.algorithms, makers[entry.get("kty", "")])
    return maker.from_jwk(entry)


def _pem(text: bytes) -> Key:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        raise BadKeys("keys in PEM need the extra `tokens`: pip install 'fairlead[tokens]'") from None
    try:
        if b"BEGIN CERTIFICATE" in text:
            found: Any = x509.load_pem_x509_certificate(text).public_key()
        elif b"PRIVATE KEY" in text:
            found = serialization.load_pem_private_key(text, None)
        else:
            found = serialization.load_pem_public_key(text)
    except (ValueError, TypeError) as error:
        raise BadKeys(f"not a key in PEM without a passphrase: {str(error)[:120]}") from None
    except Exception as error:  # cryptography has errors of its own for algorithms it does not know
        raise BadKeys(f"not a key this version knows: {type(error).__name__}") from None
    material, fitting = _public(found)
    return Key(None, fitting, material)


def _public(key: Any) -> tuple[Any, frozenset[str]]:
    """The public half, and what it checks."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    public = key.public_key() if hasattr(key, "public_key") else key
    if isinstance(public, rsa.RSAPublicKey):
        if public.key_size < RSA_BITS_MIN:
            raise BadKeys(f"an RSA key of {public.key_size} bits can be broken: at least {RSA_BITS_MIN} are needed")
        return public, frozenset({"RS256", "PS256"})
    if isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, ec.SECP256R1):
        return public, frozenset({"ES256"})
    if isinstance(public, ed25519.Ed25519PublicKey):
        return public, frozenset({"EdDSA"})
    raise BadKeys("only RSA, P-256 and Ed25519 keys are taken")
