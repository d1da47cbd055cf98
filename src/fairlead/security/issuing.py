"""The server's own tokens: a key file of its own, and what is signed with it, where there is no identity provider.

The file is a JWKS of secrets, the newest first. That one signs; older ones are kept so that what they signed stays good
until it expires, and are dropped by the next but one rotation.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from fairlead.security.identity import named
from fairlead.security.keysets import BadKeys

__all__ = ["AUDIENCE", "ISSUER", "issue", "rotated"]

ISSUER: Final = "fairlead"
AUDIENCE: Final = "fairlead"
ALGORITHM: Final = "HS256"
SECRET_BYTES: Final = 48
KEPT: Final = 2  # the one that signs and the one before it


def rotated(before: bytes, secret: bytes) -> bytes:
    """The text of the key file with a new key at its front; `before` is the old text, or empty."""
    kid = hashlib.sha256(secret).hexdigest()[:12]
    text = base64.urlsafe_b64encode(secret).rstrip(b"=").decode()
    keys = [{"kty": "oct", "kid": kid, "alg": ALGORITHM, "use": "sig", "k": text}, *_keys(before)]
    return msgspec.json.format(msgspec.json.encode({"keys": keys[:KEPT]})) + b"\n"


def issue(
    keys: bytes, user: str, *, now_s: float, for_s: float, number: str, groups: Sequence[str] = (), tenant: str = ""
) -> str:
    """A token of this server for that user, signed with the newest key. `number` is its own, for logs."""
    newest = next(iter(_keys(keys)), None)
    if newest is None:
        raise BadKeys("there is no key in the file")
    claims: dict[str, Any] = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": named(user, "the user"),
        "iat": int(now_s),
        "nbf": int(now_s),
        "exp": int(now_s + for_s),
        "jti": number,
    }
    if groups:
        claims["groups"] = [named(group, "a group") for group in groups]
    if tenant:
        claims["tenant"] = named(tenant, "the tenant")
    secret = base64.urlsafe_b64decode(newest["k"] + "==")
    import jwt

    return jwt.encode(claims, secret, algorithm=ALGORITHM, headers={"kid": newest["kid"]})


def _keys(text: bytes) -> list[dict[str, str]]:
    if not text.strip():
        return []
    try:
        return msgspec.json.decode(text, type=dict[str, list[dict[str, str]]])["keys"]
    except (msgspec.DecodeError, KeyError) as error:
        raise BadKeys(f"this is no key file of `fairlead user token-key`: {error}") from None
