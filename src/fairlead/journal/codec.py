"""Which twin encodes and scans records: the compiled one, unless FAIRLEAD_PURE=1 or it was not built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.runtime import extensions

__all__ = ["COMPILED", "Batch", "check_export", "check_rows", "export", "read_record", "scan", "walk"]

if TYPE_CHECKING or extensions.is_pure() or "fairlead.journal._records" in extensions.missing():
    from fairlead.journal.exchange import check_export, export, walk
    from fairlead.journal.records import Batch, check_rows, read_record, scan

    COMPILED = False
else:
    from fairlead.journal._records import Batch, check_export, check_rows, export, read_record, scan, walk

    COMPILED = True
