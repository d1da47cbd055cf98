"""`fairlead streams record`: a stream to Parquet files, each message once, over any number of runs."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from fairlead.cli.login import login_options
from fairlead.cli.options import as_json_option, one_sentence
from fairlead.cli.streams_tail import line_of
from fairlead.cli.streams_target import DEFAULT_URL
from fairlead.cli.traffic import open_connection, run
from fairlead.errors import ConfigError, RequestTimeout

if TYPE_CHECKING:
    from fairlead.client.aio.feeding import Stream
    from fairlead.feeds.blocks import StreamMessage
    from fairlead.feeds.events import Event
    from fairlead.pipeline.recording import Recording

__all__ = ["record"]

BATCH: Final = 8192


@click.command()
@click.argument("name")
@click.option("--output", "directory", required=True, metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
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
@click.option("--from", "start", type=click.Choice(("new", "oldest")), default="new", show_default=True,
              help="Where a new recording begins; one that is there goes on where it ended.")  # fmt: skip
@click.option("--both", is_flag=True, help="Take the first copy of each message from two adapters.")
@click.option("--every", type=click.FloatRange(0.05, 3600), default=5.0, show_default=True, metavar="SECONDS",
              help="A file at least so often: what is younger is asked for again if the recorder dies.")  # fmt: skip
@click.option("--file-rows", type=click.IntRange(1), default=1_000_000, show_default=True, help="At most, in a file.")
@click.option("--count", type=click.IntRange(1), help="End after so many messages.")
@click.option("--idle", type=click.FloatRange(min=0.05), metavar="SECONDS", help="End when nothing came for so long.")
@as_json_option
@one_sentence
def record(
    name: str,
    directory: Path,
    server: str,
    user: str | None,
    password: str | None,
    ca: str | None,
    start: str,
    both: bool,
    every: float,
    file_rows: int,
    count: int | None,
    idle: float | None,
    as_json: bool,
) -> None:
    """Write stream NAME to a directory of Parquet files, until Ctrl-C.

    Its rows have who they are (source, sequence, part, number), the columns of the records, and what Spark, pandas and
    `fairlead pipeline run reconcile --received parquet:DIR` need. Run it again, and it goes on where it ended; what the
    adapters no longer have by then is reported as lost, by range.

    \b
    Examples:
      fairlead streams record prices.emea --output ./prices --from oldest
      fairlead streams record prices.emea --output ./prices --idle 10 --json
    """
    try:
        from fairlead.pipeline.recording import Recording
    except ImportError as error:
        raise ConfigError(f"Recording needs Arrow: pip install 'fairlead[feeds]' ({error}).") from None

    async def work() -> int:
        with Recording(directory, name) as recording:
            # Without a position, nothing had ever come when the recording began: then all there is belongs to it.
            begin: Any = start if recording.is_new else recording.state.position or "oldest"
            async with (
                open_connection("fairlead-record", server, user, password, ca) as connection,
                connection.stream(name, start=begin, mode="both" if both else "single", events=True) as stream,
            ):
                await _record(stream, recording, every_s=every, file_rows=file_rows, count=count, idle_s=idle)
            facts = {**recording.state._asdict(), "directory": str(directory)}
        if as_json:
            click.echo(json.dumps(facts))
        else:
            lost = sum(last - first + 1 for _, first, last in facts["lost"])
            click.echo(
                f"{directory}: {facts['rows']:,} messages in {facts['files']} files"
                + (f"; {lost} source sequences are lost" if lost else "")
            )
        return 0

    run(work())


async def _record(
    stream: Stream[Any],
    recording: Recording,
    *,
    every_s: float,
    file_rows: int,
    count: int | None,
    idle_s: float | None,
) -> None:
    """Until it is told to stop, the stream ends, or as much has come as was wanted."""
    loop = asyncio.get_running_loop()
    stopping = loop.create_task(_signalled(loop))
    if recording.is_new:
        recording.add([], stream.position, stream.schema, datetime.now(UTC))
        await asyncio.to_thread(recording.commit)  # from here on nothing that is new can be missed
    came = 0
    commit_s = loop.time() + every_s
    idle_at_s = None if idle_s is None else loop.time() + idle_s
    while not stopping.done() and (count is None or came < count):
        wait_s = max(min(commit_s, idle_at_s or commit_s) - loop.time(), 0.001)
        taking = asyncio.ensure_future(stream.batch(BATCH if count is None else min(BATCH, count - came), wait_s))
        await asyncio.wait([taking, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not taking.done():
            taking.cancel()  # before it took anything: what it had taken it would have given
            await asyncio.wait([taking])
            break
        try:
            items = taking.result()
        except RequestTimeout:
            items = []
        else:
            if not items:
                break
            idle_at_s = None if idle_s is None else loop.time() + idle_s
            _say(items)
            # The position is that behind these: nothing else takes from the stream.
            came += await asyncio.to_thread(recording.add, items, stream.position, stream.schema, datetime.now(UTC))
        if recording.uncommitted >= file_rows or loop.time() >= commit_s:
            if recording.is_dirty:
                await asyncio.to_thread(recording.commit)
            commit_s = loop.time() + every_s
        if idle_at_s is not None and loop.time() >= idle_at_s:
            break
    stopping.cancel()
    await asyncio.wait([stopping])
    if recording.is_dirty:
        await asyncio.to_thread(recording.commit)


async def _signalled(loop: asyncio.AbstractEventLoop) -> None:
    """Ends when somebody wants us to."""
    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    await told.wait()


def _say(items: list[StreamMessage | Event]) -> None:
    """Events, for whoever watches."""
    for item in items:
        if isinstance(item, msgspec.Struct):
            sys.stderr.write(line_of(item, as_json=False).decode())
