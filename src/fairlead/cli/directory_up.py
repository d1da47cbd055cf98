"""`fairlead directory up`: directory servers and brokers on this host, from one command."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.cli.options import one_sentence
from fairlead.errors import ConfigError, FairleadError, Unavailable

if TYPE_CHECKING:
    from fairlead.runtime.local_directory import LocalDirectory


@click.command("up")
@click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), required=True, help="Directory of everything."
)
@click.option("--servers", type=click.IntRange(1, 5), default=1, show_default=True, help="Directory servers.")
@click.option(
    "--brokers", default="A,B,C", show_default=True, help="Names of the brokers, in the order of the cluster."
)
@click.option("--cluster", default="cluster-A", show_default=True, help="The cluster all of them join.")
@click.option("--wait", "wait_s", type=float, default=60.0, show_default=True, help="Seconds until all must serve.")
@one_sentence
def up(data: Path, servers: int, brokers: str, cluster: str, wait_s: float) -> None:
    """Start a directory and its brokers on this host, each a process of its own; Ctrl-C stops them in order.

    \b
    Examples:
      fairlead directory up --data ./try
      fairlead directory up --data ./try --servers 3 --brokers A,B,C,D,E
    Then, with the URL it prints:
      fairlead directory brokers --server fairlead+directory://127.0.0.1:PORT
    Exit codes: 0 stopped in order, 1 it does not come up or all of them ended, 2 the options.
    """
    from fairlead.runtime.local_directory import LocalDirectory

    names = [name.strip() for name in brokers.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise ConfigError("--brokers needs different names, separated by commas, such as A,B,C")
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    local = LocalDirectory(data, servers=servers, brokers=names, cluster=cluster)
    fault: FairleadError | None = None
    try:
        local.start()
        asyncio.run(_serving(local, over, wait_s))
        click.echo(f"applications connect to {local.url}")
        sys.stdout.flush()
        _stay(local, over)
    except FairleadError as error:
        fault = error
    finally:
        killed = local.stop()
    for name in killed:
        click.echo(f"{name} did not stop in time and was killed", err=True)
    if fault is not None:
        raise fault
    sys.exit(1 if killed else 0)


def _stay(local: LocalDirectory, over: threading.Event) -> None:
    """Until we are told to end, or nothing runs any more. The others go on without one that has ended."""
    told: set[str] = set()
    while not over.wait(1.0):
        for name in sorted(set(local.ended()) - told):
            told.add(name)
            click.echo(f"{name} has ended; {local.home / name / 'output.txt'} has its last words", err=True)
        if len(told) == len(local.servers) + len(local.brokers):
            raise Unavailable("all of them have ended")


async def _serving(local: LocalDirectory, over: threading.Event, wait_s: float) -> None:
    """Until all brokers can be picked; then the cluster gets their order."""
    from fairlead.directory.edge.client import DirectoryClient

    until_s, missing, wanted = time.monotonic() + wait_s, "", set(local.brokers)
    async with DirectoryClient(local.servers_url) as directory:
        while not over.is_set():
            if ended := local.ended():
                raise Unavailable(f"{ended[0]} ended while it started:\n{local.output(ended[0])}")
            try:
                found = {row.name for row in (await directory.list_brokers(timeout=1.0)).brokers if row.available}
                missing = f"no word from {', '.join(sorted(wanted - found))}"
                if wanted <= found:
                    break
            except FairleadError as error:
                missing = str(error)
            if time.monotonic() >= until_s:
                raise Unavailable(f"not all of them serve after {wait_s:g} s: {missing}")
            await asyncio.sleep(0.1)
        for position, name in enumerate(local.brokers):
            await directory.join_cluster(cluster=local.cluster, broker=name, position=position)
