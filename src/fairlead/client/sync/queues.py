"""Queues, topics, sessions and transactions without an event loop; the names are those of the asynchronous ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, cast

from fairlead.client.aio.destinations import Body
from fairlead.client.aio.destinations import Queue as AioQueue
from fairlead.client.aio.destinations import Topic as AioTopic
from fairlead.client.aio.sending import Sender as AioSender
from fairlead.client.aio.sessions import Session as AioSession
from fairlead.client.aio.transactions import Transaction as AioTransaction
from fairlead.client.durable.receipt import Receipt
from fairlead.client.sync.deliveries import Consumer, Delivery
from fairlead.client.sync.runner import Runner

if TYPE_CHECKING:
    from concurrent.futures import Future

    from fairlead.client.aio.administration import Admin as AioAdmin
    from fairlead.client.aio.consuming import AckMode
    from fairlead.client.durable.commands import Facts

__all__ = ["Admin", "Destination", "Opens", "Queue", "Sender", "Session", "Topic", "Transaction"]


class Destination:
    """What queues and topics have in common."""

    _inner: AioQueue | AioTopic

    def __init__(self, runner: Runner, inner: AioQueue | AioTopic) -> None:
        self._runner = runner
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def is_blocked(self) -> bool:
        return self._runner.call(lambda: self._inner.is_blocked)

    def send(self, body: Body, **options: Any) -> Receipt:
        """Send one message; returns when it is on stable storage. The options are those of `fairlead.Queue.send`."""
        if isinstance(reply_to := options.get("reply_to"), Destination):
            options["reply_to"] = reply_to.name
        return self._runner.run(self._inner.send(body, **options))

    def send_many(self, bodies: Iterable[Any], **options: Any) -> list[Receipt]:
        return self._runner.run(self._inner.send_many(list(bodies), **options))

    def try_send(self, body: Any, **options: Any) -> bool:
        return self._runner.call(lambda: self._inner.try_send(body, **options))

    def sender(self, window: int = 512, **options: Any) -> Sender:
        return Sender(self._runner, self._runner.call(lambda: self._inner.sender(window, **options)))

    def flush(self) -> None:
        self._runner.run(self._inner.flush())

    def browse(self, selector: str | None = None) -> Consumer:
        return Consumer(self._runner, self._runner.call(lambda: self._inner.browse(selector)))

    def replay(self, start: Any = "first", **options: Any) -> Consumer:
        return Consumer(self._runner, self._runner.call(lambda: self._inner.replay(start, **options)))

    def schedules(self) -> list[Facts]:
        return self._runner.run(self._inner.schedules())

    def cancel(self, order: int) -> None:
        self._runner.run(self._inner.cancel(order))

    def __repr__(self) -> str:
        return repr(self._inner)


class Queue(Destination):
    """Each message goes to one consumer."""

    _inner: AioQueue

    def consume(self, selector: str | None = None, **options: Any) -> Consumer:
        """Receive: `for message in queue.consume()`, or `with queue.consume() as consumer`."""
        return Consumer(self._runner, self._runner.call(lambda: self._inner.consume(selector, **options)))


class Topic(Destination):
    """Each message goes to every subscription."""

    _inner: AioTopic

    def subscribe(self, durable: str | None = None, **options: Any) -> Consumer:
        return Consumer(self._runner, self._runner.call(lambda: self._inner.subscribe(durable, **options)))

    consume = subscribe

    def unsubscribe(self, name: str) -> None:
        self._runner.run(self._inner.unsubscribe(name))


class Sender:
    """`send` waits only for room in the window. Leaving `with` waits for all receipts."""

    def __init__(self, runner: Runner, inner: AioSender) -> None:
        self._runner = runner
        self._inner = inner

    def send(self, body: Any, **options: Any) -> Future[Receipt]:
        """The future resolves to the receipt."""
        from concurrent.futures import Future as ThreadFuture

        result: Future[Receipt] = ThreadFuture()

        async def work() -> None:
            made = await self._inner.send(body, **options)

            def done(_: object) -> None:
                if made.cancelled():
                    result.cancel()
                elif (error := made.exception()) is not None:
                    result.set_exception(error)
                else:
                    result.set_result(made.result())

            made.add_done_callback(done)

        self._runner.run(work())
        return result

    def flush(self) -> None:
        self._runner.run(self._inner.flush())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self.flush()


class Opens:
    """Whatever opens queues and topics: a session, a transaction, a connection."""

    _runner: Runner
    _opener: Any

    def queue(self, name: str, *, create: bool = True, parameters: Mapping[str, Any] | None = None) -> Queue:
        make = self._opener.queue
        made = self._runner.call(lambda: cast(AioQueue, make(name, create=create, parameters=parameters)))
        return Queue(self._runner, made)

    def topic(self, name: str, *, create: bool = True, parameters: Mapping[str, Any] | None = None) -> Topic:
        make = self._opener.topic
        made = self._runner.call(lambda: cast(AioTopic, make(name, create=create, parameters=parameters)))
        return Topic(self._runner, made)


class Session(Opens):
    """What belongs together is sent, received and settled on one session, in order."""

    def __init__(self, runner: Runner, inner: AioSession) -> None:
        self._runner = runner
        self._inner = self._opener = inner

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def ack(self) -> AckMode:
        return self._inner.ack

    def acknowledge(self) -> None:
        self._runner.call(self._inner.acknowledge)

    def recover(self) -> None:
        self._runner.run(self._inner.recover())

    def commit(self, timeout: float | None = None) -> None:
        self._runner.run(self._inner.commit(timeout))

    def rollback(self) -> None:
        self._runner.run(self._inner.rollback())

    def start(self) -> None:
        self._runner.run(self._inner.start())

    def stop(self) -> None:
        self._runner.run(self._inner.stop())

    def close(self) -> None:
        self._runner.run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Transaction(Opens):
    """One unit of work: committed at the end of the `with` block, rolled back when it raises."""

    def __init__(self, runner: Runner, inner: AioTransaction) -> None:
        self._runner = runner
        self._inner = self._opener = inner

    @property
    def id(self) -> str:
        return self._runner.call(lambda: self._inner.id)

    def send(self, destination: str | Destination, body: Body, **options: Any) -> None:
        name = destination if isinstance(destination, str) else destination._inner
        self._runner.run(self._inner.send(name, body, **options))

    def receive(self, queue: str | Queue, timeout: float | None = None, **options: Any) -> Delivery | None:
        name = queue if isinstance(queue, str) else queue.name
        found = self._runner.run(self._inner.receive(name, timeout, **options))
        return None if found is None else Delivery(self._runner, found)

    def commit(self, timeout: float | None = None) -> None:
        self._runner.run(self._inner.commit(timeout))

    def rollback(self) -> None:
        self._runner.run(self._inner.rollback())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._runner.run(self._inner.__aexit__(kind, *exc))


class Admin:
    """Administration; every command is a method, `execute` takes its name as text."""

    def __init__(self, runner: Runner, inner: AioAdmin) -> None:
        self._runner = runner
        self._inner = inner

    def execute(self, command: str, /, **arguments: Any) -> dict[str, Any]:
        return self._runner.run(self._inner.execute(command, **arguments))

    def trace(self, id: str = "", *, trace: str = "") -> dict[str, Any]:  # noqa: A002 - the word of the message model
        """The life of one message by its id, or the messages of a `trace`: see docs/tracing.md."""
        return self._runner.run(self._inner.trace(id, trace=trace))

    def __getattr__(self, name: str) -> Callable[..., dict[str, Any]]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda **arguments: self.execute(name.replace("_", "-"), **arguments)
