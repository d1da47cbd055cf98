"""The client's side of an operation: asked of whoever has the line, answered in several frames if it must, or lost."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.client.durable.commands import Command
from fairlead.client.durable.road import Road
from fairlead.errors import ConnectionLost, NoDirectory
from fairlead.wire.codec import Parser, encode_frame
from fairlead.wire.durable import FLAG_MORE, KIND_ANSWER, KIND_NOTICE
from tests.client.durable_server import Ticket, Way


class Line:
    """A road without a server behind it."""

    def __init__(self) -> None:
        self.way = Way()
        self.road = Road(
            self.way,
            client_name="test",
            limit_s=60.0,
            now_ms=lambda: 0,
            later=lambda delay_s, action: None,
            wake=lambda: None,
            write=lambda: None,
        )
        self.road.on_connected()

    def ask(self, **fields: object) -> Ticket:
        ticket = Ticket()
        self.road.ask(Command("directory", dict(fields), ticket.reply, on_loss="fail", apart=True))
        return ticket

    def come(self, kind: int, body: bytes, *, flags: int = 0, number: int | None = None) -> None:
        number = self.way.number if number is None else number
        self.road.on_frames(Parser().feed(encode_frame(kind, flags, number, 0, 0, b"", b"", body)))

    def notice(self, **facts: object) -> None:
        self.come(KIND_NOTICE, msgspec.json.encode(facts), number=0)


@pytest.fixture
def line() -> Line:
    return Line()


def test_an_answer_in_pieces_is_one_answer(line: Line) -> None:
    first, body = line.ask(op="list_apps"), msgspec.json.encode({"apps": ["x" * 50]})
    number = line.way.number
    second = line.ask(op="list_brokers")
    line.come(KIND_ANSWER, body[:20], flags=FLAG_MORE, number=number)
    line.come(KIND_ANSWER, b'{"brokers":[]}')
    assert second.result == {"brokers": []}
    assert not first.done()
    line.come(KIND_ANSWER, body[20:40], flags=FLAG_MORE, number=number)
    line.come(KIND_ANSWER, body[40:], number=number)
    assert first.result == {"apps": ["x" * 50]}


def test_pieces_nobody_asked_for_are_not_kept(line: Line) -> None:
    for number in range(100):
        line.come(KIND_ANSWER, b"x" * 1000, flags=FLAG_MORE, number=number)
    assert not line.road._answers


def test_half_an_answer_is_forgotten_with_the_line(line: Line) -> None:
    ticket = line.ask(op="list_apps")
    line.come(KIND_ANSWER, b'{"apps":', flags=FLAG_MORE)
    line.road.on_disconnected()
    assert isinstance(ticket.error, ConnectionLost)
    assert not line.road._answers


def test_a_group_that_is_lost_does_not_take_the_question_with_it_for_its_client_manager_answers(line: Line) -> None:
    ticket = line.ask(op="list_apps")
    line.notice(event="interrupted", group="directory")
    assert not ticket.done()
    again = line.ask(op="list_apps")
    line.come(KIND_ANSWER, b'{"apps":[],"stale":true}')
    assert again.result["stale"]


def test_a_message_manager_that_is_lost_does(line: Line) -> None:
    ticket = line.ask(op="list_apps")
    line.notice(event="interrupted")
    assert isinstance(ticket.error, ConnectionLost)
    asked = line.ask(op="list_apps")
    assert not asked.done(), "it is asked all the same: the manager knows best"
    assert line.road.on_error(line.way.number, NoDirectory())
    assert isinstance(asked.error, NoDirectory)


def test_without_a_line_it_fails_at_once(line: Line) -> None:
    line.road.on_disconnected()
    assert isinstance(line.ask(op="list_apps").error, ConnectionLost)
