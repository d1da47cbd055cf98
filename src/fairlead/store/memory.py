"""Which rings and arenas this process uses: the compiled ones, or their plain twins with FAIRLEAD_PURE=1.

All processes of a server must use the same: the mode is in every segment's header, and mixed modes refuse to start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.runtime import extensions
from fairlead.store import layout

__all__ = ["MODE", "Arena", "Consumer", "Producer"]

if TYPE_CHECKING or extensions.is_pure() or "fairlead.store._store" in extensions.missing():
    from fairlead.store.arena import Arena
    from fairlead.store.ring import Consumer, Producer

    MODE = layout.MODE_PLAIN
else:
    from fairlead.store._store import Arena, Consumer, Producer

    MODE = layout.MODE_COMPILED
