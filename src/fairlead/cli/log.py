"""`fairlead log`: the events of a server, from its file or as they happen."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from fairlead.cli import terminal
from fairlead.cli.options import as_json_option, one_sentence
from fairlead.cli.traffic import connecting, open_connection, run
from fairlead.errors import ConfigError

LEVELS: Final = ("debug", "info", "warning", "error")
LOG_TOPIC: Final = "_LOG"
FILE: Final = Path("log") / "events.jsonl"
UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LOOK_AGAIN_S: Final = 0.2
LINES_MAX: Final = 1000  # of one answer over the network


class Wanted:
    """Which events are asked for."""

    def __init__(self, level: str, codes: tuple[str, ...], since_ms: int) -> None:
        self._level, self._codes, self.since_ms = LEVELS.index(level), set(codes), since_ms

    def __call__(self, event: dict[str, Any]) -> bool:
        level = str(event.get("level", "info"))
        return (
            (LEVELS.index(level) if level in LEVELS else 1) >= self._level
            and (not self._codes or event.get("code") in self._codes)
            and time_ms(event) >= self.since_ms
        )


@click.command("log")
@connecting
@click.option("--data", metavar="DIR", help="Read the file of a server on this host, running or not.")
@click.option("--follow", "-f", is_flag=True, help="Go on as events happen, until Ctrl-C.")
@click.option("--level", type=click.Choice(LEVELS), default="info", show_default=True, help="This one and worse.")
@click.option("--code", "codes", multiple=True, help="Only events of this code; may be given several times.")
@click.option("--since", metavar="TIME", help="A time (2026-01-31T12:00), or how long ago: 30s, 10m, 2h, 1d.")
@as_json_option
@one_sentence
def log(
    server: str,
    user: str | None,
    password: str | None,
    ca: str | None,
    data: str | None,
    follow: bool,
    level: str,
    codes: tuple[str, ...],
    since: str | None,
    as_json: bool,
) -> None:
    """Print the events of a server: over the network from its `_LOG` topic, or with --data from its file.

    \b
    Examples:
      fairlead log --since 10m
      fairlead log -f --level warning
      fairlead log --data ./data --code store-full --json
    """
    wanted = Wanted(level, codes, since_ms(since, datetime.now(UTC)))
    if data:
        with contextlib.suppress(KeyboardInterrupt):
            for event in events_of(Path(data).expanduser() / FILE, follow):
                if wanted(event):
                    say(event, as_json)
        return

    async def work() -> int:
        async with open_connection("fairlead-log", server, user, password, ca) as connection:
            if not follow:
                code = codes[0] if len(codes) == 1 else ""
                answer = await connection.admin.execute(
                    "log", lines=LINES_MAX, level=level, code=code, since_ms=wanted.since_ms
                )
                for event in filter(wanted, answer["lines"]):
                    say(event, as_json)
                return 0
            async for message in connection.topic(LOG_TOPIC).subscribe(start="first" if since else "new"):
                event = json.loads(message.body)
                if wanted(event):
                    say(event, as_json)
        return 0

    run(work())


def events_of(file: Path, follow: bool) -> Iterator[dict[str, Any]]:
    """Lines of the file, and of the one that takes its place when the server begins a new one."""
    try:
        stream = file.open(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"Cannot read {file}: {error.strerror}.") from None
    while True:
        with stream:
            line = ""
            while True:
                line += stream.readline()
                if line.endswith("\n"):
                    with contextlib.suppress(ValueError):  # a line cut short by a crash
                        yield json.loads(line)
                    line = ""
                elif not follow:
                    return
                elif file.exists() and not file.samefile(f"/dev/fd/{stream.fileno()}"):
                    break
                else:
                    time.sleep(LOOK_AGAIN_S)
        stream = file.open(encoding="utf-8")


def since_ms(text: str | None, now: datetime) -> int:
    """The time meant by --since, as milliseconds; 0: all of them."""
    if not text:
        return 0
    if ago := re.fullmatch(r"(\d+)([smhd])", text):
        return int((now - timedelta(seconds=int(ago[1]) * UNITS[ago[2]])).timestamp() * 1000)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise ConfigError(f"{text!r} is neither a time like 2026-01-31T12:00 nor an age like 10m.") from None


def time_ms(event: dict[str, Any]) -> int:
    found = event.get("ms", event.get("time_ms", 0))
    return int(found)


def say(event: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(terminal.as_json(event))
    else:
        when = datetime.fromtimestamp(time_ms(event) / 1000).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        more = " ".join(
            f"{key}={value}" for key, value in event.items() if key not in ("ms", "time_ms", "level", "code", "text")
        )
        level = str(event.get("level", "info"))
        text = f"{level:8} {event.get('code', '')}: {event.get('text', '')}{f' ({more})' if more else ''}"
        click.echo(f"{when} {terminal.plain(text)}")
    sys.stdout.flush()
