"""Which engine this process uses: the compiled one, or its plain twin with FAIRLEAD_PURE=1 or without a compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.store import layout, memory

__all__ = ["Traffic"]

if TYPE_CHECKING or memory.MODE == layout.MODE_PLAIN:
    from fairlead.broker.edge.traffic import Traffic
else:
    try:
        from fairlead.broker.edge._traffic import Traffic
    except ImportError:
        # The plain engine works over compiled rings and arenas too: they have the same methods.
        from fairlead.broker.edge.traffic import Traffic
