"""Which manager gets a new connection: the one with the fewest that is not draining (SRV-26, SRV-4)."""

from __future__ import annotations

from collections.abc import Sequence


def order(loads: Sequence[int], draining: Sequence[bool], full_at: int) -> list[int]:
    """Managers that may take a connection, best first; equals in the order of their numbers."""
    able = [manager for manager, load in enumerate(loads) if load < full_at and not draining[manager]]
    return sorted(able, key=lambda manager: loads[manager])
