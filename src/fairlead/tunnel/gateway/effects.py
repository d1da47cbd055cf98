"""What the gateway asks of its edge. It is done first to last."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Answer", "CloseLink", "CloseStream", "Effect", "Log", "Reply", "ToLink", "ToStream"]


class Reply(NamedTuple):
    """An HTTP answer. A refusal says why in the header `Fairlead-Reason`; 410, and a refused connect, also in a
    CONN_ABORT as the body."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class Answer(NamedTuple):
    """To the pull that was held under this key."""

    key: int
    reply: Reply


class ToStream(NamedTuple):
    key: int
    packets: list[bytes]


class ToLink(NamedTuple):
    key: int
    packets: list[bytes]


class CloseLink(NamedTuple):
    """After what was said to it last. The gateway knows it no more; `link_lost` may follow and does nothing."""

    key: int
    reason: str


class CloseStream(NamedTuple):
    key: int
    reason: str


class Log(NamedTuple):
    text: str
    level: str = "info"


Effect = Answer | ToStream | ToLink | CloseLink | CloseStream | Log
