"""Every error Fairlead raises, in one tree.

::

    FairleadError                every error carries a stable `code`, the word peers see on the wire
    ├── ConfigError              the operator's to mend; raised before anything starts
    ├── ProtocolError            somebody broke the rules of docs/protocol.md
    │   ├── LocalProtocolError   we did: the peer says so, or we noticed before sending
    │   └── RemoteProtocolError  the peer did; its connection is closed
    │       ├── BadEntries       its messages for a queue or topic are not well-formed (a ValueError too)
    │       └── BadRow           a message of a stream is not a row of the stream's schema (a ValueError too)
    ├── Unavailable              nobody's fault; worth another try
    │   ├── NoReceiver           nobody serves this topic, or has this name, at the moment
    │   ├── ReceiverLost         whoever got the request is gone and has not answered it all
    │   ├── ConversationLost     the other side of a conversation is gone
    │   ├── RequestTimeout       no answer in time (a TimeoutError too)
    │   ├── ConnectionLost       the connection ended, or could not be made (a ConnectionError too)
    │   │   └── AllBrokersFailed no broker of the cluster took the connection in time; `reasons` says why, by broker
    │   ├── SlowClient           this client did not read what was sent to it, and was cut off
    │   ├── ServerFull           the server has no room for another connection
    │   ├── NoMessageManager     whoever keeps the queues and topics cannot be reached at the moment
    │   ├── Blocked              the destination is full; it takes messages again when some are consumed
    │   ├── StoreFull            there is no room left on stable storage
    │   ├── NoneAvailable        no broker of the cluster can take another connection at the moment
    │   ├── Busy                 a synchronous connection still waits for the answer to its last call
    │   ├── NoAdapter            no adapter of the stream is running at the moment
    │   ├── NoDirectory          directory unreachable: no server of it answers, or none may change it
    │   ├── TokenExpired         the token of this connection has expired; the next one needs a fresh one
    │   ├── CertificateExpired   the certificate of this client has expired; the next one needs a new one
    │   └── ShuttingDown         the server is being stopped
    ├── Refused                  the server said no; the same again gets the same answer
    │   ├── BadCredentials       unknown user, wrong password, or a token or certificate that is not accepted
    │   ├── NotAllowed           the rules of this user do not allow it
    │   ├── UnsupportedVersion   client and server have no protocol version in common
    │   ├── DuplicateInstance    another connection has this type and instance already
    │   ├── TooMany              more subscriptions, registrations or requests than a client may have
    │   ├── QuotaExceeded        more than this user or its tenant may use; the text says of what
    │   ├── TooLarge             ├── HeaderTooLarge   └── BodyTooLarge
    │   ├── BadTopic             not a topic
    │   ├── BadPattern           not a pattern
    │   ├── BadName              not a name for a destination or subscription
    │   ├── BadSelector          not a selector; `line`, `column` and `offset` say where
    │   ├── BadParameter         a setting of a destination, message or consumer has a value it cannot have
    │   ├── NoDestination        no queue or topic has this name
    │   ├── DestinationDeleted   it was there, and was deleted
    │   ├── WrongKind            a queue was asked for and it is a topic, or the other way round
    │   ├── DuplicateSubscription  a durable subscription of this name is in use
    │   ├── OutOfOrder           a send came before the one it follows
    │   ├── OffsetGone           messages asked for are not there any more; the text says which
    │   ├── StageMissing         a batch cannot be published: not everything of it was staged
    │   ├── Undeliverable        the directory knows no application of this name
    │   ├── UnknownCluster       the directory has no cluster of this name, or it has no brokers
    │   ├── UnknownBroker        the directory has no broker of this name
    │   ├── NameTaken            another server that lives has this name
    │   ├── UnknownStream        the stream administration has never heard of this stream
    │   ├── StreamRefused        a feed adapter does not let this program have its line
    │   └── StreamRevoked        the right to a stream was taken away while it was read
    ├── HandlerFailed            the receiver's own code failed while it answered
    ├── Cancelled                given up by whoever asked
    ├── Stale                    settled too late: the message is no longer this consumer's
    ├── SessionLost              the session is gone, and cannot be resumed
    ├── TransferFailed           a very large message did not come through whole
    ├── IntegrityError           a sealed message is not as it was sealed; it is not delivered
    ├── NoKey                    the key that is needed is not in the keyring, or nobody vouches for it
    │   └── KeyChanged           another key than the one that is pinned, and not signed by that one
    ├── TransactionAborted       the work is undone, and says why
    ├── CommitUnknown            nobody could say whether the commit happened; `transaction` names it
    └── CommitPending            it is committed, and not yet seen everywhere; `transaction` names it

`retryable` says whether another try can help. `from_wire` turns a code that came in an ERROR frame
into its exception. Codes are never renamed: `CODES` is also the table of docs/errors.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = [
    "CODES",
    "AllBrokersFailed",
    "BadCredentials",
    "BadEntries",
    "BadName",
    "BadParameter",
    "BadPattern",
    "BadRow",
    "BadSelector",
    "BadTopic",
    "Blocked",
    "BodyTooLarge",
    "Busy",
    "Cancelled",
    "CertificateExpired",
    "CommitPending",
    "CommitUnknown",
    "ConfigError",
    "ConnectionLost",
    "ConversationLost",
    "DestinationDeleted",
    "DuplicateInstance",
    "DuplicateSubscription",
    "FairleadError",
    "HandlerFailed",
    "HeaderTooLarge",
    "IntegrityError",
    "KeyChanged",
    "LocalProtocolError",
    "NameTaken",
    "NoAdapter",
    "NoDestination",
    "NoDirectory",
    "NoKey",
    "NoMessageManager",
    "NoReceiver",
    "NoneAvailable",
    "NotAllowed",
    "OffsetGone",
    "OutOfOrder",
    "ProtocolError",
    "ReceiverLost",
    "Refused",
    "RemoteProtocolError",
    "RequestTimeout",
    "ServerFull",
    "SessionLost",
    "ShuttingDown",
    "SlowClient",
    "StageMissing",
    "Stale",
    "StoreFull",
    "StreamRefused",
    "StreamRevoked",
    "TokenExpired",
    "TooLarge",
    "TooMany",
    "TransactionAborted",
    "TransferFailed",
    "Unavailable",
    "Undeliverable",
    "UnknownBroker",
    "UnknownCluster",
    "UnknownStream",
    "UnsupportedVersion",
    "WrongKind",
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


class BadEntries(RemoteProtocolError, ValueError):
    """Messages that came for a queue or topic are not well-formed: see docs/durable.md, section 3."""


class BadRow(RemoteProtocolError, ValueError):
    """A body is not a row of its schema: see docs/feeds.md, section 2."""


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


class AllBrokersFailed(ConnectionLost):
    """No broker of the cluster took the connection; `reasons` says of each broker why not."""

    code = "all-brokers-failed"

    def __init__(self, text: str = "", *, code: str | None = None, reasons: Mapping[str, str] | None = None) -> None:
        super().__init__(text, code=code)
        self.reasons = dict(reasons or {})


class SlowClient(Unavailable):
    """Too much was waiting for this client to read it."""

    code = "slow-client"


class ServerFull(Unavailable):
    """The server has no room for another connection."""

    code = "server-full"


class NoMessageManager(Unavailable):
    """Whoever keeps the queues and topics cannot be reached at the moment."""

    code = "no-message-manager"


class Blocked(Unavailable):
    """The destination has as many messages as it may have; consuming some of them unblocks it."""

    code = "blocked"


class StoreFull(Unavailable):
    """There is no room left on stable storage."""

    code = "store-full"


class NoneAvailable(Unavailable):
    """No broker of the cluster can take another connection: full, draining, without a sign of life, or just failed."""

    code = "none-available"


class Busy(Unavailable):
    """A synchronous connection waits for an answer; wait for it, use another connection, or say `when_busy="queue"`."""

    code = "busy"


class NoAdapter(Unavailable):
    """The stream is known, and no adapter of it is running at the moment."""

    code = "no-adapter"


class NoDirectory(Unavailable):
    """Directory unreachable: no server of it answers, or none of them is with the majority that may change it."""

    code = "no-directory"


class TokenExpired(Unavailable):
    """The token of this connection has expired; a connection with a fresh one goes on where this one ended."""

    code = "token-expired"


class CertificateExpired(Unavailable):
    """The certificate this client showed has expired, or was revoked, while it was connected."""

    code = "certificate-expired"


class ShuttingDown(Unavailable):
    """The server is being stopped."""

    code = "shutting-down"


class Refused(FairleadError):
    """The server said no, and will say so again."""

    code = "refused"


class BadCredentials(Refused):
    """Unknown user, wrong password, or a token or certificate that is not accepted; the server does not say which."""

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


class QuotaExceeded(Refused):
    """More than this user, or its tenant, may use of something; what is there stays."""

    code = "quota-exceeded"


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


class BadName(Refused):
    """Not a name for a destination or a subscription."""

    code = "bad-name"


class BadSelector(Refused):
    """Not a selector: see docs/selectors.md. Where the fault was found is known where the text was read."""

    code = "bad-selector"

    def __init__(
        self, text: str = "", *, code: str | None = None, line: int = 0, column: int = 0, offset: int = 0
    ) -> None:
        super().__init__(text, code=code)
        self.line = line  # from 1; 0: not known
        self.column = column  # from 1, in characters
        self.offset = offset  # from 0, in characters


class BadParameter(Refused):
    """A setting of a destination, of a message or of a consumer has a value it cannot have."""

    code = "bad-parameter"


class NoDestination(Refused):
    """No queue or topic has this name, and nobody asked for it to be made."""

    code = "no-destination"


class DestinationDeleted(Refused):
    """The destination was there when the producer or consumer was opened, and was deleted since."""

    code = "destination-deleted"


class WrongKind(Refused):
    """A queue was asked for where there is a topic, or the other way round."""

    code = "wrong-kind"


class DuplicateSubscription(Refused):
    """A durable subscription of this name is in use, or has another destination or selector."""

    code = "duplicate-subscription"


class OutOfOrder(Refused):
    """A send arrived before the one it follows; what is not confirmed has to be sent again, in order."""

    code = "out-of-order"


class OffsetGone(Refused):
    """Messages asked for by their order numbers were let go meanwhile; the text says which."""

    code = "offset-gone"


class StageMissing(Refused):
    """A batch cannot be published, for not everything of it is staged."""

    code = "stage-missing"


class Undeliverable(Refused):
    """The directory knows no application of this name, so nothing was sent. Is the name right? Is it connected?"""

    code = "undeliverable"


class UnknownCluster(Refused):
    """The directory has no cluster of this name, or it has no brokers; nothing was tried."""

    code = "unknown-cluster"


class UnknownBroker(Refused):
    """The directory has no broker of this name."""

    code = "unknown-broker"


class NameTaken(Refused):
    """Another server has this name in the directory and renews its lease: choose another, or stop that one."""

    code = "name-taken"


class UnknownStream(Refused):
    """No adapter has ever registered for a stream of this name at this stream administration."""

    code = "unknown-stream"


class StreamRefused(Refused):
    """A feed adapter does not let this program have its line, and the stream administration has no better offer."""

    code = "stream-refused"


class StreamRevoked(Refused):
    """The right to a stream was taken away; nothing more comes from either adapter."""

    code = "stream-revoked"


class HandlerFailed(FairleadError):
    """The receiver's own code failed while it answered; the text is what it said."""

    code = "handler-failed"


class Cancelled(FairleadError):
    """Given up by whoever asked."""

    code = "cancelled"


class Stale(FairleadError):
    """Settled too late: the message was given to somebody else meanwhile, or is gone."""

    code = "stale"


class SessionLost(FairleadError):
    """The session is gone and cannot be resumed; what it had not confirmed may or may not have been done."""

    code = "session-lost"


class TransferFailed(FairleadError):
    """A very large message did not come through whole."""

    code = "transfer-failed"


class IntegrityError(FairleadError):
    """A sealed message is not as its sender sealed it: something of it was changed on the way."""

    code = "integrity"


class NoKey(FairleadError):
    """The key that is needed is not there, or is not known to be the right one; the text says what to do."""

    code = "no-key"


class KeyChanged(NoKey):
    """An application has another key than the one that is pinned for it, and that one has not signed it."""

    code = "key-changed"


class TransactionAborted(FairleadError):
    """All of the transaction's work is undone."""

    code = "transaction-aborted"


class CommitUnknown(FairleadError):
    """Committed or undone, and not both: ask for the outcome of `transaction` before doing any of it again."""

    code = "commit-unknown"

    def __init__(self, text: str = "", *, code: str | None = None, transaction: str = "") -> None:
        super().__init__(text, code=code)
        self.transaction = transaction  # its id; empty where it is not known


class CommitPending(FairleadError):
    """The transaction is committed for good: not to be done again. Some of it is not visible everywhere yet."""

    code = "commit-pending"

    def __init__(self, text: str = "", *, code: str | None = None, transaction: str = "") -> None:
        super().__init__(text, code=code)
        self.transaction = transaction  # its id; empty where it is not known


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
    "bad-credentials": Entry(
        BadCredentials, "Unknown user or wrong password, or a token or certificate that is not accepted.", closes=True
    ),
    "token-expired": Entry(
        TokenExpired, "The token of this connection has expired; connect again with a fresh one.", closes=True
    ),
    "certificate-expired": Entry(
        CertificateExpired,
        "The certificate of this connection has expired or was revoked; connect again with a new one.",
        closes=True,
    ),
    "not-allowed": Entry(NotAllowed, "The rules of this user do not allow it; nothing else changes."),
    "duplicate-instance": Entry(
        DuplicateInstance, "A live connection has this type and instance already; choose another instance.", closes=True
    ),
    # About room.
    "too-many": Entry(TooMany, "A client may not have more subscriptions, registrations or open requests than this."),
    "quota-exceeded": Entry(
        QuotaExceeded,
        "The user or its tenant uses all it may, of what the text says; free some, or ask the operator for more.",
    ),
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
    # About queues and topics.
    "no-message-manager": Entry(
        NoMessageManager, "Whoever keeps the queues and topics cannot be reached at the moment; try again."
    ),
    "no-destination": Entry(NoDestination, "No queue or topic has this name."),
    "destination-deleted": Entry(DestinationDeleted, "The queue or topic was deleted."),
    "wrong-kind": Entry(WrongKind, "A queue was asked for and it is a topic, or the other way round."),
    "bad-name": Entry(BadName, "Not a name for a destination or a subscription."),
    "bad-parameter": Entry(BadParameter, "A setting has a value it cannot have; the text says which and why."),
    "bad-selector": Entry(BadSelector, "Not a selector; the text points at the place."),
    "duplicate-subscription": Entry(
        DuplicateSubscription, "A durable subscription of this name is in use, or is for something else."
    ),
    "blocked": Entry(Blocked, "The destination is full; it takes messages again when some are consumed."),
    "store-full": Entry(StoreFull, "There is no room left on stable storage; consume messages or make room."),
    "out-of-order": Entry(OutOfOrder, "A send arrived before the one it follows; send again what is not confirmed."),
    "offset-gone": Entry(OffsetGone, "Messages asked for were let go meanwhile; the text says which."),
    "stage-missing": Entry(StageMissing, "The batch cannot be published: not everything of it is staged."),
    "stale": Entry(Stale, "Settled too late: the message is no longer this consumer's."),
    "session-lost": Entry(SessionLost, "The session is gone and cannot be resumed; open a new one."),
    "commit-unknown": Entry(
        CommitUnknown, "It is not known whether the transaction was committed: ask for its outcome by its id."
    ),
    "commit-pending": Entry(CommitPending, "The transaction is committed; some of it is not visible everywhere yet."),
    "transfer-failed": Entry(TransferFailed, "A very large message did not come through whole; the text says why."),
    # About the directory.
    "no-directory": Entry(
        NoDirectory, "Directory unreachable: no server of it answers, or none that may change it; try again."
    ),
    "all-brokers-failed": Entry(
        AllBrokersFailed, "No broker of the cluster took the connection in time; the text names each with its reason."
    ),
    "busy": Entry(Busy, "The synchronous connection still waits for the answer to its last call."),
    "undeliverable": Entry(Undeliverable, "The directory knows no application of this name; nothing was sent."),
    "unknown-cluster": Entry(UnknownCluster, "The directory has no cluster of this name, or it has no brokers."),
    "none-available": Entry(NoneAvailable, "No broker of the cluster can take another connection at the moment."),
    "unknown-broker": Entry(UnknownBroker, "The directory has no broker of this name; say `put_broker` first."),
    "name-taken": Entry(NameTaken, "Another server that lives has this name; choose another, or stop that one."),
    # About streams.
    "unknown-stream": Entry(UnknownStream, "The stream administration knows no such stream; is the name right?"),
    "no-adapter": Entry(NoAdapter, "No adapter of the stream is running at the moment; try again when one is."),
    "stream-refused": Entry(
        StreamRefused, "A feed adapter does not let this program have its line; the text says why."
    ),
    "stream-revoked": Entry(StreamRevoked, "The right to the stream was taken away; ask whoever runs it."),
    # About the server.
    "shutting-down": Entry(ShuttingDown, "The server is being stopped.", closes=True),
    "cut-off": Entry(ConnectionLost, "An administrator ended this connection.", closes=True),
    "manager-lost": Entry(ConnectionLost, "The connection manager of this connection is gone; connect again.", True),
    "store-lost": Entry(Unavailable, "The server lost its state store; connect again and subscribe anew.", closes=True),
    "internal": Entry(FairleadError, "The server met a fault of its own; its log says more."),
    # Never on the wire: these are raised where they happen.
    "connection-lost": Entry(ConnectionLost, "The connection ended or could not be made.", closes=True),
    "unavailable": Entry(Unavailable, "It did not work out this time; another try may."),
    "refused": Entry(Refused, "The server said no, and will say so again."),
    "bad-config": Entry(ConfigError, "The configuration cannot be used as it stands."),
    "transaction-aborted": Entry(TransactionAborted, "All of the transaction's work is undone."),
    "integrity": Entry(IntegrityError, "A sealed message was changed on the way; it is not delivered."),
    "no-key": Entry(NoKey, "The key that is needed is not in the keyring; the text says which, and what to do."),
    "key-changed": Entry(KeyChanged, "Another key than the pinned one, and not signed by it; ask its owner."),
}


def from_wire(code: str, text: str = "") -> FairleadError:
    """The exception for an ERROR frame; a code from a newer server is kept on a plain FairleadError."""
    entry = CODES.get(code)
    return (entry.error if entry else FairleadError)(text, code=code)
