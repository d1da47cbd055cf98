"""The rates of users and tenants, kept where all managers of a server see them: a small file of numbers in the store.

A number says until when its owner has used up what it sent. Managers write without a lock: two that write at once lose
one of the two additions, so that for a moment somebody gets a little more than its rate.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final

from fairlead.security.users import Users

NAME: Final = "meters"
SLOTS: Final = 4096


def open_meters(store: Path) -> mmap.mmap:
    fd = os.open(store / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, SLOTS * 8)
        return mmap.mmap(fd, SLOTS * 8)
    finally:
        os.close(fd)


def slots_of(users: Users | None) -> dict[str, int]:
    """Whose rate is where: the same in every manager that has read the same file."""
    if users is None:
        return {}
    scopes = [name for name, quota in users.tenants.items() if quota.messages_per_s]
    scopes += [f"={name}" for name, user in users.entries.items() if user.quota.messages_per_s]
    return {scope: slot for slot, scope in enumerate(sorted(scopes)[:SLOTS])}
