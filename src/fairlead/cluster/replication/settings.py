"""The numbers of the member machine (spec, section 6)."""

from __future__ import annotations

import msgspec


class Settings(msgspec.Struct, frozen=True):
    """Durations are of local monotonic clocks; `margin_s` covers their drift over a lease."""

    detection_s: float = 3.0  # silence of the primary after which a backup stands
    lease_s: float = 3.0
    margin_s: float = 1.0
    removal_s: float = 5.0  # silence of a backup after which it is taken out of the in-sync set
    absence_s: float = 0.25  # the same for one that took no part in the choice of the primary
    min_copies: int = 2
    strict_copies: bool = False
    tick_s: float = 0.25  # how often a primary with nothing to say still speaks to its backups
    renew_s: float = 0.5  # how often it repeats its record to the votes
    retry_s: float = 0.1  # a candidate's question that was not answered is put again
    stagger_s: float = 0.1  # a member of the next rank stands so much later
    repair_s: float = 0.1  # the same wish to have records again is granted once in this time
    handover_s: float = 6.0  # a handover that is not done by then is given up
    append_bytes: int = 1 << 20
    window_bytes: int = 16 << 20  # unacknowledged records on their way to one backup
