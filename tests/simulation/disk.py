"""A log as the member machine asks for it, on a disk that forgets what was not flushed."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from random import Random

import msgspec

from fairlead.cluster.replication.log import Batch

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[bytes])


class SimLog:
    """`chain[i]` is a digest of all records up to i: two logs with equal digests are equal so far."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.entries: list[bytes] = []
        self.epochs: list[int] = []
        self.chain: list[bytes] = [b""]
        self.first = 1
        self.durable = 0
        self.settled = 0
        self.flushing = 0
        self.aside: list[bytes] = []
        self.on_settled: Callable[[int], None] = lambda safe: None

    @property
    def last(self) -> int:
        return len(self.entries)

    @property
    def synced(self) -> int:
        return self.durable

    def epoch_at(self, index: int) -> int:
        if index == 0 and self.first == 1:
            return 0
        if index < self.first - 1 or not 0 < index <= self.last:
            return -1
        return self.epochs[index - 1]

    def push(self, epoch: int, entry: bytes) -> int:
        self.entries.append(entry)
        self.epochs.append(epoch)
        self.chain.append(blake2b(self.chain[-1] + entry, digest_size=10).digest())
        return self.last

    def take(self, batch: Batch, skip: int = 0) -> None:
        assert batch.first + skip == self.last + 1, "records are taken right behind the last"
        at = batch.first + skip
        for entry in _decoder.decode(batch.data)[skip:]:
            self.push(batch.epoch_at(at), entry)
            at += 1

    def read(self, first: int, most_bytes: int) -> Batch | None:
        assert self.first <= first <= self.last, "only what the log has is read"
        if first <= self.settled and self.rng.random() < 0.1:
            return None
        count = min(self.last - first + 1, max(1, most_bytes // 32))
        runs: list[tuple[int, int]] = []
        for epoch in self.epochs[first - 1 : first - 1 + count]:
            if runs and runs[-1][1] == epoch:
                runs[-1] = (runs[-1][0] + 1, epoch)
            else:
                runs.append((1, epoch))
        data = _encode(self.entries[first - 1 : first - 1 + count])
        return Batch(first, self.epoch_at(first - 1), tuple(runs), data)

    def cut(self, last: int) -> None:
        assert last >= self.settled, "what is settled is never cut"
        assert last >= self.first - 1
        self.aside += self.entries[last:]
        self.keep(last)

    def keep(self, last: int) -> None:
        del self.entries[last:], self.epochs[last:], self.chain[last + 1 :]
        self.durable, self.flushing = min(self.durable, last), min(self.flushing, last)

    def settle(self, safe: int) -> None:
        assert self.settled < safe <= self.last
        self.settled = safe
        self.on_settled(safe)

    # --- the disk

    def begin_flush(self) -> None:
        self.flushing = self.last

    def end_flush(self) -> bool:
        """True if more is durable than before. A cut meanwhile has lowered what was being flushed."""
        grown = self.flushing > self.durable
        self.durable, self.flushing = max(self.durable, self.flushing), 0
        return grown

    def shorten(self) -> None:
        """A checkpoint: old records are only in the state from now on."""
        self.first = max(self.first, self.rng.randint(self.first, min(self.settled, self.durable) + 1))

    def crash(self) -> None:
        """What was not flushed is lost, but for a part that happens to have been written; a torn record is none."""
        self.keep(self.rng.randint(self.durable, self.last))
        self.durable, self.flushing, self.settled = self.last, 0, self.first - 1

    def copy_to(self, last: int, rng: Random) -> SimLog:
        """A whole state up to that index, as another store takes it over."""
        other = SimLog(rng)
        other.entries, other.epochs = self.entries[:last], self.epochs[:last]
        other.chain = self.chain[: last + 1]
        other.durable = other.settled = last
        other.first = last + 1
        return other
