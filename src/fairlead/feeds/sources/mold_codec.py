"""Which twin takes packets apart: the compiled one, unless FAIRLEAD_PURE=1 or it was not built."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

__all__ = ["COMPILED", "pack", "split"]

if TYPE_CHECKING:
    from fairlead.feeds.sources.mold import pack, split

    COMPILED: bool
elif os.environ.get("FAIRLEAD_PURE", "0") not in ("", "0"):
    from fairlead.feeds.sources.mold import pack, split

    COMPILED = False
else:
    try:
        from fairlead.feeds.sources._mold import pack, split

        COMPILED = True
    except ImportError:
        from fairlead.feeds.sources.mold import pack, split

        COMPILED = False
