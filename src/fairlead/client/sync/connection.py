"""A connection for programs without an event loop; the names are those of the asynchronous one.

::

    with fairlead.sync.connect("fairlead://localhost") as connection:
        print(connection.request("pricing", b"EURUSD").body)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from fairlead.client.aio.app_message import AppMessage as AioAppMessage
from fairlead.client.aio.connection import AddressOf, Body, Headers
from fairlead.client.aio.connection import Connection as AioConnection
from fairlead.client.aio.consuming import AckMode
from fairlead.client.aio.placing import SYNC
from fairlead.client.durable.receipt import Receipt
from fairlead.client.effects import Event
from fairlead.client.sync.applications import AppInbox, AppMessage, AppService, app_on_threads
from fairlead.client.sync.queues import Admin, Opens, Queue, Session, Topic, Transaction
from fairlead.client.sync.runner import Runner
from fairlead.client.sync.serving import Registered, Requests, SyncHandler, Talk, Talks, on_threads
from fairlead.client.sync.subscription import Queue as Mailbox
from fairlead.client.sync.subscription import Replies, Subscription
from fairlead.errors import TransactionAborted
from fairlead.message import Message

if TYPE_CHECKING:
    from fairlead.client.sync.feeding import Stream
    from fairlead.feeds.events import Event as StreamEvent

__all__ = ["Connection", "connect"]

T = TypeVar("T")
THREADS_MAX = 16


class Connection(Opens):
    """Open from the beginning; every call waits. May be used by several threads."""

    def __init__(self, url: str | Sequence[str] = "fairlead://localhost", **options: Any) -> None:
        inner = AioConnection(url, **options)
        inner._scope = SYNC
        self._runner = Runner()
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="fairlead-handler")
        self._inner = self._opener = inner
        try:
            self._runner.run(self._inner._open())
        except BaseException:
            self._stop()
            raise

    def close(self) -> None:
        """Say goodbye; everything sent before it is taken in by the server."""
        if not self._runner.loop.is_closed():
            try:
                self._runner.run(self._inner.close())
            finally:
                self._stop()

    def _stop(self) -> None:
        self._runner.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self._inner.closed

    @property
    def connected(self) -> bool:
        return self._inner.connected

    @property
    def uid(self) -> int:
        return self._inner.uid

    @property
    def address(self) -> str:
        return self._inner.address

    @property
    def server(self) -> str:
        return self._inner.server

    @property
    def app(self) -> str:
        return self._inner.app

    @property
    def broker(self) -> str:
        return self._inner.broker

    @property
    def label(self) -> str:
        return self._inner.label

    def labelled(self, timeout: float | None = None) -> str:
        """Wait for the label: while the directory is away there is none."""
        return self._runner.run(self._inner.labelled(timeout))

    def directory_status(self) -> dict[str, Any]:
        return self._runner.call(self._inner.directory_status)

    def on_event(self, callback: Callable[[Event], None]) -> None:
        """Hear of `lost`, `reconnected`, `moved`, `undelivered`, `closed`; called on the connection's own thread."""
        self._inner.on_event(callback)

    # Broadcast.

    def subscribe(self, pattern: str, *, no_local: bool = False, buffer: int = 65_536) -> Subscription:
        made = self._runner.call(lambda: self._inner.subscribe(pattern, no_local=no_local, buffer=buffer))
        return Subscription(self._runner, made)

    def publish(
        self, topic: str | Sequence[str], body: Body, *, headers: Headers | None = None, reply_to: str | None = None
    ) -> None:
        self._runner.run(self._inner.publish(topic, body, headers=headers, reply_to=reply_to))

    def publish_many(self, topic: str, bodies: Iterable[Body], headers: Headers | None = None) -> None:
        self._runner.run(self._inner.publish_many(topic, list(bodies), headers))

    def flush(self) -> None:
        """Wait until the server has taken in everything said so far."""
        self._runner.run(self._inner.flush())

    # Request and response.

    def request(
        self,
        topic: str,
        body: Body = b"",
        *,
        timeout: float | None = 1.0,
        headers: Headers | None = None,
        to: AddressOf | None = None,
    ) -> Message:
        return self._runner.run(self._inner.request(topic, body, timeout=timeout, headers=headers, to=to))

    def request_stream(
        self, topic: str, body: Body = b"", *, timeout: float | None = 1.0, to: AddressOf | None = None
    ) -> Mailbox[Message]:
        made = self._runner.call(lambda: self._inner.request_stream(topic, body, timeout=timeout, to=to))
        return Mailbox(self._runner, made)

    def request_all(
        self,
        topic: str = "",
        body: Body = b"",
        *,
        timeout: float | None = 1.0,
        type: str | None = None,  # noqa: A002
        org: str | None = None,
    ) -> Replies:
        made = self._runner.call(lambda: self._inner.request_all(topic, body, timeout=timeout, type=type, org=org))
        return Replies(self._runner, made)

    def respond(self, topic: str, handler: SyncHandler) -> Registered:
        """Serve requests with `handler(request)`, on a thread of a pool."""
        made = self._inner.respond(topic, on_threads(self._runner, self._pool, handler))
        return Registered(self._runner, self._runner.run(made))

    def serve(self, topic: str) -> Requests:
        return Requests(self._runner, self._runner.call(lambda: self._inner.serve(topic)))

    # Conversations.

    def converse(self, topic: str, *, to: AddressOf | None = None) -> Talk:
        return Talk(self._runner, self._runner.call(lambda: self._inner.converse(topic, to=to)))

    def accept(self, topic: str = "") -> Talks:
        return Talks(self._runner, self._runner.call(lambda: self._inner.accept(topic)))

    # Streams.

    def stream(
        self,
        name: str,
        *,
        events: bool = False,
        on_event: Callable[[StreamEvent], object] | None = None,
        **options: Any,
    ) -> Stream[Any]:
        """A redundant stream: `for message in connection.stream("prices.emea")`; options as of the asynchronous one."""
        from fairlead.client.sync.feeding import Stream

        made = self._runner.call(lambda: self._inner.stream(name, **options))
        return Stream(self._runner, made, events=events, on_event=on_event)

    def list_streams(self, timeout: float = 5.0) -> list[dict[str, object]]:
        return self._runner.run(self._inner.list_streams(timeout))

    # Between two applications.

    def send_to(self, address: AddressOf, body: Any, **options: Any) -> Receipt | None:
        """To an application, by its name; or to one client, by uid or `type/instance`."""
        return self._runner.run(self._inner.send_to(address, body, **options))

    def inbox(self) -> Mailbox[Message]:
        return Mailbox(self._runner, self._runner.call(self._inner.inbox))

    @overload
    def call(self, address: int, body: Body = b"", **options: Any) -> Message: ...

    @overload
    def call(self, address: str, body: Any = b"", **options: Any) -> Any: ...

    def call(self, address: AddressOf, body: Any = b"", **options: Any) -> Message | AppMessage:
        """Ask an application, by its name; or one client, by uid or `type/instance`."""
        if isinstance(address, int):
            return self._runner.run(self._inner.call(address, body, **options))
        found = self._runner.run(self._inner.call(address, body, **options))
        return AppMessage(self._runner, found) if isinstance(found, AioAppMessage) else found

    def application(self, *, window: int = 1) -> AppInbox:
        """What others send to this application: `with connection.application() as inbox`."""
        return AppInbox(self._runner, self._runner.call(lambda: self._inner.application(window=window)))

    def serve_app(self, handler: Callable[[AppMessage], Any], *, window: int = 1, concurrency: int = 1) -> AppService:
        """Call `handler(message)` for each message to this application, on a thread; what it returns is the answer."""
        work = app_on_threads(self._runner, self._pool, handler)
        made = self._runner.run(self._inner.serve_app(work, window=window, concurrency=concurrency))
        return AppService(self._runner, made)

    def respond_direct(self, handler: SyncHandler) -> Registered:
        made = self._inner.respond_direct(on_threads(self._runner, self._pool, handler))
        return Registered(self._runner, self._runner.run(made))

    # Queues and topics; see also `Opens`.

    def temporary_queue(self) -> Queue:
        return Queue(self._runner, self._runner.run(self._inner.temporary_queue()))

    def temporary_topic(self) -> Topic:
        return Topic(self._runner, self._runner.run(self._inner.temporary_topic()))

    def session(self, ack: AckMode = "individual") -> Session:
        return Session(self._runner, self._runner.call(lambda: self._inner.session(ack)))

    def transaction(self) -> Transaction:
        return Transaction(self._runner, self._runner.call(self._inner.transaction))

    def run_transaction(self, function: Callable[[Transaction], T], *, attempts: int = 10) -> T:
        """Call `function(transaction)` and commit; again from the start when the transaction was undone on the way."""
        for attempt in range(attempts):
            try:
                with self.transaction() as transaction:
                    return function(transaction)
            except TransactionAborted as error:
                if not error.retryable or attempt == attempts - 1:
                    raise
            time.sleep(min(0.02 * 2**attempt, 1.0))
        raise TransactionAborted("There was no attempt.")

    def outcome(self, transaction: str, timeout: float | None = None) -> str:
        """`committed` or `rolled-back`: the truth about a transaction that ended with CommitUnknown."""
        return self._runner.run(self._inner.outcome(transaction, timeout))

    def start(self) -> None:
        self._runner.run(self._inner.start())

    def stop(self) -> None:
        self._runner.run(self._inner.stop())

    @property
    def admin(self) -> Admin:
        return Admin(self._runner, self._inner.admin)


def connect(url: str | Sequence[str] = "fairlead://localhost", **options: Any) -> Connection:
    """An open connection; the options are those of `fairlead.connect`."""
    return Connection(url, **options)
