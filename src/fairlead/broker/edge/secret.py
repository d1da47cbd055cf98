"""The secret that the processes of one server share: for tokens of moves, and for the registrar's login."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from fairlead.broker.resume import SECRET_BYTES


def server_secret(directory: Path) -> bytes:
    """Read from the store; whoever comes first makes it."""
    path = directory / "secret"
    if not path.exists():
        fresh = directory / f".secret.{secrets.token_hex(6)}"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
        try:
            path.hardlink_to(fresh)
        except FileExistsError:
            pass  # another process was first
        fresh.unlink()
    return path.read_bytes()
