"""`fairlead bench`: how fast is it here."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable

import click

from fairlead.bench import flows
from fairlead.cli.options import as_json_option, one_sentence
from fairlead.runtime.version import VERSION

FLOWS: dict[str, list[Callable[[str, float], flows.Flow]]] = {
    "broadcast": [
        lambda url, seconds: flows.broadcast(url, seconds, 128, 1),
        lambda url, seconds: flows.broadcast(url, seconds, 1024, 1),
    ],
    "fanout": [lambda url, seconds: flows.broadcast(url, seconds, 128, 8)],
    "request": [
        lambda url, seconds: flows.requests(url, seconds, 128, 1),
        lambda url, seconds: flows.requests(url, seconds, 128, 64),
    ],
    "latency": [lambda url, seconds: flows.latency(url, seconds, 256, 5000)],
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(FLOWS)))
@click.option("--server", metavar="URL", help="A running server; without it one is started for the measurement.")
@click.option("--seconds", type=click.FloatRange(min=0.2), default=3.0, show_default=True, help="Length of a run.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each flow.")
@as_json_option
@one_sentence
def bench(names: tuple[str, ...], server: str | None, seconds: float, repeats: int, as_json: bool) -> None:
    """Measure flows through the server with processes of their own, every message checked.

    Figures of one machine mean little without another broker in the same run: benchmarks/peers does that.

    \b
    Examples:
      fairlead bench
      fairlead bench broadcast request --seconds 5
      fairlead bench --server fairlead://127.0.0.1:7400 --json
    """
    if server:
        measure(server, names, seconds, repeats, as_json)
        return
    from fairlead.testing import Server

    with Server(managers=0) as own:
        measure(own.url, names, seconds, repeats, as_json)


def measure(url: str, names: tuple[str, ...], seconds: float, repeats: int, as_json: bool) -> None:
    rows = []
    for name in names or FLOWS:
        for flow in FLOWS[name]:
            runs = []
            for number in range(repeats):
                runs.append(flow(url, seconds))
                if sys.stderr.isatty():
                    click.echo(f"\r{runs[-1].name}: run {number + 1} of {repeats}\033[K", nl=False, err=True)
            rows.append(runs)
    if sys.stderr.isatty():
        click.echo("\r\033[K", nl=False, err=True)
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    if as_json:
        found = [[run._asdict() for run in runs] for runs in rows]
        click.echo(json.dumps({"version": VERSION, "machine": machine, "seconds": seconds, "flows": found}))
        return
    show(rows, machine)


def show(rows: list[list[flows.Flow]], machine: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Fairlead {VERSION} on {machine}", title_justify="left", box=None, pad_edge=False)
    for column in ("flow", "median", "lowest", "highest", "", "p50 µs", "p99 µs", "lost", "out of order"):
        table.add_column(column, justify="left" if column in ("flow", "") else "right")
    for runs in rows:
        rates = [run.rate for run in runs]
        delays = [
            f"{statistics.median(run.delays[key] for run in runs):,.0f}" if runs[0].delays else ""
            for key in ("p50_us", "p99_us")
        ]
        table.add_row(
            runs[0].name, *(f"{rate:,.0f}" for rate in (statistics.median(rates), min(rates), max(rates))),
            runs[0].unit, *delays, str(sum(run.lost for run in runs)), str(sum(run.out_of_order for run in runs)),
        )  # fmt: skip
    Console(highlight=False, width=None if sys.stdout.isatty() else 140).print(table)
