"""`fairlead send`, `receive` and `browse`: stored messages from the command line."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar

import click

from fairlead.cli import terminal
from fairlead.cli.options import EXIT_NO_ANSWER, as_json_option, one_sentence
from fairlead.cli.traffic import connecting, open_connection, run
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from fairlead.client.aio import Connection

F = TypeVar("F", bound=Any)
Property = bool | int | float | str
STREAMED_BYTES: Final = 1 << 20  # a larger file is not read into memory but sent piece by piece
WINDOW: Final = 512
MANY: Final = 4096


def destination_options(command: F) -> F:
    return click.option("--topic", "is_topic", is_flag=True, help="NAME is a durable topic, not a queue.")(command)


def property_of(text: str) -> tuple[str, Property]:
    """`n=5` is a number, `n=true` a truth value, `n="5"` (in quotes) and everything else a text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"A property is NAME=VALUE, not {text!r}.")
    try:
        meant = json.loads(value)
    except ValueError:
        return name, value
    return name, meant if isinstance(meant, bool | int | float | str) else value


# --- Sending ----------------------------------------------------------------------------------------------------
@click.command()
@click.argument("name")
@click.argument("body", required=False)
@connecting
@click.option("--file", metavar="FILE", help="The body is in a file; a large one is sent in pieces.")
@click.option("--lines", is_flag=True, help="Each line of the file, or of standard input, is a message.")
@click.option("--key", help="Messages of one key are consumed in order, by one consumer at a time.")
@click.option("--priority", type=click.IntRange(0, 9), default=4, show_default=True)
@click.option("--ttl", type=click.FloatRange(min=0), metavar="SECONDS", help="Not delivered later than that.")
@click.option("--delay", type=click.FloatRange(min=0), metavar="SECONDS", help="Not delivered before that.")
@click.option("--cron", metavar="EXPRESSION", help="A schedule: send it again and again, e.g. '*/5 * * * *'.")
@click.option("--property", "-p", "properties", metavar="NAME=VALUE", multiple=True, help="For selectors.")
@click.option("--dedup", metavar="ID", help="Stored once, however often it is sent with this id.")
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="How many times.")
@click.option("--no-create", is_flag=True, help="Fail if there is no such queue, instead of making it.")
@destination_options
@as_json_option
@one_sentence
def send(
    name: str,
    body: str | None,
    server: str,
    user: str | None,
    password: str | None,
    ca: str | None,
    file: str | None,
    lines: bool,
    properties: tuple[str, ...],
    count: int,
    no_create: bool,
    is_topic: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Send to queue NAME: BODY, a file, or standard input (`-`). It ends when everything is on stable storage.

    \b
    Examples:
      fairlead send orders '{"id": 7}' -p region=eu -p amount=12.5
      fairlead send orders --file orders.jsonl --lines --key customer-7
      fairlead send reminders 'call back' --delay 3600
      pg_dump shop | fairlead send backups -
    """
    facts = {key: value for key, value in how.items() if value is not None}
    if properties:
        facts["properties"] = dict(property_of(text) for text in properties)

    async def work() -> int:
        sent, last = 0, None
        async with open_connection("fairlead-send", server, user, password, ca) as connection:
            destination = destination_of(connection, name, is_topic, create=not no_create)
            with ExitStack() as stack:
                source = bodies(body, file, lines, stack)
                async with destination.sender(window=WINDOW) as sender:
                    while (one := await asyncio.to_thread(next, source, None)) is not None:
                        for _ in range(count):
                            if isinstance(one, bytes):
                                last = await sender.send(one, **facts)
                            else:
                                one.seek(0) if one.seekable() else None
                                last = await destination.send(one, **facts)
                            sent += 1
        if as_json:
            click.echo(json.dumps({"sent": sent, "destination": name, **await receipt_facts(last)}))
        return 0

    run(work())


async def receipt_facts(last: Any) -> dict[str, Any]:
    if last is None:
        return {}
    receipt = await last if asyncio.isfuture(last) else last
    return {"id": str(receipt.id), "order": receipt.order, "duplicate": receipt.duplicate}


def destination_of(connection: Connection, name: str, is_topic: bool, *, create: bool) -> Any:
    return connection.topic(name, create=create) if is_topic else connection.queue(name, create=create)


def bodies(body: str | None, file: str | None, lines: bool, stack: ExitStack) -> Iterator[bytes | BinaryIO]:
    """What to send: bytes, or an open file that is too large to hold."""
    if body is not None and body != "-":
        if file is not None or lines:
            raise ConfigError("Give the body as an argument or with --file, not both.")
        yield body.encode()
        return
    stream = sys.stdin.buffer if file in (None, "-") else opened(str(file), stack)
    if lines:
        for line in stream:
            yield line.rstrip(b"\r\n")
        return
    start = stream.read(STREAMED_BYTES)
    if len(start) < STREAMED_BYTES:
        yield start
    else:
        yield stream if stream.seekable() else Joined(start, stream)  # type: ignore[misc]


class Joined:
    """What was read already, then the rest: a pipe cannot go back."""

    def __init__(self, start: bytes, rest: BinaryIO) -> None:
        self._start, self._rest = start, rest

    def seekable(self) -> bool:
        return False

    def read(self, size: int = -1) -> bytes:
        if not self._start:
            return self._rest.read(size)
        if size < 0:
            piece, self._start = self._start, b""
            return piece + self._rest.read()
        piece, self._start = self._start[:size], self._start[size:]
        return piece


def opened(file: str, stack: ExitStack) -> BinaryIO:
    try:
        return stack.enter_context(Path(file).open("rb"))
    except OSError as error:
        raise ConfigError(f"Cannot read {file}: {error.strerror}.") from None


# --- Receiving --------------------------------------------------------------------------------------------------
@click.command()
@click.argument("name")
@connecting
@click.option("--count", type=click.IntRange(min=1), help="End after so many; 1 unless --follow.")
@click.option("--follow", "-f", is_flag=True, help="Go on until Ctrl-C.")
@click.option("--timeout", type=float, default=5.0, show_default=True, help="Exit with 3 if none comes (not --follow).")
@click.option("--selector", metavar="CONDITION", help="Only messages for which it is true, e.g. \"region = 'eu'\".")
@click.option("--no-ack", is_flag=True, help="Give them back: they stay in the queue, and count as delivered once.")
@click.option("--subscription", metavar="NAME", help="With --topic: a durable subscription, made if there is none.")
@click.option("--client", metavar="NAME", help="With --subscription: whose; fairlead-receive if nothing is said.")
@click.option("--save", metavar="FILE", help="Write the body of one message to a file, however large it is.")
@destination_options
@as_json_option
@one_sentence
def receive(
    name: str,
    server: str,
    user: str | None,
    password: str | None,
    ca: str | None,
    count: int | None,
    follow: bool,
    timeout: float,
    selector: str | None,
    no_ack: bool,
    subscription: str | None,
    client: str | None,
    save: str | None,
    is_topic: bool,
    as_json: bool,
) -> None:
    """Take messages from queue NAME and print them; each is acknowledged when it has been written.

    \b
    Examples:
      fairlead receive orders
      fairlead receive orders --follow --json --selector "region = 'eu' AND amount > 10"
      fairlead receive orders --count 10 --no-ack
      fairlead receive prices --topic --subscription audit --follow
      fairlead receive backups --save shop.sql
    """
    left = 1 if save else count if count is not None else None if follow else 1

    async def work() -> int:
        nonlocal left
        taken: list[Any] = []
        async with open_connection(client or "fairlead-receive", server, user, password, ca) as connection:
            destination = destination_of(connection, name, is_topic, create=is_topic)
            source = (
                destination.subscribe(durable=subscription, selector=selector, ack="individual")
                if is_topic
                else destination.consume(selector=selector, prefetch=min(left or 100, 100))
            )
            async with AsyncExitStack() as stack:
                consumer = await stack.enter_async_context(source)
                while left is None or left > 0:
                    message = await consumer.receive(timeout=None if follow else timeout)
                    if message is None:
                        click.echo(f"fairlead: no message came from {name} within {timeout:g} s", err=True)
                        return EXIT_NO_ANSWER
                    if save:
                        await message.save(save)
                    else:
                        await show(message, as_json)
                    if no_ack:
                        taken.append(message)
                    else:
                        await message.ack(confirm=left == 1)
                    left = None if left is None else left - 1
                for message in taken:
                    await message.retry()
        return 0

    run(work())


@click.command()
@click.argument("name")
@connecting
@click.option("--count", type=click.IntRange(min=1), help="Not more than that.")
@click.option("--selector", metavar="CONDITION", help="Only messages for which it is true.")
@as_json_option
@one_sentence
def browse(
    name: str,
    server: str,
    user: str | None,
    password: str | None,
    ca: str | None,
    count: int | None,
    selector: str | None,
    as_json: bool,
) -> None:
    """Print the messages of queue NAME without taking them.

    \b
    Examples:
      fairlead browse orders
      fairlead browse _DMQ --json --count 100
    """

    async def work() -> int:
        shown = 0
        async with open_connection("fairlead-browse", server, user, password, ca) as connection:
            async for message in connection.queue(name, create=False).browse(selector=selector):
                await show(message, as_json)
                shown += 1
                if shown == count:
                    break
        return 0

    run(work())


async def show(message: Any, as_json: bool) -> None:
    """One line for programs, or the body as it is; a body too large to hold is only named."""
    out = sys.stdout.buffer
    if as_json:
        out.write(terminal.as_json(facts_of(message)).encode() + b"\n")
    elif message.is_large:
        async for piece in message.stream():
            out.write(terminal.content(piece))
    else:
        out.write(terminal.content(message.body) + b"\n")
    out.flush()


def facts_of(message: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "id": str(message.id),
        "order": message.order,
        "destination": message.destination,
        "timestamp": message.timestamp.isoformat(),
        "priority": message.priority,
        "delivery_count": message.delivery_count,
    }
    for name in ("key", "correlation_id", "reply_to", "type"):
        if (value := getattr(message, name)) is not None:
            facts[name] = value
    if message.expiration is not None:
        facts["expiration"] = message.expiration.isoformat()
    if message.properties:
        facts["properties"] = {
            name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
            for name, value in message.properties.items()
        }
    if message.is_large:
        facts["size"] = message.size
        return facts
    try:
        facts["body"] = message.body.decode()
    except UnicodeDecodeError:
        facts["body_base64"] = base64.b64encode(message.body).decode()
    return facts
