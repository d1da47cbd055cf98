"""How a server's own programs log in at it: as users that no users file has.

The registrar is an ordinary client with a reserved user name. Its password follows from the secret that lies in the
server's store, where only the server's own processes can read it, and is made anew with each store.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

REGISTRAR: Final = "_registrar"

_PURPOSE: Final = b"fairlead: login of the registrar"


def registrar_password(secret: bytes) -> str:
    return hmac.new(secret, _PURPOSE, hashlib.sha256).hexdigest()


def is_registrar(secret: bytes, user: str, password: str) -> bool:
    """Is this the registrar of the server that has this secret?"""
    right = registrar_password(secret).encode()
    return user == REGISTRAR and hmac.compare_digest(password.encode("utf-8", "replace"), right)
