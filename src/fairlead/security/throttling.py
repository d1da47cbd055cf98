"""How often somebody may try to log in: a few wrong logins are free, then each costs a pause that doubles (DIR-26).

Counted for each user and source, so that nobody locks out a user who comes from elsewhere. During a pause nothing is
checked, not even the right password: otherwise guessing would go on undisturbed. A certificate names nobody before it
is checked, so bad ones are counted for their source alone.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

FREE: Final = 3
PAUSE_FIRST_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0
FORGOTTEN_S: Final = 300.0  # after the last wrong one
REMEMBERED_MAX: Final = 10_000
# In place of a user, where that is not known before the proof was checked. No user can be called so.
TOKENS: Final = "\0token:"  # and whom the token names, unchecked
CERTIFICATES: Final = "\0certificate"


@dataclass(slots=True)
class _Attempts:
    wrong: int = 0
    last_s: float = 0.0
    until_s: float = 0.0


class Throttle:
    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self._max = remembered_max
        self._attempts: dict[tuple[str, str], _Attempts] = {}  # the one that was wrong longest ago first

    def __len__(self) -> int:
        return len(self._attempts)

    def wait_s(self, user: str, source: str, now_s: float) -> float:
        """How long until this user may try again from there; 0: now."""
        known = self._attempts.get((user, source))
        return 0.0 if known is None else min(max(known.until_s - now_s, 0.0), PAUSE_MAX_S)

    def wrong(self, user: str, source: str, now_s: float) -> None:
        key = user, source
        known = self._attempts.pop(key, None)
        if known is None or now_s - known.last_s > FORGOTTEN_S:
            known = _Attempts()
        known.wrong += 1
        known.last_s = now_s
        if known.wrong > FREE:
            known.until_s = now_s + min(PAUSE_FIRST_S * 2 ** min(known.wrong - FREE - 1, 30), PAUSE_MAX_S)
        self._attempts[key] = known
        if len(self._attempts) > self._max:
            del self._attempts[next(iter(self._attempts))]

    def right(self, user: str, source: str) -> None:
        self._attempts.pop((user, source), None)


def is_local(peer: str) -> bool:
    """Does it come from this host, so that nobody is on the way?"""
    if peer == "unix" or peer.startswith("unix:"):
        return True
    address = _address(peer)
    return address is not None and address.is_loopback


def source_of(peer: str) -> str:
    """What counts as one source: a host; of IPv6 the 2^64 addresses that whoever has one of them has."""
    address = _address(peer)
    if address is None:
        return peer
    if address.version == 6 and not address.is_loopback:
        return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(address)


def _address(peer: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The host of `HOST:PORT` or `[HOST]:PORT`; None of a local socket."""
    host, _, _ = peer.rpartition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
