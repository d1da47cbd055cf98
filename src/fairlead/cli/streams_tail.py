"""`fairlead streams tail`: what comes on a stream, on the screen or as JSON lines."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from fairlead.cli import terminal
from fairlead.cli.login import login_options
from fairlead.cli.options import EXIT_NO_ANSWER, as_json_option, one_sentence
from fairlead.cli.streams_target import DEFAULT_URL
from fairlead.cli.traffic import open_connection, run
from fairlead.errors import FairleadError, RequestTimeout

if TYPE_CHECKING:
    from fairlead.feeds.blocks import StreamMessage
    from fairlead.feeds.events import Event

__all__ = ["tail"]


STARTS: Final = ("new", "oldest", "snapshot")


@click.command()
@click.argument("name")
@click.option("--server", metavar="URL", default=DEFAULT_URL, show_default=True, envvar="FAIRLEAD_STREAMS")
@click.option("--user", help="Name to authenticate with.")
@click.option("--password", envvar="FAIRLEAD_PASSWORD", help="Better given in FAIRLEAD_PASSWORD.")
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False),
    envvar="FAIRLEAD_CA",
    help="Certificates to trust, for TLS.",
)
@login_options
@click.option("--from", "start", type=click.Choice(STARTS), default="new", show_default=True, help="Where to begin.")
@click.option("--events", is_flag=True, help="Failovers, gaps and losses too, each where it happened.")
@click.option("--both", is_flag=True, help="Take the first copy of each message from two adapters.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many messages.")
@click.option("--timeout", type=float, help="Exit with 3 when nothing came for so many seconds.")
@as_json_option
@one_sentence
def tail(
    name: str,
    server: str,
    user: str | None,
    password: str | None,
    ca: str | None,
    start: str,
    events: bool,
    both: bool,
    count: int | None,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Print the messages of stream NAME as they come, until Ctrl-C.

    Each has its message number, its source with the sequence there, and its record by columns.

    \b
    Examples:
      fairlead streams tail prices.emea
      fairlead streams tail prices.emea --from oldest --count 100 --json
      fairlead streams tail prices.emea --events
    """

    async def work() -> int:
        left = count
        out = sys.stdout.buffer
        options: dict[str, Any] = {"start": start, "mode": "both" if both else "single"}
        async with (
            open_connection("fairlead-tail", server, user, password, ca) as connection,
            connection.stream(name, events=events, **options) as stream,
        ):
            while left is None or left > 0:
                try:
                    found = await stream.batch(4096 if left is None else min(left, 4096), timeout)
                except RequestTimeout:
                    click.echo(f"fairlead: Nothing came on {name} for {timeout:g} s.", err=True)
                    return EXIT_NO_ANSWER
                if not found:
                    return 0
                out.write(terminal.content(b"".join(line_of(item, as_json) for item in found)))
                out.flush()
                if left is not None:
                    left -= sum(not isinstance(item, msgspec.Struct) for item in found)
                await asyncio.sleep(0)
        return 0

    run(work())


def line_of(item: StreamMessage | Event, as_json: bool) -> bytes:
    """A message or an event as one line."""
    facts = _facts(item)
    if as_json:
        return terminal.harmless(msgspec.json.encode(facts).decode()).encode() + b"\n"
    if "event" in facts:
        about = " ".join(f"{key}={value}" for key, value in facts.items() if key != "event")
        return f"-- {facts['event']} {about}".rstrip().encode() + b"\n"
    parts = f".{facts['part']}/{facts['parts']}" if facts["parts"] > 1 else ""
    marks = "".join(f" [{mark}]" for mark in ("late", "snapshot") if facts.get(mark))
    return f"{facts['number']} {facts['source']} {facts['sequence']}{parts}{marks} {_content(facts)}\n".encode()


def _content(facts: dict[str, Any]) -> str:
    if "record" in facts:
        return " ".join(f"{key}={_plain(value)}" for key, value in facts["record"].items())
    if "admin" in facts:
        said = facts["admin"]
        return f"({said['kind']} {said['id']}) {said['body'].decode(errors='replace')}".rstrip()
    body: bytes = facts["body"]
    return body.decode() if body.isascii() and body.decode().isprintable() else body.hex()


def _plain(value: object) -> str:
    if value is None:
        return "-"
    return value.hex() if isinstance(value, bytes) else str(value)


def _facts(item: StreamMessage | Event) -> dict[str, Any]:
    if isinstance(item, msgspec.Struct):
        return {"event": type(item).__name__, **{key: getattr(item, key) for key in item.__struct_fields__}}
    facts: dict[str, Any] = {
        "number": item.number, "source": item.source, "sequence": item.sequence, "part": item.part, "parts": item.parts
    }  # fmt: skip
    if item.late:
        facts["late"] = True
    if item.snapshot:
        facts["snapshot"] = True
    if item.admin is not None:
        facts["admin"] = msgspec.structs.asdict(item.admin)
        return facts
    try:
        facts["record"] = item.record()
    except FairleadError:
        facts["body"] = item.body
    return facts
