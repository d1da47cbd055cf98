"""`fairlead pub`, `sub`, `request`, `respond`: traffic from the command line, with the asynchronous client library."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shlex
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fairlead.cli import terminal
from fairlead.cli.login import login, login_options
from fairlead.cli.options import EXIT_NO_ANSWER, as_json_option, fail, one_sentence
from fairlead.errors import ConfigError, FairleadError, RequestTimeout

if TYPE_CHECKING:
    from fairlead.client.aio import Connection, Subscription
    from fairlead.client.aio.serving import Request
    from fairlead.message import Message

F = TypeVar("F", bound=Any)
DEFAULT_URL = "fairlead://127.0.0.1:7400"


# --- What the four share ----------------------------------------------------------------------------------------
def connecting(command: F) -> F:
    """Which server, and as whom."""
    for option in (
        login_options,
        click.option(
            "--ca",
            type=click.Path(exists=True, dir_okay=False),
            envvar="FAIRLEAD_CA",
            help="Certificates to trust, for fairleads://.",
        ),
        click.option("--password", envvar="FAIRLEAD_PASSWORD", help="Better given in FAIRLEAD_PASSWORD."),
        click.option("--user", help="Name to authenticate with."),
        click.option("--server", metavar="URL", default=DEFAULT_URL, show_default=True, envvar="FAIRLEAD_URL"),
    ):
        command = option(command)
    return command


def headers_option(command: F) -> F:
    return click.option(
        "--headers", "-H", metavar="KEY=VALUE", multiple=True, help="A header; may be given several times."
    )(command)


def open_connection(name: str, server: str, user: str | None, password: str | None, ca: str | None) -> Connection:
    import fairlead

    return fairlead.connect(server, name=name, user=user, reconnect_limit_s=30, **login(password, ca))


def run(work: Coroutine[Any, Any, int]) -> None:
    """To the end, or to Ctrl-C, which is an ordinary end here."""
    try:
        code = asyncio.run(work)
    except KeyboardInterrupt:
        code = 0
    sys.exit(code)


def parse_headers(texts: tuple[str, ...]) -> dict[str, bytes | str] | None:
    pairs: dict[str, bytes | str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"A header is KEY=VALUE, not {text!r}.")
        pairs[key] = value
    return pairs or None


def bodies(body: str | None, file: str | None) -> Iterator[bytes]:
    """The argument, the file, or each line of standard input."""
    if body is not None and file is not None:
        raise ConfigError("Give the body as an argument or with --file, not both.")
    if file == "-":
        yield sys.stdin.buffer.read()
    elif file is not None:
        try:
            yield Path(file).read_bytes()
        except OSError as error:
            raise ConfigError(f"Cannot read {file}: {error.strerror}.") from None
    elif body is not None:
        yield body.encode()
    else:
        for line in sys.stdin.buffer:
            yield line.rstrip(b"\r\n")


def body_options(command: F) -> F:
    command = click.option(
        "--file", metavar="FILE", help="Send the contents of a file (`-`: all of standard input) as one body."
    )(command)
    return click.argument("body", required=False)(command)


def as_facts(message: Message | Request) -> dict[str, Any]:
    """A message for programs; a body that is not text is given in base64."""
    facts: dict[str, Any] = {"topic": message.topic, "sender": message.sender}
    if message.user is not None:
        facts["user"] = message.user
    if message.headers:
        facts["headers"] = {key: value.decode("utf-8", "replace") for key, value in message.headers.items()}
    try:
        facts["body"] = message.body.decode()
    except UnicodeDecodeError:
        facts["body_base64"] = base64.b64encode(message.body).decode()
    return facts


def show(message: Message | Request, as_json: bool, *, with_topic: bool) -> None:
    out = sys.stdout.buffer
    if as_json:
        out.write(terminal.as_json(as_facts(message)).encode() + b"\n")
    else:
        out.write((f"{message.topic} ".encode() if with_topic else b"") + terminal.content(message.body) + b"\n")


# --- Broadcast --------------------------------------------------------------------------------------------------
@click.command()
@click.argument("topic")
@body_options
@connecting
@headers_option
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="How many times.")
@click.option("--interval", type=float, default=0.0, help="Seconds between two messages.")
@as_json_option
@one_sentence
def pub(
    topic: str,
    body: str | None,
    file: str | None,
    server: str,
    user: str | None,
    password: str | None,
    ca: str | None,
    headers: tuple[str, ...],
    count: int,
    interval: float,
    as_json: bool,
) -> None:
    """Publish to TOPIC: BODY, a file, or each line of standard input.

    \b
    Examples:
      fairlead pub demo.hello world
      fairlead pub prices.eur.usd 1.0843 -H source=ecb --count 10 --interval 0.1
      tail -f events.log | fairlead pub events
    """
    pairs = parse_headers(headers)

    async def work() -> int:
        published = 0
        async with open_connection("fairlead-pub", server, user, password, ca) as connection:
            lines = await asyncio.to_thread(lambda: bodies(body, file))
            while (data := await asyncio.to_thread(next, lines, None)) is not None:
                for number in range(count):
                    if interval and (published or number):
                        await asyncio.sleep(interval)
                    await connection.publish(topic, data, headers=pairs)
                    published += 1
            await connection.flush()
        if as_json:
            click.echo(json.dumps({"published": published, "topic": topic}))
        return 0

    run(work())


@click.command()
@click.argument("patterns", nargs=-1, required=True)
@connecting
@click.option("--count", type=click.IntRange(min=1), help="End after so many messages.")
@click.option("--timeout", type=float, help="Exit with 3 when no message came for so many seconds.")
@click.option("--raw", is_flag=True, help="Bodies only, without their topics.")
@as_json_option
@one_sentence
def sub(
    patterns: tuple[str, ...],
    server: str,
    user: str | None,
    password: str | None,
    ca: str | None,
    count: int | None,
    timeout: float | None,
    raw: bool,
    as_json: bool,
) -> None:
    """Print every message whose topic one of the PATTERNS stands for, until Ctrl-C.

    `*` is one word, `>` the rest, `?` one character.

    \b
    Examples:
      fairlead sub 'prices.>'
      fairlead sub orders.new 'alerts.*' --json
      fairlead sub ticks --count 1000 --timeout 5
    """

    async def work() -> int:
        left = count
        async with (
            open_connection("fairlead-sub", server, user, password, ca) as connection,
            contextlib.AsyncExitStack() as stack,
        ):
            subscriptions = [await stack.enter_async_context(connection.subscribe(one)) for one in patterns]
            if sys.stderr.isatty() and not as_json:
                click.echo(f"Listening to {', '.join(patterns)}; Ctrl-C ends.", err=True)
            async for message in merged(subscriptions, timeout):
                show(message, as_json, with_topic=not raw)
                sys.stdout.flush()
                if left is not None:
                    left -= 1
                    if left == 0:
                        return 0
        return 0

    run(work())


async def merged(subscriptions: list[Subscription], timeout: float | None) -> AsyncIterator[Message]:
    """Messages of several subscriptions as they come; RequestTimeout when none comes in time."""
    if len(subscriptions) == 1:
        while True:
            yield await subscriptions[0].next(timeout)
    waiting = {asyncio.ensure_future(one.next()): one for one in subscriptions}
    try:
        while True:
            done, _ = await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise RequestTimeout(f"No message came within {timeout:g} s.")
            for task in done:
                subscription = waiting.pop(task)
                waiting[asyncio.ensure_future(subscription.next())] = subscription
                yield task.result()
    finally:
        for task in waiting:
            task.cancel()


# --- Request and response ---------------------------------------------------------------------------------------
@click.command()
@click.argument("topic")
@body_options
@connecting
@headers_option
@click.option("--timeout", type=float, default=5.0, show_default=True, help="Seconds to wait for an answer.")
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="How many requests.")
@click.option("--all", "everybody", is_flag=True, help="Ask all that listen on the topic, not one of them.")
@click.option("--stream", is_flag=True, help="Print all responses of the receiver, not only the first.")
@as_json_option
@one_sentence
def request(
    topic: str,
    body: str | None,
    file: str | None,
    server: str,
    user: str | None,
    password: str | None,
    ca: str | None,
    headers: tuple[str, ...],
    timeout: float,
    count: int,
    everybody: bool,
    stream: bool,
    as_json: bool,
) -> None:
    """Ask somebody who serves TOPIC and print the answer.

    \b
    Examples:
      fairlead request pricing EURUSD
      fairlead request pricing 'who?' --all --timeout 1
      fairlead request reports --file query.json --stream --json
    Exit codes: 0 answered, 1 error, 3 no answer in time, or nobody serves the topic.
    """
    pairs = parse_headers(headers)

    async def work() -> int:
        async with open_connection("fairlead-request", server, user, password, ca) as connection:
            for data in bodies(body, file):
                for _ in range(count):
                    answers = 0
                    async for message in ask(connection, data):
                        answers += 1
                        show(message, as_json, with_topic=False)
                        sys.stdout.flush()
                    if not answers:
                        fail("Nobody answered.", EXIT_NO_ANSWER)
        return 0

    async def ask(connection: Connection, data: bytes) -> AsyncIterator[Message]:
        if everybody:
            async for message in connection.request_all(topic, data, timeout=timeout, headers=pairs):
                yield message
        elif stream:
            async for message in connection.request_stream(topic, data, timeout=timeout, headers=pairs):
                yield message
        else:
            yield await connection.request(topic, data, timeout=timeout, headers=pairs)

    run(work())


@click.command()
@click.argument("topic")
@click.argument("answer", required=False)
@connecting
@click.option(
    "--command", metavar="COMMAND", help="Answer with the output of a program that gets the request as input."
)
@click.option("--echo", is_flag=True, help="Answer with the request itself.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many requests.")
@click.option("--timeout", type=float, help="Exit with 3 when no request came for so many seconds.")
@as_json_option
@one_sentence
def respond(
    topic: str,
    answer: str | None,
    server: str,
    user: str | None,
    password: str | None,
    ca: str | None,
    command: str | None,
    echo: bool,
    count: int | None,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Serve requests for TOPIC: always with ANSWER, with the request itself, or with the output of a program.

    \b
    Examples:
      fairlead respond pricing 1.0843
      fairlead respond upper --command 'tr a-z A-Z'
      fairlead respond mirror --echo --count 10
    """
    if sum((answer is not None, command is not None, echo)) != 1:
        raise click.UsageError("Give one of ANSWER, --command and --echo.")

    async def reply_to(one: Request) -> None:
        if command is None:
            await one.reply(one.body if answer is None else answer)
            return
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate(one.body)
        if process.returncode:
            await one.fail(f"The program ended with status {process.returncode}.")
        else:
            await one.reply(output.removesuffix(b"\n"))

    async def work() -> int:
        left = count
        async with (
            open_connection("fairlead-respond", server, user, password, ca) as connection,
            connection.serve(topic) as requests,
        ):
            while left is None or left > 0:
                one = await requests.next(timeout)
                show(one, as_json, with_topic=False)
                sys.stdout.flush()
                try:
                    await reply_to(one)
                except OSError as error:
                    await one.fail(f"The program cannot be started: {error.strerror}.")
                except FairleadError as error:
                    click.echo(f"fairlead: {error}", err=True)
                if left is not None:
                    left -= 1
            await connection.flush()
        return 0

    run(work())
