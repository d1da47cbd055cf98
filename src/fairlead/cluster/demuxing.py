"""Which twin finds the frames of a link: the compiled one, unless FAIRLEAD_PURE=1 or it was not built."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

__all__ = ["COMPILED", "runs", "scan"]

if TYPE_CHECKING:
    from fairlead.cluster.demux import runs, scan

    COMPILED: bool
elif os.environ.get("FAIRLEAD_PURE", "0") not in ("", "0"):
    from fairlead.cluster.demux import runs, scan

    COMPILED = False
else:
    try:
        from fairlead.cluster._demux import runs, scan

        COMPILED = True
    except ImportError:
        from fairlead.cluster.demux import runs, scan

        COMPILED = False
