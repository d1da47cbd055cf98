"""Which twin reads and writes entries: the compiled one, unless FAIRLEAD_PURE=1 or it was not built."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

__all__ = [
    "COMPILED",
    "Delivered",
    "Entry",
    "deliveries",
    "details",
    "encode",
    "encode_many",
    "forged",
    "keys",
    "pick",
    "span",
    "survey",
]

from fairlead.wire.entries import Entry

if TYPE_CHECKING:
    from fairlead.wire.entries import (
        Delivered,
        deliveries,
        details,
        encode,
        encode_many,
        forged,
        keys,
        pick,
        span,
        survey,
    )

    COMPILED: bool
elif os.environ.get("FAIRLEAD_PURE", "0") not in ("", "0"):
    from fairlead.wire.entries import (
        Delivered,
        deliveries,
        details,
        encode,
        encode_many,
        forged,
        keys,
        pick,
        span,
        survey,
    )

    COMPILED = False
else:
    try:
        from fairlead.wire._entries import (
            Delivered,
            deliveries,
            details,
            encode,
            encode_many,
            forged,
            keys,
            pick,
            span,
            survey,
        )

        COMPILED = True
    except ImportError:  # the codec of frames says so, once for all
        from fairlead.wire.entries import (
            Delivered,
            deliveries,
            details,
            encode,
            encode_many,
            forged,
            keys,
            pick,
            span,
            survey,
        )

        COMPILED = False
