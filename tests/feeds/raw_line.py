"""A program's line, spoken word by word: for tests that must say exactly this, and see exactly what comes."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from fairlead.feeds import words
from fairlead.feeds.block_codec import Block
from fairlead.feeds.frames import ACCEPTED_BYTES_MAX, BLOCK, FILL, WORD, Frame, FrameParser, word_frame
from fairlead.feeds.records import Record
from fairlead.feeds.speech import ANY_LINK, TO_CLIENT

PATIENCE_S = 20.0
W = TypeVar("W")


class RawLine:
    """Dials an adapter; `async with` it."""

    def __init__(self, address: str, *, is_link: bool = False, tls: Any = None) -> None:
        self._host, _, port = address.removeprefix("fairleads://").rpartition(":")
        self._port = int(port)
        self._tls = tls
        self._hearing = ANY_LINK if is_link else TO_CLIENT
        self._parser = FrameParser(ACCEPTED_BYTES_MAX)
        self._frames: deque[Frame] = deque()

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.writer.transport.abort()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass

    def say(self, word: words.Word) -> None:
        self.writer.write(word_frame(word))

    async def frame(self) -> Frame | None:
        """The next frame; None at the end of the line."""
        async with asyncio.timeout(PATIENCE_S):
            while not self._frames:
                try:
                    data = await self.reader.read(1 << 20)
                except ConnectionError:
                    return None
                if not data:
                    return None
                self._frames.extend(self._parser.feed(data))
        return self._frames.popleft()

    def decode(self, frame: Frame) -> object:
        assert frame.kind == WORD
        return self._hearing.decode(frame.payload)

    async def hear(self, kind: type[W]) -> W:
        """The next word of this kind; what comes before it is left aside."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                frame = await self.frame()
                assert frame is not None, f"the line ended before {kind.__name__}"
                if frame.kind == WORD and isinstance(word := self.decode(frame), kind):
                    return word

    async def records(self, count: int) -> list[Record]:
        """So many records of blocks (not of fills), or more."""
        found: list[Record] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < count:
                frame = await self.frame()
                assert frame is not None, f"the line ended after {len(found)} records"
                if frame.kind == BLOCK:
                    found += records_of(frame)
        return found

    async def filled(self, question: int) -> list[Record] | words.Unavailable:
        """The answer to a Fill."""
        found: list[Record] = []
        async with asyncio.timeout(PATIENCE_S):
            while True:
                frame = await self.frame()
                assert frame is not None, "the line ended before the answer"
                if frame.kind == FILL and frame.number == question:
                    found += records_of(frame) if frame.payload else []
                    if frame.is_last:
                        return found
                elif frame.kind == WORD:
                    word = self.decode(frame)
                    if isinstance(word, words.Unavailable) and word.id == question:
                        return word

    async def ended(self) -> list[object]:
        """The words until the other side ends the line."""
        found: list[object] = []
        while (frame := await self.frame()) is not None:
            if frame.kind == WORD:
                found.append(self.decode(frame))
        return found


def records_of(frame: Frame) -> list[Record]:
    block = Block.parse(frame.payload)
    return [block.record(index) for index in range(block.count)]


def certificate(folder: Path) -> Path:
    """Key and certificate of 127.0.0.1 in one file, signed by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "adapter")])
    day, now = datetime.timedelta(days=1), datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pem = folder / "adapter.pem"
    pem.write_bytes(key.private_bytes(*form) + made.public_bytes(serialization.Encoding.PEM))
    return pem
