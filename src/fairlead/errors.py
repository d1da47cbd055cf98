"""Every error Fairlead raises, in one tree.

::

    FairleadError                every error carries a stable `code`, the word peers see on the wire
    ├── ConfigError              the operator's to mend; raised before anything starts
    ├── ProtocolError            somebody broke the rules of docs/protocol.md
    │   ├── LocalProtocolError   we did: the peer says so, or we noticed before sending
    │   └── RemoteProtocolError  the peer did; its connection is closed
    ├── Unavailable              nobody's fault; worth another try
    │   ├── NoReceiver           nobody serves this topic, or has this name, at the moment
    │   ├── ReceiverLost         whoever got the request is gone and has not answered it all
    │   ├── ConversationLost     the other side of a conversation is gone
    │   ├── RequestTimeout       no answer in time (a TimeoutError too)
    │   ├── ConnectionLost       the connection ended, or could not be made (a ConnectionError too)
    │   ├── SlowClient           this client did not read what was sent to it, and was cut off
    │   ├── ServerFull           the server has no room for another connection
    │   └── ShuttingDown         the server is being stopped
    ├── Refused                  the server said no; the same again gets the same answer
    │   ├── BadCredentials       unknown user or wrong password
    │   ├── NotAllowed           the rules of this user do not allow it
    │   ├── UnsupportedVersion   client and server have no protocol version in common
    │   ├── DuplicateInstance    another connection has this type and instance already
    │   ├── TooMany              more subscriptions, registrations or requests than a client may have
    │   ├── TooLarge             ├── HeaderTooLarge   └── BodyTooLarge
    │   ├── BadTopic             not a topic
    │   └── BadPattern           not a pattern
    ├── HandlerFailed            the receiver's own code failed while it answered
    ├── Cancelled                given up by whoever asked
    └── TransactionAborted       the work is undone, and says why

`retryable` says whether another try can help. `from_wire` turns a code that came in an ERROR frame
into its exception. Codes are never renamed: `CODES` is also the table of docs/errors.md.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "CODES",
    "BadCredentials",
    "BadPattern",
    "BadTopic",
    "BodyTooLarge",
    "Cancelled",
    "ConfigError",
    "ConnectionLost",
    "ConversationLost",
    "DuplicateInstance",
    "FairleadError",
    "HandlerFailed",
    "HeaderTooLarge",
    "LocalProtocolError",
    "NoReceiver",
    "NotAllowed",
    "ProtocolError",
    "ReceiverLost",
    "Refused",
    "RemoteProtocolError",
    "RequestTimeout",
    "ServerFull",
    "ShuttingDown",
    "SlowClient",
    "TooLarge",
    "TooMany",
    "TransactionAborted",
    "Unavailable",
    "UnsupportedVersion",
    "from_wire",
]


class FairleadError(Exception):
    """Something went wrong; `code` is the stable word for it, the text a sentence one can act on."""

    code: str = "internal"
    retryable: bool = False

    def __init__(self, text: str = "", *, code: str | None = None) -> None:
        if code is not None:
            self.code = code
        if not text:
            entry = CODES.get(self.code)
            text = entry.sentence if entry else self.code
        super().__init__(text)

    @property
    def text(self) -> str:
        """The sentence, as it goes into the body of an ERROR frame."""
        return str(self)

    def __reduce__(self) -> tuple[object, ...]:
        # Attributes set by subclasses and an unusual code survive pickling between processes.
        return type(self), self.args, self.__dict__


class ConfigError(FairleadError):
    """The configuration cannot be used as it stands."""

    code = "bad-config"


class ProtocolError(FairleadError):
    """Somebody broke the rules of the protocol."""

    code = "bad-request"


class LocalProtocolError(ProtocolError):
    """We broke the rules."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the rules; there is no talking on with it."""


class Unavailable(FairleadError):
    """It did not work out this time; another try may."""

    code = "unavailable"
    retryable = True


class NoReceiver(Unavailable):
    """Nobody serves this topic, or has this name, at the moment."""

    code = "no-receiver"


class ReceiverLost(Unavailable):
    """The receiver is gone before its last response. It may or may not have acted on the request."""

    code = "receiver-lost"


class ConversationLost(Unavailable):
    """The other side of the conversation is gone."""

    code = "conversation-lost"


class RequestTimeout(Unavailable, TimeoutError):
    """No answer arrived in time. The request may still be acted on."""

    code = "timeout"


class ConnectionLost(Unavailable, ConnectionError):
    """The connection ended or could not be made."""

    code = "connection-lost"


class SlowClient(Unavailable):
    """Too much was waiting for this client to read it."""

    code = "slow-client"


class ServerFull(Unavailable):
    """The server has no room for another connection."""

    code = "server-full"


class ShuttingDown(Unavailable):
    """The server is being stopped."""

    code = "shutting-down"


class Refused(FairleadError):
    """The server said no, and will say so again."""

    code = "refused"


class BadCredentials(Refused):
    """Unknown user or wrong password; the server does not say which."""

    code = "bad-credentials"


class NotAllowed(Refused):
    """The rules of this user do not allow it; the connection stays."""

    code = "not-allowed"


class UnsupportedVersion(Refused):
    """Client and server have no protocol version in common."""

    code = "unsupported-version"


class DuplicateInstance(Refused):
    """Another connection has this type and instance already."""

    code = "duplicate-instance"


class TooMany(Refused):
    """A client may not have more of these."""

    code = "too-many"


class TooLarge(Refused):
    """Longer than the server takes; `size` and `limit` in bytes where they are known."""

    code = "frame-too-large"

    def __init__(
        self, text: str = "", *, code: str | None = None, size: int | None = None, limit: int | None = None
    ) -> None:
        super().__init__(text, code=code)
        self.size = size
        self.limit = limit


class HeaderTooLarge(TooLarge):
    """Topic and headers together are longer than a header may be."""

    code = "header-too-large"


class BodyTooLarge(TooLarge):
    """The body is longer than this server takes."""

    code = "body-too-large"


class BadTopic(Refused):
    """Not a topic: see docs/protocol.md, section 5."""

    code = "bad-topic"


class BadPattern(Refused):
    """Not a pattern: see docs/protocol.md, section 5."""

    code = "bad-pattern"


class HandlerFailed(FairleadError):
    """The receiver's own code failed while it answered; the text is what it said."""

    code = "handler-failed"


class Cancelled(FairleadError):
    """Given up by whoever asked."""

    code = "cancelled"


class TransactionAborted(FairleadError):
    """All of the transaction's work is undone."""

    code = "transaction-aborted"


class Entry(NamedTuple):
    """What a code stands for."""

    error: type[FairleadError]
    sentence: str
    closes: bool = False
    """Is the connection closed after it?"""


CODES: dict[str, Entry] = {
    # About the bytes.
    "not-a-preface": Entry(
        LocalProtocolError, "The first bytes are neither a Fairlead preface nor a TLS ClientHello.", closes=True
    ),
    "unsupported-version": Entry(
        UnsupportedVersion, "Client and server have no protocol version in common; the text names the server's.", True
    ),
    "bad-request": Entry(LocalProtocolError, "A frame is malformed or makes no sense at this point."),
    "frame-too-large": Entry(
        TooLarge, "A frame is longer than the limit; send large bodies in fragments.", closes=True
    ),
    "header-too-large": Entry(HeaderTooLarge, "Topic and headers together exceed the limit; the frame was skipped."),
    "body-too-large": Entry(BodyTooLarge, "The body exceeds what this server takes; the message was skipped."),
    "bad-topic": Entry(BadTopic, "Not a topic: 1 to 512 bytes, words joined by dots, no wildcards or controls."),
    "bad-pattern": Entry(BadPattern, "Not a pattern: words, `*`, `?`, a last `>`, or a glob: or regex: pattern."),
    "unknown-number": Entry(LocalProtocolError, "No subscription or registration of this client has that number."),
    "unknown-correlation": Entry(LocalProtocolError, "No open request or conversation has that correlation."),
    # About who is asking.
    "bad-credentials": Entry(BadCredentials, "Unknown user or wrong password.", closes=True),
    "not-allowed": Entry(NotAllowed, "The rules of this user do not allow it; nothing else changes."),
    "duplicate-instance": Entry(
        DuplicateInstance, "A live connection has this type and instance already; choose another instance.", closes=True
    ),
    # About room.
    "too-many": Entry(TooMany, "A client may not have more subscriptions, registrations or open requests than this."),
    "slow-client": Entry(
        SlowClient, "The client did not read what was waiting for it; read faster, or ask for less credit.", closes=True
    ),
    "server-full": Entry(ServerFull, "The server has no room for another connection; try again later.", closes=True),
    # About time.
    "handshake-timeout": Entry(ConnectionLost, "The handshake was not finished in time.", closes=True),
    "keep-alive-timeout": Entry(ConnectionLost, "Nothing was heard for twice the keep-alive time.", closes=True),
    "timeout": Entry(RequestTimeout, "No answer arrived in time; the request may still be acted on."),
    "cancelled": Entry(Cancelled, "The request or conversation was given up by whoever opened it."),
    # About the other side.
    "no-receiver": Entry(NoReceiver, "Nobody serves this topic, or has this name, at the moment."),
    "receiver-lost": Entry(ReceiverLost, "The receiver is gone before its last response; it may have acted on it."),
    "handler-failed": Entry(HandlerFailed, "The receiver's own code failed while it answered; the text is its."),
    "conversation-lost": Entry(ConversationLost, "The other side of the conversation is gone."),
    # About the server.
    "shutting-down": Entry(ShuttingDown, "The server is being stopped.", closes=True),
    "manager-lost": Entry(ConnectionLost, "The connection manager of this connection is gone; connect again.", True),
    "store-lost": Entry(Unavailable, "The server lost its state store; connect again and subscribe anew.", closes=True),
    "internal": Entry(FairleadError, "The server met a fault of its own; its log says more."),
    # Never on the wire: these are raised where they happen.
    "connection-lost": Entry(ConnectionLost, "The connection ended or could not be made.", closes=True),
    "unavailable": Entry(Unavailable, "It did not work out this time; another try may."),
    "refused": Entry(Refused, "The server said no, and will say so again."),
    "bad-config": Entry(ConfigError, "The configuration cannot be used as it stands."),
    "transaction-aborted": Entry(TransactionAborted, "All of the transaction's work is undone."),
}


def from_wire(code: str, text: str = "") -> FairleadError:
    """The exception for an ERROR frame; a code from a newer server is kept on a plain FairleadError."""
    entry = CODES.get(code)
    return (entry.error if entry else FairleadError)(text, code=code)
