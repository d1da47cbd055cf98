"""The primary's records on their way to one backup: pipelined within a window, sent again from where it asks."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from fairlead.cluster.replication.messages import Append

if TYPE_CHECKING:
    from fairlead.cluster.replication.log import Log
    from fairlead.cluster.replication.record import ControlRecord
    from fairlead.cluster.replication.settings import Settings

MANY = 1 << 30


class Feed:
    """`next` is the first record not sent yet; the log may be read from disk meanwhile (`is_reading`)."""

    def __init__(self, following: int, settings: Settings) -> None:
        self.next = following
        self.store = ""
        self.settings = settings
        self.is_reading = False
        self.sent_s = -1e9
        self._under_way: deque[tuple[int, int]] = deque()  # last index, bytes
        self._bytes = 0
        self._rewound = (0, -1e9)  # where to, when
        self._room = 0  # messages that may be under way: none until it has said where to begin, one until that fits

    def on_stored(self, store: str, upto: int, want: int, last: int, now_s: float) -> None:
        if store != self.store:  # another disk
            self.store, self._rewound, self._room = store, (0, -1e9), 0
        while self._under_way and self._under_way[0][0] <= upto:
            self._bytes -= self._under_way.popleft()[1]
        if not want:
            self._room = MANY
        elif want < self._rewound[0] or now_s - self._rewound[1] >= self.settings.repair_s:
            # Further back at once, as logs are compared; else only now and then: everything that was under way when
            # one message was lost wishes for the same.
            self._rewound = want, now_s
            self._room = 1
            self.next = min(want, last + 1)
            self._under_way.clear()
            self._bytes = 0

    def pump(
        self,
        log: Log,
        epoch: int,
        record: ControlRecord,
        safe: int,
        now_s: float,
        made: dict[int, Append] | None = None,
    ) -> list[Append]:
        """What may go now. `made`: of this moment, by first index; backups that are equally far get the same object."""
        appends: list[Append] = []
        made = {} if made is None else made
        self.is_reading = False
        while (
            len(self._under_way) < self._room
            and log.first <= self.next <= log.last
            and self._bytes < self.settings.window_bytes
        ):
            append = made.get(self.next)
            if append is None:
                batch = log.read(self.next, self.settings.append_bytes)
                if batch is None:
                    self.is_reading = True
                    break
                data = memoryview(batch.data)
                append = Append(epoch, record, safe, log.first, batch.first, batch.previous, batch.epochs, data)
                made[self.next] = append
            appends.append(append)
            last, size = append.batch.last, len(append.data)
            self.next = last + 1
            self._under_way.append((last, size))
            self._bytes += size
            self.sent_s = now_s
        return appends

    def sign_of_life(self, log: Log, epoch: int, record: ControlRecord, safe: int, now_s: float) -> Append:
        """No records: says where the next one would stand, so that a backup notices what it has missed."""
        first = self.next if self.next >= log.first else log.last + 1
        self.sent_s = now_s
        return Append(epoch, record, safe, log.first, first, log.epoch_at(first - 1), (), memoryview(b""))

    @property
    def under_way_bytes(self) -> int:
        return self._bytes
