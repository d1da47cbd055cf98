"""The head of an answer waits for its body, so that both leave, and wake the client, as one.

uvicorn writes them one after the other, and event loops send what is written at once.
"""

from __future__ import annotations

import asyncio

__all__ = ["Gathered"]


class Gathered:
    """Takes the transport's place where an answer is written. What is not followed at once leaves in the next turn."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            if data:
                self._transport.writelines((head, data))
            else:
                self._transport.write(head)
        elif data:
            self._head = data
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)
