"""What answers mean for the whole tunnel, whichever request they belong to; all that the connection layer hears."""

from __future__ import annotations

import asyncio
import logging

from fairlead.tunnel.edge.http.answer import Answer, NoConnection
from fairlead.tunnel.packets import Abort, AbortCode, Body, Kind, split
from fairlead.tunnel.place import Place
from fairlead.tunnel.policy import Outage, Verdict, judge
from fairlead.tunnel.port import Sink

__all__ = ["Outcomes"]

logger = logging.getLogger("fairlead.tunnel")

LOGINS_MAX = 3
BAD_LOGIN = "proxy authentication: the proxy does not take this login any more (407)"
ECHOES = (Kind.PING, Kind.PONG)  # the carrier's own


class Outcomes:
    """Of one tunnel."""

    def __init__(self, place: Place, connection_id: int) -> None:
        self.place = place
        self.connection_id = connection_id
        self.sink: Sink
        self.is_over = False
        """The driver is closed, or the gateway has said the last word: there is nothing more to ask or to tell."""
        self.heard = asyncio.Event()
        """Packets came: the tunnel works."""
        self._logins = 0
        self._outage = Outage()
        self._restored = asyncio.Event()

    def judge(self, answer: Answer) -> Verdict:
        verdict = judge(answer.status, answer.content_type, len(answer.body))
        if verdict is Verdict.PROXY_LOGIN:
            self._on_login()
        else:
            self._logins = 0
        if verdict is Verdict.GONE:
            self.gone(*_reason(answer))
        elif verdict is Verdict.DENIED:
            text = f"the gateway takes this client for somebody else ({answer.status})"
            self.gone(AbortCode.REFUSED, text)
        return verdict

    def failed(self) -> None:
        """A request was not answered by the gateway, or with "not now"."""
        self._outage.failed(asyncio.get_running_loop().time())

    def well(self) -> None:
        """A request was answered by the gateway. If that is new, whoever pauses need not do so any longer."""
        if self._outage.well(asyncio.get_running_loop().time()) and not self.is_over:
            logger.debug("The way to %s is open again.", self.place)
            self._restored.set()
            self._restored.clear()
            self.sink.on_restored()

    async def pause(self, seconds: float) -> None:
        """So long, or until the way is open again."""
        try:
            async with asyncio.timeout(seconds):
                await self._restored.wait()
        except TimeoutError:
            pass

    def no_way(self, error: NoConnection) -> Verdict:
        """Nothing was sent."""
        logger.debug("There is no way to %s: %s", self.place, error)
        if error.proxy_status == 407:
            self._on_login()
        return Verdict.LATER

    def take(self, data: bytes) -> Body:
        """The packets of an answer or a frame, handed on."""
        body = split(data, with_raw=False)
        if self.is_over:
            return body
        if body.damaged or body.fault:
            self.sink.on_damaged(body.damaged + bool(body.fault))
        own = [
            packet
            for packet in body.packets
            if packet.connection_id == self.connection_id and packet.kind not in ECHOES
        ]
        if own:
            self.heard.set()
            self.sink.on_packets(own)
        return body

    def room(self) -> None:
        if not self.is_over:
            self.sink.on_room()

    def gone(self, code: int, text: str) -> None:
        if not self.is_over:
            self.is_over = True
            self.sink.on_gone(code, text)

    def ended(self, task: asyncio.Task[None]) -> None:
        """One of the driver's tasks is done. If it failed, the tunnel ends rather than standing still."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("The tunnel to %s failed.", self.place, exc_info=error)
            self.gone(AbortCode.PROTOCOL, f"the client's driver failed: {error!r}")

    def _on_login(self) -> None:
        self._logins += 1
        if self._logins >= LOGINS_MAX:
            self.gone(AbortCode.REFUSED, BAD_LOGIN)


def _reason(answer: Answer) -> Abort:
    """What the CONN_ABORT says that a 410 has as its body."""
    for packet in split(answer.body).packets:
        if packet.kind == Kind.CONN_ABORT:
            return Abort.of(packet.payload)
    return Abort(AbortCode.NOT_KNOWN, "the gateway does not know this tunnel any more")
