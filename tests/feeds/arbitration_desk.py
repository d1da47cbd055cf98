"""An Arbiter with scripted lines: adapters that send what a test says, by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from fairlead.feeds.arbitration import Arbiter
from fairlead.feeds.arbitration.asks import Ask, Say
from fairlead.feeds.block_codec import StreamMessage, pack
from fairlead.feeds.events import Event
from fairlead.feeds.records import ADMIN, ADMIN_VOID, MESSAGE, SOURCE_GAP, VOID, Place, Record
from fairlead.feeds.speech import encode
from fairlead.feeds.words import (
    Admin,
    Beat,
    Brokered,
    Fetched,
    Fill,
    LineOffer,
    Notice,
    Source,
    Start,
    Unavailable,
    Welcome,
)

Made = TypeVar("Made")


def message(sequence: int, previous: int | None = None, part: int = 1, parts: int = 1, body: bytes = b"") -> Record:
    back = sequence - 1 if previous is None else previous
    return Record(0, MESSAGE, "", sequence, part, parts, back, body or f"{sequence}.{part}".encode())


def messages(first: int, last: int) -> list[Record]:
    return [message(sequence) for sequence in range(first, last + 1)]


def void(sequence: int, previous: int | None = None) -> Record:
    return Record(0, VOID, "", sequence, 1, 1, sequence - 1 if previous is None else previous, b"")


def source_gap(first: int, last: int) -> Record:
    return Record(0, SOURCE_GAP, "", last, 1, 1, first - 1, b"")


def admin(name: str, after: int, part: int = 1, parts: int = 1, **more: Any) -> Record:
    word = Admin(id=name, kind=more.pop("kind", "text"), body=name.encode(), **more)
    return Record(0, ADMIN, "", after, part, parts, 0, encode(word))


def admin_void(name: str, after: int) -> Record:
    return Record(0, ADMIN_VOID, "", after, 1, 1, 0, name.encode())


class Desk:
    """Lines `a` (active) and `b` unless told otherwise. Numbers of a line go on by themselves."""

    def __init__(
        self,
        *,
        lines: Sequence[str] = "ab",
        up: Sequence[str] | None = None,
        sources: Sequence[Source] = (Source(id="s"),),
        positions: dict[str, tuple[int, int, int]] | None = None,
        wanted: dict[str, Place] | None = None,
        snapshots: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self.now_s = 100.0
        self.arbiter = Arbiter(stream="prices", positions=wanted, **options)
        self.out: list[StreamMessage | Event] = []
        self.asks: list[Ask] = []
        self.number = dict.fromkeys(lines, 1)
        self.names = list(lines)
        self.snapshots = snapshots
        self.epoch = 1
        self.arbiter.on_brokered(
            Brokered(
                stream="prices",
                epoch=1,
                lines=self.offers(lines),
                sources=tuple(sources),
                positions={"s": (500, 1, 1)} if positions is None else positions,
                threshold=8,
                heartbeat_s=0.2,
                token_life_s=3600,
            ),
            self.now_s,
        )
        for name in lines if up is None else up:
            self.up(name)
        self.collect()

    def offers(self, lines: Sequence[str]) -> tuple[LineOffer, ...]:
        return tuple(
            LineOffer(adapter=name, address=f"{name}:1", token="t", incarnation=1, role="backup" if index else "active")
            for index, name in enumerate(lines)
        )

    def notice(self, lines: Sequence[str], epoch: int, sources: Sequence[Source] = ()) -> None:
        self.epoch = epoch
        self.arbiter.on_notice(Notice(epoch=epoch, lines=self.offers(lines), sources=tuple(sources)), self.now_s)
        self.collect()

    def up(self, name: str) -> None:
        welcome = Welcome(
            adapter=name,
            stream="prices",
            incarnation=1,
            epoch=self.epoch,
            role="active",
            first=1,
            last=0,
            heartbeat_s=0.2,
            has_snapshots=name in self.snapshots,
        )
        self.arbiter.on_line_up(name, welcome, self.now_s)
        self.collect()

    def down(self, name: str) -> None:
        self.arbiter.on_line_down(name, "it died", self.now_s)
        self.collect()

    def send(
        self, line: str, records: Iterable[Record], source: str = "s", *, epoch: int | None = None, at: int = 0
    ) -> None:
        listed = list(records)
        first = at or self.number[line]
        self.number[line] = first + len(listed)
        self.arbiter.on_block(line, self.epoch if epoch is None else epoch, pack(source, first, listed), self.now_s)
        self.collect()

    def beat(self, line: str, **more: Any) -> None:
        last = more.pop("last", self.number[line] - 1)
        beat = Beat(**{"epoch": self.epoch, "incarnation": 1, "role": "active", "last": last, **more})
        self.arbiter.on_word(line, beat, self.now_s)
        self.collect()

    def word(self, line: str, word: Any) -> None:
        self.arbiter.on_word(line, word, self.now_s)
        self.collect()

    def answer(self, fill: Say, records: Iterable[Record], source: str = "s", *, first: int = 0) -> None:
        """What is asked, in full."""
        assert isinstance(fill.word, Fill)
        listed = list(records)
        if listed:
            block = pack(source, first or 10_000, listed)
            self.arbiter.on_fill(fill.adapter, fill.word.id, False, block, self.now_s)
        self.arbiter.on_fill(fill.adapter, fill.word.id, True, b"", self.now_s)
        self.collect()

    def refuse(self, say: Say) -> None:
        self.word(say.adapter, Unavailable(id=say.word.id, why="too old"))  # type: ignore[union-attr]

    def fetched(self, say: Say, name: str, after: int) -> None:
        word = Admin(id=name, kind="text", body=name.encode())
        self.word(say.adapter, Fetched(id=say.word.id, admin=word, source="s", place=(after, 1, 1)))  # type: ignore[union-attr]

    def pass_time(self, seconds: float, beating: Sequence[str] | None = None, **more: Any) -> None:
        """Time goes by, in steps; lines that are up beat."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s = min(self.now_s + 0.05, until_s)
            for name in self.names if beating is None else beating:
                self.beat(name, **more)
            self.arbiter.on_tick(self.now_s)
            self.collect()

    def collect(self) -> None:
        out, asks = self.arbiter.take()
        for item in out:
            self.out += item if isinstance(item, list) else [item]
        self.asks += asks

    def got(self) -> list[Any]:
        """What the program got since the last call: sequences, (sequence, part), ids of admins, and events."""
        shown: list[Any] = []
        for item in self.out:
            if not isinstance(item, StreamMessage):
                shown.append(item)
            elif item.admin is not None:
                shown.append(f"late {item.admin.id}" if item.late else item.admin.id)
            else:
                place = item.sequence if item.parts == 1 else (item.sequence, item.part)
                shown.append(("late", place) if item.late else place)
        self.out = []
        return shown

    def said(self, kind: type[Made]) -> list[Any]:
        """What was asked since the last call: asks of a kind, or words said of a kind (as Say)."""
        found = [ask for ask in self.asks if isinstance(ask.word if isinstance(ask, Say) else ask, kind)]
        self.asks = [ask for ask in self.asks if ask not in found]
        return found

    def fill(self) -> Say:
        return self.said(Fill)[-1]

    def starts(self) -> list[tuple[str, dict[str, tuple[int, int, int]]]]:
        return [
            (say.adapter, {name: place for name, place in say.word.positions.items() if name != "prices"})
            for say in self.said(Start)
        ]

    @property
    def counters(self) -> dict[str, int]:
        return self.arbiter.counters
