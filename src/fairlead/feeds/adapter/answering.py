"""What a line may ask an adapter for: where to begin, a range again, an administrative message, a snapshot."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.feeds.adapter.numbering import Numbering
from fairlead.feeds.adapter.retained import Filled
from fairlead.feeds.adapter.sent_admins import SentAdmins
from fairlead.feeds.adapter.snapshot_state import SnapshotState
from fairlead.feeds.records import Place
from fairlead.feeds.words import FetchAdmin, Fetched, Fill, SnapshotAsk, SnapshotPart, Start, Unavailable

__all__ = ["cursor", "fetch", "fill", "snapshot"]


def cursor(start: Start, numbering: Numbering) -> int:
    """Where a line begins; reading goes on to what is live without a hole (STR-34, STR-74)."""
    retained = numbering.retained
    match start.at:
        case "new":
            return retained.end
        case "oldest":
            return retained.oldest
        case "number":
            return retained.cursor_at(start.number)
        case "positions":
            return retained.cursor_after({source: Place(*placed) for source, placed in start.positions.items()})


def fill(word: Fill, numbering: Numbering) -> Filled:
    """A range again, identically: by source position if a source is named, else by number."""
    if not word.source:
        return numbering.retained.by_number(word.first, word.last)
    processed = numbering.processed.get(word.source, 0)
    return numbering.retained.by_position(word.source, word.after[:2], word.to, processed)


def fetch(word: FetchAdmin, admins: SentAdmins, oldest: int) -> Fetched | Unavailable:
    found = admins.find(word.admin)
    if found is None:
        return Unavailable(id=word.id, why=f"administrative message {word.admin} is not known here", first=oldest)
    admin, source, place = found
    return Fetched(id=word.id, admin=admin, source=source, place=place)


def snapshot(word: SnapshotAsk, state: SnapshotState, numbering: Numbering) -> Iterator[SnapshotPart] | Unavailable:
    if state.is_too_big:
        why = "the feed has more keys than a snapshot may have"
    elif not state.is_complete:
        why = "this adapter has joined late and does not know the whole state yet"
    else:
        return state.parts(word.id, numbering.covered)
    return Unavailable(id=word.id, why=why, first=numbering.retained.first)
