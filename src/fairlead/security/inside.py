"""How a server's own programs log in at it: as users that no users file has.

The registrar, the stream administration and the console are ordinary clients with reserved user names. Their passwords
follow from the secret that lies in the server's store, where only the server's own processes can read it, and are made
anew with each store.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

REGISTRAR: Final = "_registrar"
STREAMS: Final = "_streams"
CONSOLE: Final = "_console"

_PURPOSES: Final = {
    REGISTRAR: b"fairlead: login of the registrar",
    STREAMS: b"fairlead: login of the stream administration",
    CONSOLE: b"fairlead: login of the console",
}
USERS: Final = frozenset(_PURPOSES)


def password_of(secret: bytes, user: str) -> str:
    """Of one of `USERS`."""
    return hmac.new(secret, _PURPOSES[user], hashlib.sha256).hexdigest()


def is_own(secret: bytes, user: str, password: str) -> bool:
    """Is this a program of the server that has this secret?"""
    if user not in USERS:
        return False
    return hmac.compare_digest(password.encode("utf-8", "replace"), password_of(secret, user).encode())
