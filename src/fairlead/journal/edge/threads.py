"""Which twin writes: the compiled one, unless FAIRLEAD_PURE=1, it was not built, or a test stands before the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.journal.edge import writer as plain
from fairlead.runtime import extensions

if TYPE_CHECKING:
    from fairlead.journal.edge.files import Files
    from fairlead.journal.edge.options import Faults
    from fairlead.journal.edge.writer import Writer as Writer
elif extensions.is_pure() or "fairlead.journal.edge._writer" in extensions.missing():
    from fairlead.journal.edge.writer import Writer
else:
    from fairlead.journal.edge._writer import Writer


def open_writer(event: int, faults: Faults | None = None, files: Files | None = None) -> Writer:
    """A writing thread; `files` is given by tests only."""
    if files is not None:
        return plain.Writer(event, faults, files)
    return Writer(event, faults)
