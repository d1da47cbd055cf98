"""Which twin makes and reads columns: the compiled one, unless FAIRLEAD_PURE=1 or it was not built."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fairlead.wire.column_batch import EVERY, NAMES, Columns

__all__ = ["COMPILED", "EVERY", "NAMES", "ColumnBuilder", "Columns", "entries_of", "parse"]

if TYPE_CHECKING:
    from fairlead.wire.columns import ColumnBuilder, parse
    from fairlead.wire.entry_columns import entries_of

    COMPILED: bool
elif os.environ.get("FAIRLEAD_PURE", "0") not in ("", "0"):
    from fairlead.wire.columns import ColumnBuilder, parse
    from fairlead.wire.entry_columns import entries_of

    COMPILED = False
else:
    try:
        from fairlead.wire._columns import ColumnBuilder, parse
        from fairlead.wire._entry_columns import entries_of

        COMPILED = True
    except ImportError:  # the codec of frames says so, once for all
        from fairlead.wire.columns import ColumnBuilder, parse
        from fairlead.wire.entry_columns import entries_of

        COMPILED = False
