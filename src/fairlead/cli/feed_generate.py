"""`fairlead feed generate`: a made-up trading day, into a file or onto the network."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from fairlead.cli.options import EXIT_USAGE
from fairlead.errors import ConfigError


@click.command("generate")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
@click.option(
    "--to", "lines", metavar="HOST:PORT", multiple=True, help="Send there, over UDP; once for each line (A, B)."
)
@click.option("--rewind", metavar="HOST:PORT", help="Answer questions for missed packets here, over UDP and TCP.")
@click.option("--rate", type=float, default=10_000.0, show_default=True, help="Messages a second, with --to.")
@click.option("--messages", type=int, default=1_000_000, show_default=True, help="How many the day has.")
@click.option("--seed", type=int, default=1, show_default=True, help="Another number is another day.")
@click.option("--symbols", type=int, default=100, show_default=True)
@click.option("--malformed", type=int, default=0, show_default=True, help="Broken on purpose, of 10,000.")
@click.option("--session", default="DAY0000001", show_default=True, help="At most ten characters.")
@click.option("--per-packet", type=click.IntRange(1, 1000), default=20, show_default=True, help="Messages in a packet.")
@click.option("--interface", default="127.0.0.1", show_default=True, help="By which multicast leaves.")
def generate(
    file: Path | None,
    lines: tuple[str, ...],
    rewind: str | None,
    rate: float,
    messages: int,
    seed: int,
    symbols: int,
    malformed: int,
    session: str,
    per_packet: int,
    interface: str,
) -> None:
    """A made-up trading day in the format `itch`: the same for the same seed. docs/feed-formats.md describes it.

    \b
    Examples:
      fairlead feed generate day.mold --messages 100000
      fairlead feed generate --to 127.0.0.1:7001 --to 127.0.0.1:7002 --rewind 127.0.0.1:7003 --rate 5000
      fairlead feed generate --to 239.1.1.1:7001 --rate 100000
    Exit codes: 0 the whole day was written or sent, 2 the options.
    """
    try:
        from fairlead.feeds.sources.day import TradingDay

        if (file is None) == (not lines):
            raise ConfigError("Say either a file or where to send it, with --to.")
        if not session.strip() or not session.isascii() or len(session) > 10:
            raise ConfigError(f"A session has one to ten ASCII characters; {session!r} has not.")
        day = TradingDay(seed=seed, messages=messages, symbols=symbols, malformed=malformed)
        if file is not None:
            from fairlead.feeds.edge.sources.recording import write_day

            size = write_day(file, day, session)
            click.echo(f"{messages} messages, {size} bytes: {file}")
        else:
            _transmit(day, lines, rewind, rate, session, per_packet, interface)
    except (ConfigError, OSError) as error:
        click.echo(f"fairlead: {error}", err=True)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        sys.exit(0)


def _transmit(
    day: object,
    lines: tuple[str, ...],
    rewind: str | None,
    rate: float,
    session: str,
    per_packet: int,
    interface: str,
) -> None:
    from fairlead.feeds.edge.sources.transmitter import Transmitter
    from fairlead.feeds.sources.day import TradingDay
    from fairlead.feeds.sources.settings import split_address

    assert isinstance(day, TradingDay)
    addresses = [split_address(line, "--to") for line in lines]
    answering = split_address(rewind, "--rewind") if rewind else None
    with Transmitter(day.run, session=session, per_packet=per_packet, interface=interface) as transmitter:
        audience = transmitter.add_audience("all", addresses, answering)
        where = f", rewind at {' and '.join(audience.rewind)}" if rewind else ""
        click.echo(f"{day.messages} messages to {' and '.join(lines)} at {rate:g} a second{where}")
        last = transmitter.send(day.messages, rate)
        while transmitter.sent < last:
            try:
                transmitter.wait_sent(last, timeout_s=1.0)
            except TimeoutError:
                continue
        for _ in range(3):  # heartbeats tell of a loss at the end, and questions come after them
            time.sleep(0.5)
            transmitter.end_session()
