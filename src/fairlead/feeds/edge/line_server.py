"""An adapter's port: lets programs and other adapters in, hears what they say, and puts them out."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol

from fairlead.errors import ConfigError, RemoteProtocolError
from fairlead.feeds import words
from fairlead.feeds.adapter import Adapter
from fairlead.feeds.adapter.admission import Admission
from fairlead.feeds.edge.faults import Faults
from fairlead.feeds.edge.line import Line
from fairlead.feeds.edge.supply import Supply
from fairlead.feeds.edge.tls_door import TlsDoor
from fairlead.feeds.frames import word_frame
from fairlead.feeds.settings import ListenSettings, tcp
from fairlead.feeds.speech import ANY_LINK, TO_ADAPTER, AdapterHears, LinkHears

__all__ = ["LineServer", "Told"]

log = logging.getLogger("fairlead.feeds.lines")

LINES_OF_ONE_MAX: Final = 4
"""With one token; the oldest of them ends when there is one more: a program that dials again has lost the others."""
CLOSING_S: Final = 1.0
EARLY_S: Final = 1.0
"""How long whoever shows an unknown token waits for us to be told of it."""


class Told(Protocol):
    """Who is told what lines and links bring that is not about one line."""

    def on_epoch(self, epoch: int) -> None:
        """A program knows of this one."""

    def on_link_up(self, adapter: str, hello: words.LinkHello) -> None: ...
    def on_link_word(self, adapter: str, word: LinkHears) -> None: ...
    def on_link_down(self, adapter: str) -> None: ...


class LineServer:
    """Listens, lets in, sends."""

    def __init__(
        self,
        machine: Adapter,
        told: Told,
        admission: Admission,
        settings: ListenSettings,
        *,
        stream: str,
        heartbeat_s: float,
        faults: Faults | None = None,
    ) -> None:
        self._machine = machine
        self._told = told
        self._admission = admission
        self._settings = settings
        self._stream = stream
        self._heartbeat_s = heartbeat_s
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._door: TlsDoor | None = None
        self._waiting: dict[Line, asyncio.TimerHandle] = {}
        self._early: dict[Line, words.Hello | words.LinkHello] = {}  # of those: came before their token was known
        self._lines: dict[Line, None] = {}
        self._links: dict[str, Line] = {}
        self._is_linkless = False
        self._is_closed = False
        self.now_s: Callable[[], float] = self._loop.time
        self.supply = Supply(machine, settings.send_bytes, faults)
        self.send_bytes = settings.send_bytes
        self.stalled_s = settings.stalled_s
        self.counters = {"lines_accepted": 0, "lines_refused": 0}

    # Its life.

    async def listen(self, context: ssl.SSLContext | None) -> str:
        """Begin; the address it has."""
        address = tcp(self._settings.address, "[listen] address")
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        # The protocol is named, since asyncio sets TCP_NODELAY only where it is.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address.host, address.port))
            listener.listen(1024)
        except OSError as error:
            listener.close()
            raise ConfigError(f"cannot listen on {address}: {error.strerror or error}") from None
        if context is None:
            self._server = await self._loop.create_server(lambda: Line(self), sock=listener)
        else:
            bounds = self._settings
            self._door = TlsDoor(
                listener, context, lambda: Line(self), greeting_max=bounds.waiting_max, greeting_s=bounds.hello_s
            )
        return str(address._replace(port=listener.getsockname()[1]))

    async def close(self, why: str) -> None:
        """Tell everybody, and go."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        if self._door is not None:
            await self._door.close()
        for line in [*self._lines, *self._waiting, *self._links.values()]:
            line.close(why)
        deadline_s = self.now_s() + CLOSING_S
        while (self._lines or self._links or self._waiting) and self.now_s() < deadline_s:
            await asyncio.sleep(0.005)

    def facts(self) -> dict[str, int]:
        """For the counters of the adapter (STR-83)."""
        return {**self.counters, **self.supply.counters, "lines": len(self._lines), "lines_waiting": len(self._waiting)}

    # What lines say.

    def on_arrival(self, line: Line) -> None:
        if self._is_closed:
            line.close("this adapter is closing")
            return
        if len(self._waiting) >= self._settings.waiting_max:  # whoever has said nothing for longest makes room
            self._refuse(next(iter(self._waiting)), "server-full", "too many wait to be let in")
        timer = self._loop.call_later(self._settings.hello_s, self._too_late, line)
        self._waiting[line] = timer

    def on_lost(self, line: Line) -> None:
        self._stop_waiting(line)
        self._lines.pop(line, None)
        self.supply.forget(line)
        if line.is_link and self._links.get(line.who) is line:
            del self._links[line.who]
            self._told.on_link_down(line.who)

    def on_word(self, line: Line, payload: memoryview) -> None:
        if line.is_link:
            self._told.on_link_word(line.who, ANY_LINK.decode(payload))
            return
        word = TO_ADAPTER.decode(payload)
        if line.who:
            self._take(line, word)
        elif line in self._early:
            raise RemoteProtocolError("Nothing is said before the welcome.")
        elif isinstance(word, words.Hello):
            self._let_in(line, word)
        elif isinstance(word, words.LinkHello):
            self._let_link_in(line, word)
        else:
            raise RemoteProtocolError("The first word on a line is hello or link.")

    def on_room(self, line: Line) -> None:
        if not line.is_over and not line.is_link:
            self.supply.later(line)

    def _take(self, line: Line, word: AdapterHears) -> None:
        match word:
            case words.Start():
                self._hear_epoch(word.epoch)
                self.supply.start(line, word)
            case words.Stop():
                self.supply.stop(line)
            case words.Fill() | words.SnapshotAsk() | words.FetchAdmin():
                if len(line.answers) >= self._settings.questions_max:
                    line.refuse("too-many", f"{len(line.answers)} questions are not answered yet: ask fewer at a time")
                    return
                self.supply.ask(line, word)
            case _:
                raise RemoteProtocolError("Hello is said once.")

    def _let_in(self, line: Line, word: words.Hello) -> None:
        admitted = self._admission.find(word.token, self.now_s())
        if word.stream != self._stream:
            self._refuse(line, "unknown-stream", f"this is an adapter of {self._stream}, not of {word.stream}")
        elif admitted is None and line not in self._early:
            self._wait_for_token(line, word)
        elif admitted is None or admitted.is_link or admitted.client != word.client:
            self._refuse(line, "stream-refused", "the token is not valid here, or not any more: subscribe again")
        elif len(self._lines) >= self._settings.lines_max:
            self._refuse(line, "server-full", f"{len(self._lines)} lines are open already")
        else:
            self._stop_waiting(line)
            others = [one for one in self._lines if one.token == word.token]
            if len(others) >= LINES_OF_ONE_MAX:
                others[0].close("the same program has opened other lines")
            line.accept(word.client, word.token, is_link=False)
            self._lines[line] = None
            self.counters["lines_accepted"] += 1
            self._hear_epoch(word.epoch)
            line.say(self._machine.welcome())

    def _let_link_in(self, line: Line, word: words.LinkHello) -> None:
        admitted = self._admission.find(word.token, self.now_s())
        if word.stream != self._stream:
            self._refuse(line, "unknown-stream", f"this is an adapter of {self._stream}, not of {word.stream}")
        elif admitted is None and line not in self._early:
            self._wait_for_token(line, word)
        elif self._is_linkless or admitted is None or not admitted.is_link or admitted.client != word.adapter:
            self._refuse(line, "stream-refused", "the token is not valid here, or not any more")
        else:
            self._stop_waiting(line)
            before = self._links.pop(word.adapter, None)
            if before is not None:
                before.close("another link took its place")
                self._told.on_link_down(word.adapter)
            line.accept(word.adapter, word.token, is_link=True)
            self._links[word.adapter] = line
            line.say(self._machine.welcome())
            self._told.on_link_up(word.adapter, word)

    def on_admitted(self, token: str) -> None:
        """Let in whoever came with this token before we were told of it: the two ways are not equally long."""
        for line, word in [(line, word) for line, word in self._early.items() if word.token == token]:
            self._knock_again(line, word)

    def _wait_for_token(self, line: Line, word: words.Hello | words.LinkHello) -> None:
        self._early[line] = word
        self._loop.call_later(EARLY_S, self._knock_again, line, word)

    def _knock_again(self, line: Line, word: words.Hello | words.LinkHello) -> None:
        if line in self._waiting and not line.is_over:
            if isinstance(word, words.Hello):
                self._let_in(line, word)
            else:
                self._let_link_in(line, word)

    def _hear_epoch(self, epoch: int) -> None:
        if epoch > self._machine.epoch:
            self._told.on_epoch(epoch)

    def _refuse(self, line: Line, code: str, why: str) -> None:
        self.counters["lines_refused"] += 1
        self._stop_waiting(line)
        line.refuse(code, why)

    def _too_late(self, line: Line) -> None:
        if line in self._waiting:
            self._refuse(line, "timeout", f"nothing was said within {self._settings.hello_s:g} s")

    def _stop_waiting(self, line: Line) -> None:
        self._early.pop(line, None)
        timer = self._waiting.pop(line, None)
        if timer is not None:
            timer.cancel()

    # Sending.

    def say(self, adapter: str, word: words.Word) -> None:
        """To another adapter that has linked with us; empty: to all of them."""
        frame = word_frame(word)
        for name, line in list(self._links.items()):
            if adapter in ("", name):
                line.write(frame)
                if line.unsent_bytes > 16 * self.send_bytes:
                    line.end()  # it takes nothing in: it must begin anew

    def beat(self) -> None:
        """A heartbeat to each line that was sent nothing for an interval; lines that stall for too long end.

        Links have heartbeats of their own, from the machine.
        """
        now_s = self.now_s()
        frame = b""
        for line in [*self._lines, *self._links.values()]:
            if line.paused_s is not None:
                if now_s - line.paused_s > self.stalled_s:
                    line.end()
            elif not line.is_link and now_s - line.sent_s >= self._heartbeat_s:
                frame = frame or word_frame(self._machine.beat())
                line.write(frame)

    def revoke(self, token: str, why: str) -> None:
        """End what was let in with it, at once."""
        for line in [one for one in (*self._lines, *self._links.values()) if one.token == token]:
            line.refuse("stream-revoked", why or "the right to this stream was taken back")

    def tokens_in_use(self) -> set[str]:
        return {line.token for line in self._lines}

    def refuse_links(self, refused: bool) -> None:
        """For tests: no links until told otherwise."""
        self._is_linkless = refused
        if refused:
            self.cut_links()

    def cut_links(self) -> None:
        for line in list(self._links.values()):
            line.end()

    def end_without_right(self) -> None:
        """End the lines whose tokens have run out."""
        now_s = self.now_s()
        for line in [one for one in self._lines if self._admission.find(one.token, now_s) is None]:
            line.refuse("stream-refused", "the token has run out: subscribe again")

    def beat_all(self) -> None:
        """A heartbeat to every line at once: something in it must be known before the next block comes."""
        frame = word_frame(self._machine.beat())
        for line in list(self._lines):
            line.write(frame)
