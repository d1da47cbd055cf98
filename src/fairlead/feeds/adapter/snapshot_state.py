"""The state of a feed: the newest body of each key, and the positions it includes (STR-54).

An adapter that joins late knows only the keys that came since. It asks the active for its state and lays its own over
it as soon as it is at those positions itself: what it has of a key is then at least as new.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.feeds.made import Made
from fairlead.feeds.records import Place
from fairlead.feeds.words import Placed, SnapshotPart

__all__ = ["SnapshotState"]

KEYS_MAX = 1_000_000
PART_BODIES = 10_000
PART_BYTES = 1 << 20


class SnapshotState:
    def __init__(self) -> None:
        self._bodies: dict[bytes, bytes] = {}
        self._joined: dict[bytes, bytes] = {}  # of the active, as far as it has come
        self._joined_at: dict[str, Placed] | None = None  # it has come completely
        self.is_complete = False
        self.is_too_big = False

    def __len__(self) -> int:
        return len(self._bodies)

    def take(self, made: Made, begin: int) -> None:
        """The rows of a batch from `begin` on."""
        if made.keys is None or self.is_too_big:
            return
        ends = made.ends.tolist()
        starts = [0, *ends[:-1]]
        keys = made.keys
        bodies = map(made.data.__getitem__, map(slice, starts, ends))
        pairs = zip(keys, bodies, strict=True)
        for _ in range(begin):
            next(pairs)
        self._bodies.update(pairs)
        self._bodies.pop(b"", None)  # of voids
        self._check_size()

    def _check_size(self) -> None:
        if len(self._bodies) > KEYS_MAX:
            self._bodies.clear()
            self.is_too_big, self.is_complete = True, False

    def joining(self, part: SnapshotPart) -> None:
        """A part of the active's state."""
        if self.is_complete or len(part.keys) != len(part.bodies) or len(self._joined) > KEYS_MAX:
            return
        self._joined.update(zip(part.keys, part.bodies, strict=True))
        if part.is_last:
            self._joined_at = part.positions

    def forget_joining(self) -> None:
        """The link is down: what has come is of no use."""
        self._joined, self._joined_at = {}, None

    def settle(self, positions: dict[str, Place]) -> None:
        """Complete the state if this adapter has come to where the active was."""
        if self._joined_at is None or self.is_complete:
            return
        for source, placed in self._joined_at.items():
            if source in positions and tuple(positions[source]) < tuple(placed):
                return
        self._bodies = self._joined | self._bodies
        self.is_complete = True
        self.forget_joining()
        self._check_size()

    def parts(self, question: int, positions: dict[str, Place], *, with_keys: bool = False) -> Iterator[SnapshotPart]:
        """The state as it is at this call, in words that fit a frame."""
        return self._parts(question, dict(positions), dict(self._bodies), with_keys)

    @staticmethod
    def _parts(
        question: int, positions: dict[str, Placed], state: dict[bytes, bytes], with_keys: bool
    ) -> Iterator[SnapshotPart]:
        keys: list[bytes] = []
        bodies: list[bytes] = []
        size = 0
        for key, body in state.items():
            if bodies and (len(bodies) == PART_BODIES or size + len(key) + len(body) > PART_BYTES):
                yield SnapshotPart(
                    id=question, positions=positions, bodies=tuple(bodies), keys=tuple(keys) if with_keys else ()
                )
                keys, bodies, size = [], [], 0
            keys.append(key)
            bodies.append(body)
            size += len(key) + len(body)
        yield SnapshotPart(
            id=question, positions=positions, bodies=tuple(bodies), keys=tuple(keys) if with_keys else (), is_last=True
        )
