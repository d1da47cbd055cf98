"""The backup's side of the link: dials the active adapter, as told by the administration, again and again."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from fairlead.errors import ConfigError, ProtocolError, RemoteProtocolError
from fairlead.feeds.frames import ACCEPTED_BYTES_MAX, WORD, FrameParser, word_frame
from fairlead.feeds.speech import ANY_LINK, LinkHears
from fairlead.feeds.words import LinkHello, Refusal, Welcome
from fairlead.runtime.addresses import TcpAddress, parse_listen

if TYPE_CHECKING:
    from msgspec import Struct

__all__ = ["TLS_SCHEME", "LinkDialler", "Target"]

log = logging.getLogger("fairlead.feeds.link")

TLS_SCHEME: Final = "fairleads://"
CONNECT_S: Final = 5.0
SILENT_S: Final = 2.0
"""An active adapter that says nothing for so long is dialled anew; it says something with each heartbeat."""
PAUSE_S: Final = (0.05, 1.0)
UNSENT_BYTES_MAX: Final = 4 << 20


class Target(NamedTuple):
    """The active adapter, and what lets us in there."""

    name: str
    address: str
    token: str


class LinkDialler:
    """Keeps one link to `target`; `aim` changes it, None ends it."""

    def __init__(
        self,
        hello: Callable[[str], LinkHello],
        *,
        up: Callable[[str], None],
        heard: Callable[[str, LinkHears], None],
        down: Callable[[str], None],
        tls_ca: str = "",
        silent_s: float = SILENT_S,
    ) -> None:
        self._hello = hello
        self._up, self._heard, self._down = up, heard, down
        self._tls_ca = tls_ca
        self._silent_s = max(silent_s, SILENT_S)
        self._changed = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._told = ""
        self.target: Target | None = None
        self.is_up = False
        self.is_cut = False

    def aim(self, target: Target | None) -> None:
        """Link to this one from now on."""
        if target != self.target:
            self.target = target
            self._told = ""
            self._hang_up()

    def cut(self, is_cut: bool) -> None:
        """For tests: no link until told otherwise."""
        self.is_cut = is_cut
        self._hang_up()

    def say(self, word: Struct) -> None:
        """Say it if there is a link; an active that takes nothing in is dialled anew."""
        if self._writer is None or not self.is_up or self._writer.transport.is_closing():
            return  # what is closing has not been read to its end yet; writing to it would raise
        if self._writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self._hang_up()
            return
        self._writer.write(word_frame(word))

    async def run(self) -> None:
        """Until it is cancelled."""
        pause_s = PAUSE_S[0]
        while True:
            target = None if self.is_cut else self.target
            self._changed.clear()
            if target is None:
                await self._changed.wait()
                pause_s = PAUSE_S[0]
                continue
            was_up = False
            try:
                was_up = await self._hold(target)
            except (OSError, ProtocolError, ConfigError, TimeoutError) as error:
                self._tell(f"no link to {target.name} at {target.address}: {str(error) or 'no answer'}")
            pause_s = PAUSE_S[0] if was_up else min(2 * pause_s, PAUSE_S[1])
            try:
                async with asyncio.timeout(pause_s):  # `wait_for` may swallow that we are cancelled
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _hold(self, target: Target) -> bool:
        """One link, to its end; was there one?"""
        host, port, context = dialled(target.address, self._tls_ca)
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
        parser = FrameParser(ACCEPTED_BYTES_MAX)
        self._writer = writer
        try:
            writer.write(word_frame(self._hello(target.token)))
            while target == self.target and not self.is_cut:
                async with asyncio.timeout(CONNECT_S if not self.is_up else self._silent_s):
                    data = await reader.read(65_536)
                if not data:
                    break
                for frame in parser.feed(data):
                    if frame.kind == WORD:
                        self._take(target, ANY_LINK.decode(frame.payload))
        except TimeoutError:
            self._tell(f"{target.name} at {target.address} says nothing on the link")
        finally:
            was_up = self.is_up
            self._writer, self.is_up = None, False
            writer.close()
            if was_up:
                self._down(target.name)
        return was_up

    def _take(self, target: Target, word: LinkHears) -> None:
        if self.is_up:
            self._heard(target.name, word)
        elif isinstance(word, Welcome):
            self.is_up = True
            self._told = ""
            self._up(target.name)
            self._heard(target.name, word)
        elif isinstance(word, Refusal):
            raise RemoteProtocolError(f"refused, {word.code}: {word.why}")

    def _hang_up(self) -> None:
        self._changed.set()
        if self._writer is not None:
            self._writer.transport.abort()

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            log.warning("%s", text)


def dialled(address: str, tls_ca: str) -> tuple[str, int, ssl.SSLContext | None]:
    """HOST:PORT, or fairleads://HOST:PORT for TLS, as asyncio wants it."""
    context = None
    if address.startswith(TLS_SCHEME):
        address = address.removeprefix(TLS_SCHEME)
        context = ssl.create_default_context(cafile=tls_ca or None)
    found = parse_listen(address)
    if not isinstance(found, TcpAddress):
        raise ConfigError(f"{address!r} is no address of an adapter")
    return found.host, found.port, context
