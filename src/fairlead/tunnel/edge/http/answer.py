"""What a gateway, or something before it, said to a request."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from fairlead.errors import RemoteProtocolError
from fairlead.tunnel.rules import BODY_MAX

__all__ = ["ANSWER_MAX", "FAILURES", "Answer", "BadHttp", "Cut", "NoConnection", "Poster"]

ANSWER_MAX = 2 * BODY_MAX


class Answer(NamedTuple):
    """Names of headers are in lower case; of a header that came several times, all but Set-Cookie keep the last."""

    status: int
    headers: dict[str, str]
    cookies: list[str]
    body: bytes

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class NoConnection(ConnectionError):
    """There is no way to the gateway at the moment: nothing of the request left this machine."""

    def __init__(self, text: str, *, proxy_status: int = 0) -> None:
        super().__init__(text)
        self.proxy_status = proxy_status
        """What the forward proxy said to CONNECT, if it was that."""


class Cut(ConnectionError):
    """The connection ended, or nothing moved on it for too long, before the answer was there."""


class BadHttp(RemoteProtocolError):
    """The answer is no HTTP, or far too large."""


FAILURES = (OSError, BadHttp)
"""Perhaps it arrived, perhaps not; NoConnection is one too, and to be caught before. So is TimeoutError, an OSError."""


class Poster(Protocol):
    """Sends one POST at a time and waits for its answer."""

    async def post(self, query: str, body: list[bytes], patience_s: float) -> Answer:
        """NoConnection, Cut, BadHttp, TimeoutError. `patience_s`: so long without any progress is too long."""

    async def aclose(self) -> None: ...
