"""The bugs, each as a patch of the code that does it right. See `tests/processes/durable/plants.py`."""

from __future__ import annotations

from typing import Any

from fairlead.cluster import core, destination, dispatch, intake, parties, parts, records, stages


def plant(name: str) -> None:
    globals()[name]()


def confirm_before_sync() -> None:
    core.Core.after = lambda self, index, action: action()  # type: ignore[method-assign]


def double_delivery() -> None:
    right = dispatch._hand
    doubled: set[tuple[int, int, int]] = set()

    def hand(home: Any, cursor: Any, share: Any, priority: int, low: int, high: int, entry: Any, *, fit: bool) -> None:
        right(home, cursor, share, priority, low, high, entry, fit=fit)
        if low % 10 == 0 and (home.number, cursor.number, low) not in doubled:
            doubled.add((home.number, cursor.number, low))
            cursor.ready[priority].add(low, low + 1)

    dispatch._hand = hand


def fail_unforeseen() -> None:
    right = destination.Destination.on_want
    called = 0

    def on_want(self: destination.Destination, *arguments: Any) -> None:
        nonlocal called
        right(self, *arguments)
        called += 1
        if called % 5 == 0:
            raise ZeroDivisionError("planted")

    destination.Destination.on_want = on_want  # type: ignore[method-assign]


class Forgetful(dict[int, int]):
    """Accepted send numbers that are known only while a message is taken in."""

    taking = False

    def get(self, key: int, default: int = 0) -> int:  # type: ignore[override]
        return super().get(key, default) if self.taking else default


def forget_resend_keys() -> None:
    right, begin = intake.store, parties.Session.__init__

    def made(self: parties.Session, *arguments: Any, **facts: Any) -> None:
        begin(self, *arguments, **facts)
        if not isinstance(self.accepted, Forgetful):
            self.accepted = Forgetful(self.accepted)

    def store(home: Any, producer: Any, first: int, *rest: Any) -> None:
        producer.session.accepted[home.number] = first - 1
        Forgetful.taking = True
        try:
            right(home, producer, first, *rest)
        finally:
            Forgetful.taking = False

    parties.Session.__init__ = made  # type: ignore[method-assign]
    intake.store = store


def lose_acknowledgements() -> None:
    right = core.Core.append

    def append(self: core.Core, kind: int, head: Any, payload: Any = b"") -> tuple[int, int]:
        if kind == records.SETTLE:
            return self.last_index, 0
        return right(self, kind, head, payload)

    core.Core.append = append  # type: ignore[method-assign]


def visible_before_commit() -> None:
    right = parts.Parts.hide

    def hide(self: parts.Parts, batch: Any, transaction: int) -> None:
        right(self, batch, transaction)
        shown = intake.Batch(batch.producer, batch.first, batch.sent_ms, batch.id_first, batch.entries, batch.link)
        handle, batch.producer.handle = batch.producer.handle, 0  # nobody waits for a receipt
        accepted = dict(batch.producer.session.accepted)
        try:
            intake._store(self._home, shown)
        finally:
            batch.producer.handle = handle
            batch.producer.session.accepted.clear()
            batch.producer.session.accepted.update(accepted)

    parts.Parts.hide = hide  # type: ignore[method-assign]


def forget_batches() -> None:
    right = stages.Stages.recovered

    def recovered(self: stages.Stages) -> int:
        self.sinks.clear()
        return right(self)

    stages.Stages.recovered = recovered  # type: ignore[method-assign]


def give_up_staged_files() -> None:
    stages.Stages.needs = lambda self, first, last: False  # type: ignore[method-assign]
