"""Which twin reads blocks: the compiled one, unless FAIRLEAD_PURE=1 or it was not built."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fairlead.feeds.blocks import BLOCK_BYTES_MAX, BODY_BYTES_MAX, HEAD_BYTES, RECORD_BYTES, RECORDS_MAX, SNAPSHOT

__all__ = [
    "BLOCK_BYTES_MAX",
    "BODY_BYTES_MAX",
    "COMPILED",
    "HEAD_BYTES",
    "RECORDS_MAX",
    "RECORD_BYTES",
    "SNAPSHOT",
    "Block",
    "StreamMessage",
    "pack",
    "pack_columns",
    "with_first",
]

if TYPE_CHECKING:
    from fairlead.feeds.blocks import Block, StreamMessage, pack, pack_columns, with_first

    COMPILED: bool
elif os.environ.get("FAIRLEAD_PURE", "0") not in ("", "0"):
    from fairlead.feeds.blocks import Block, StreamMessage, pack, pack_columns, with_first

    COMPILED = False
else:
    try:
        from fairlead.feeds._blocks import Block, StreamMessage, pack, pack_columns, with_first

        COMPILED = True
    except ImportError:
        from fairlead.feeds.blocks import Block, StreamMessage, pack, pack_columns, with_first

        COMPILED = False
