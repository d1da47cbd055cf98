"""Which twin goes through rows of an index: the compiled one, unless FAIRLEAD_PURE=1 or it was not built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.runtime import extensions

__all__ = ["COMPILED", "choose", "segments", "spans"]

if TYPE_CHECKING or extensions.is_pure() or "fairlead.journal._rows" in extensions.missing():
    from fairlead.journal.rows import choose, segments, spans

    COMPILED = False
else:
    from fairlead.journal._rows import choose, segments, spans

    COMPILED = True
