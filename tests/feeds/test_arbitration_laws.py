"""Whatever two lines do: the program sees each message once and in order, or the exact range that it will not see."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.feeds.arbitration.asks import Dial, Drop, Say
from fairlead.feeds.block_codec import StreamMessage
from fairlead.feeds.events import Lost
from fairlead.feeds.records import Record
from fairlead.feeds.words import Fill, Start, Stop
from tests.feeds.arbitration_desk import Desk, admin, message, void

SHAPES = st.lists(st.sampled_from(["message", "message", "message", "parts", "void", "nothing", "admin"]), max_size=40)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "send", "lose", "again", "cut", "wait", "answer", "refuse", "partly"]),
        st.sampled_from("ab"),
        st.integers(1, 6),
    ),
    max_size=40,
)


def stream_of(shapes: list[str]) -> list[Record]:
    """What both adapters make of the source."""
    made, previous = [message(501)], 501
    for sequence, shape in enumerate(shapes, 502):
        if shape == "message":
            made.append(message(sequence, previous))
        elif shape == "parts":
            made += [message(sequence, previous, part, 3) for part in (1, 2, 3)]
        elif shape == "void":
            made.append(void(sequence, previous))
        elif shape == "admin":
            last = made[-1]
            made.append(admin(f"admin{sequence}", last.sequence, last.part, last.parts))
        if shape in ("message", "parts", "void"):
            previous = sequence
    return made


class Adapters:
    """Two lines on the same stream, each with a cursor, as an arbiter's asks move them."""

    def __init__(self, stream: list[Record], **options: str) -> None:
        self.stream = stream
        self.desk = Desk(**options)  # type: ignore[arg-type]
        self.cursor: dict[str, int | None] = {"a": None, "b": None}
        self.up = {"a", "b"}
        self.questions: list[Say] = []
        self.serve()

    def serve(self) -> None:
        asks, self.desk.asks = self.desk.asks, []
        for ask in asks:
            if isinstance(ask, Drop):
                self.up.discard(ask.adapter)
                self.cursor[ask.adapter] = None
            elif isinstance(ask, Dial) and ask.offer.adapter not in self.up and self.desk.now_s > 100:
                self.up.add(ask.offer.adapter)
                self.desk.up(ask.offer.adapter)
                self.serve()
            elif isinstance(ask, Say) and isinstance(ask.word, Start):
                self.cursor[ask.adapter] = self.start(ask.word)
            elif isinstance(ask, Say) and isinstance(ask.word, Stop):
                self.cursor[ask.adapter] = None
            elif isinstance(ask, Say) and isinstance(ask.word, Fill):
                self.questions.append(ask)

    def start(self, word: Start) -> int:
        if word.at == "number":
            return max(word.number - 1, 0)
        sequence, part, _parts = word.positions["s"]
        return next(
            (i for i, record in enumerate(self.stream) if (record.sequence, record.part) >= (sequence, part)),
            len(self.stream),
        )

    def do(self, what: str, line: str, count: int) -> None:
        desk, cursor = self.desk, self.cursor[line]
        if what in ("send", "lose", "again") and cursor is not None and line in self.up:
            begin = max(cursor - count, 0) if what == "again" else cursor
            sent = self.stream[begin : cursor + count]
            if what != "again":
                self.cursor[line] = cursor + len(sent)
            if sent and what != "lose":
                desk.send(line, sent if what == "send" else self.stream[begin:cursor] or sent[:0] or sent, at=begin + 1)
                if what == "again":
                    self.cursor[line] = max(cursor, begin + len(self.stream[begin:cursor] or sent))
        elif what == "cut" and line in self.up:
            desk.down(line)
            self.cursor[line] = None
            desk.up(line)
        elif what == "wait":
            desk.pass_time(count * 0.1)
        elif what in ("answer", "refuse", "partly") and self.questions:
            say = self.questions.pop(0)
            if say.adapter in self.up:
                self.answer(say, what)
        self.serve()

    def answer(self, say: Say, what: str) -> None:
        fill = say.word
        assert isinstance(fill, Fill)
        if fill.source:
            found = [
                (i + 1, record)
                for i, record in enumerate(self.stream)
                if (record.sequence, record.part) >= fill.after[:2] and record.sequence <= fill.to
            ]
        else:
            found = list(enumerate(self.stream, 1))[fill.first - 1 : fill.last]
        if what == "refuse" or not found:
            self.desk.refuse(say)
        else:
            found = found[len(found) // 2 :] if what == "partly" else found
            self.desk.answer(say, [record for _number, record in found], first=found[0][0])

    def finish(self) -> None:
        """Lines get well: all that is asked is answered, all that is left is sent."""
        for _ in range(200):
            while self.questions:
                self.do("answer", "a", 1)
            for line in "ab":
                self.do("send", line, 1000)
            last = len(self.stream)
            self.desk.pass_time(0.1, sorted(self.up), last=last, positions={"s": (self.stream[-1].sequence, 1, 1)})
            self.serve()
            if not self.questions and self.desk.arbiter.positions["s"][:2] >= self.stream[-1].place[:2]:
                break


def check(stream: list[Record], got: list[object], is_marking: bool) -> None:
    expected = [(record.sequence, record.part) for record in stream if record.kind == 1]
    seen, lost, late = [], set(), []
    for item in got:
        if isinstance(item, Lost):
            gone = {
                place
                for place in expected
                if (item.first, item.first_part) <= place <= (item.last, item.last_part or 99)
            }
            assert not gone & set(seen)
            assert not gone & lost
            lost |= gone
        elif isinstance(item, StreamMessage) and item.admin is None:
            (late if item.late else seen).append((item.sequence, item.part))
    assert is_marking or not late
    assert seen == sorted(set(seen))
    assert not set(seen) & set(late)
    assert len(late) == len(set(late))
    assert sorted({*seen, *late} | lost) == expected
    assert not lost & {*seen, *late}
    admins = [item.admin.id for item in got if isinstance(item, StreamMessage) and item.admin]
    assert sorted(admins) == sorted(f"admin{n}" for n in {a[5:] for a in admins})


@pytest.mark.requirement("STR-27", half="the adapters are scripted")
@pytest.mark.requirement("STR-39", half="the adapters are scripted")
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SHAPES, STEPS, st.sampled_from(["single", "both"]), st.sampled_from(["hold", "mark"]))
def test_once_in_order_or_an_exact_report(
    shapes: list[str], steps: list[tuple[str, str, int]], mode: str, gaps: str
) -> None:
    stream = stream_of(shapes)
    adapters = Adapters(stream, mode=mode, gaps=gaps)
    for step in steps:
        adapters.do(*step)
    adapters.finish()
    check(stream, list(adapters.desk.out), gaps == "mark")
    counters = adapters.desk.counters
    assert counters["delivered"] == sum(isinstance(x, StreamMessage) and x.kind == 1 for x in adapters.desk.out)
