"""An operator's conversation with the stream administration: one order after the other."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final, Self

from fairlead.client.aio import Connection
from fairlead.client.aio.talks import Conversation
from fairlead.errors import NoReceiver, from_wire
from fairlead.feeds.speech import FROM_ADMINISTRATION_TO_OPERATOR, encode
from fairlead.feeds.words import Order, Refusal
from fairlead.security.rules import STREAMS

__all__ = ["Operator"]

ANSWER_S: Final = 15.0  # a planned switch has its own, shorter limit


class Operator:
    """`async with Operator(connection) as operator: await operator.order(Order(do="status"))`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._conversation: Conversation | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._conversation is not None:
            await self._conversation.close()

    async def order(self, order: Order, timeout_s: float = ANSWER_S) -> list[dict[str, Any]]:
        """The facts of the streams concerned; the error that the administration refuses it with."""
        conversation = self._conversation
        if conversation is None:
            conversation = self._conversation = self._connection.converse(STREAMS)
        try:
            await conversation.send(encode(order))
            answer = FROM_ADMINISTRATION_TO_OPERATOR.decode((await conversation.receive(timeout_s)).body)
        except NoReceiver:
            self._conversation = None
            raise NoReceiver(
                "This server has no stream administration: start it with `fairlead streams serve`, or set "
                "[streams] serve = true."
            ) from None
        except BaseException:
            self._conversation = None
            raise
        if isinstance(answer, Refusal):
            raise from_wire(answer.code, answer.why)
        return [dict(one) for one in answer.streams]
