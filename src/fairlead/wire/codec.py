"""Which twin does the framing: the compiled one, unless FAIRLEAD_PURE=1 or it was not built."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

__all__ = ["COMPILED", "Message", "Parser", "encode_frame", "encode_message", "encode_publishes"]

if TYPE_CHECKING:
    from fairlead.wire.frames import Message, Parser, encode_frame, encode_message, encode_publishes

    COMPILED: bool
elif os.environ.get("FAIRLEAD_PURE", "0") not in ("", "0"):
    from fairlead.wire.frames import Message, Parser, encode_frame, encode_message, encode_publishes

    COMPILED = False
else:
    try:
        from fairlead.wire._frames import Message, Parser, encode_frame, encode_message, encode_publishes

        COMPILED = True
    except ImportError:
        from fairlead.wire.frames import Message, Parser, encode_frame, encode_message, encode_publishes

        COMPILED = False
        logging.getLogger("fairlead.wire").warning(
            "The compiled frame codec is not built; the plain one is correct and many times slower."
        )
