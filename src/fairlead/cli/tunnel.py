"""`fairlead tunnel`: the gateway of HTTP tunnels, alone or seen from outside."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.options import as_json_option, fail, one_sentence
from fairlead.errors import Unavailable

if TYPE_CHECKING:
    from fairlead.tunnel.edge.gateway.serve import GatewayServer

FILE = click.Path(dir_okay=False, path_type=Path)


@click.group("tunnel")
def tunnel_group() -> None:
    """Tunnels: connections through HTTP, for clients that can reach nothing else.

    `fairlead serve` has a gateway of its own; `fairlead tunnel serve` runs one elsewhere, which brokers dial.
    """


@tunnel_group.command("serve")
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:7480", show_default=True, help="For clients.")
@click.option("--link", metavar="HOST:PORT", default="127.0.0.1:7401", show_default=True, help="For brokers.")
@click.option("--secret-file", type=FILE, help="What brokers must know; `fairlead node secret FILE` makes one.")
@click.option("--certificate", type=FILE, help="A TLS certificate (PEM), for clients and brokers.")
@click.option("--key", type=FILE, help="Its private key.")
@click.option("--link-ca", type=FILE, help="Brokers must show a certificate signed by this one.")
@click.option("--server", "servers", metavar="NAME", multiple=True, help="A broker that is expected to link.")
@click.option("--allow-v1", is_flag=True, help="Also tunnels of version 1, which have neither token nor checksum.")
@click.option("--max-tunnels", type=click.IntRange(min=1), help="In all.")
@click.option("--max-tunnels-per-address", type=click.IntRange(min=1), help="Of one client address.")
@click.option("--max-tunnels-per-server", type=click.IntRange(min=1), help="To one broker.")
@click.option("--max-opens", type=click.FloatRange(min=0, min_open=True), help="New tunnels a second.")
@click.option("--max-buffered", type=click.IntRange(min=1), metavar="BYTES", help="What may wait for all clients.")
@click.option("--hold", type=click.FloatRange(min=0), metavar="SECONDS", help="The longest a pull is held.")
@click.option("--status-token-file", type=FILE, help="Whoever shows its content may see the status from anywhere.")
@click.option("--instance", metavar="NAME", help="Name of this gateway among several behind one address.")
@click.option("--workers", type=int, default=1, help="Only 1: tunnels live in one process.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
@click.option("--ready-fd", type=int, metavar="N", help="Write `READY URL LINK` to this descriptor when ready.")
@one_sentence
def serve_command(
    listen: str,
    link: str,
    secret_file: Path | None,
    certificate: Path | None,
    key: Path | None,
    link_ca: Path | None,
    servers: tuple[str, ...],
    allow_v1: bool,
    max_tunnels: int | None,
    max_tunnels_per_address: int | None,
    max_tunnels_per_server: int | None,
    max_opens: float | None,
    max_buffered: int | None,
    hold: float | None,
    status_token_file: Path | None,
    instance: str | None,
    workers: int,
    log_level: str,
    ready_fd: int | None,
) -> None:
    """Run a gateway in the foreground; Ctrl-C or SIGTERM stops it, and tunnels go on when it comes back.

    Clients connect to http(s)://HOST:PORT/tunnel/NAME, where NAME is the name of a broker that has dialled the link.

    \b
    Examples:
      fairlead tunnel serve                                   to try it on one host
      fairlead node secret ./link.secret
      fairlead tunnel serve --listen 0.0.0.0:443 --link 0.0.0.0:7401 --secret-file ./link.secret \\
          --certificate ./gate.pem --key ./gate.key --server orders --server prices
    Exit codes: 0 stopped in order, 2 the settings or a port.
    """
    import logging

    from fairlead.tunnel.edge.gateway.serve import serve
    from fairlead.tunnel.edge.gateway.settings import GatewaySettings, advice, read_token

    if workers != 1:
        raise click.UsageError("Tunnels live in the memory of one process: --workers can only be 1.")
    chosen = {
        "tunnels_max": max_tunnels,
        "tunnels_per_address": max_tunnels_per_address,
        "tunnels_per_server": max_tunnels_per_server,
        "opens_per_s": max_opens,
        "buffered_bytes_max": max_buffered,
        "hold_s": hold,
    }
    settings = GatewaySettings(
        listen=listen,
        link_listen=link,
        secret_file=str(secret_file or ""),
        certificate=str(certificate or ""),
        key=str(key or ""),
        link_ca=str(link_ca or ""),
        servers=servers,
        allow_v1=allow_v1,
        instance=instance or "",
        status_token=read_token(status_token_file) if status_token_file else "",
        **{name: value for name, value in chosen.items() if value is not None},  # type: ignore[arg-type]
    )
    for sentence in advice(settings):
        click.echo(f"fairlead: note: {sentence}", err=True)
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it warns of every request that is none
    sys.exit(serve(settings, ready=lambda server: tell_ready(server, ready_fd)))


def tell_ready(server: GatewayServer, ready_fd: int | None) -> None:
    url = server.urls[0] if server.urls else server.settings.listen
    links = ", ".join(server.link_addresses())
    click.echo(f"Clients: {url}/NAME    Brokers dial: {links}", err=True)
    if ready_fd is not None:
        with open(ready_fd, "w", encoding="utf-8") as pipe:
            pipe.write(f"READY {url} {links}\n")


@tunnel_group.command("status")
@click.option(
    "--url",
    metavar="URL",
    default="http://127.0.0.1:7480/tunnel",
    show_default=True,
    envvar="FAIRLEAD_TUNNEL_URL",
    help="Where the gateway is; http://127.0.0.1:7400/tunnel for the one of `fairlead serve`.",
)
@click.option("--token-file", type=FILE, help="The status token, for a gateway on another host.")
@click.option("--ca", type=FILE, help="Certificates to trust, for https with one of your own.")
@as_json_option
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds between two.")
@one_sentence
def status_command(
    url: str, token_file: Path | None, ca: Path | None, as_json: bool, watch: bool, interval: float
) -> None:
    """Show the tunnels and links of a gateway.

    \b
    Examples:
      fairlead tunnel status
      fairlead tunnel status --url http://127.0.0.1:7400/tunnel --watch
      fairlead tunnel status --json | jq '.tunnels | length'
    """
    from fairlead.tunnel.edge.gateway.settings import read_token

    token = read_token(token_file) if token_file else ""
    try:
        while True:
            report = ask(f"{url.rstrip('/')}/status", token, ca)
            if as_json:
                click.echo(json.dumps(report, indent=None if watch else 2))
            else:
                if watch:
                    click.clear()
                show(report)
            if not watch:
                return
            time.sleep(interval)
    except KeyboardInterrupt:
        sys.exit(0)


def ask(url: str, token: str, ca: Path | None) -> dict[str, Any]:
    import ssl
    from urllib.error import HTTPError, URLError
    from urllib.parse import urlsplit
    from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        fail(f"{url!r} is no address of a gateway: write http://HOST:PORT/tunnel", 2)
    handlers: list[Any] = (
        [HTTPSHandler(context=ssl.create_default_context(cafile=ca))] if parts.scheme == "https" else []
    )
    if parts.hostname in ("127.0.0.1", "localhost", "::1"):
        handlers.append(ProxyHandler({}))  # what is on this host is not asked for through a proxy
    request = Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with build_opener(*handlers).open(request, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
    except HTTPError as error:
        with error:
            said = "".join(filter(str.isprintable, error.read(500).decode("utf-8", "replace")))
            raise Unavailable(f"{url}: {error.code} {said}") from None
    except (URLError, OSError) as error:
        raise Unavailable(f"No gateway answers at {url}: {getattr(error, 'reason', error)}.") from None
    except ValueError:
        raise Unavailable(f"What answers at {url} is no gateway.") from None
    return found


def show(report: dict[str, Any]) -> None:
    """The report as tables; numbers the ends alone know (round trips, intervals) are theirs to show."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)

    def table(title: str, *columns: str) -> Table:
        made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, show_edge=False)
        for column in columns:
            made.add_column(column, justify="left" if column in WORDS else "right", no_wrap=True)
        return made

    counters, edge = report["counters"], report["edge"]
    console.print(
        f"[bold]Gateway {plain(report['instance'])}[/bold] (Fairlead {plain(report['version'])}): "
        f"{len(report['tunnels']):,} tunnels, {len(report['links']):,} links, "
        f"{report['buffered_bytes']:,} bytes wait for clients\n"
    )
    links = table("Links", "server", "version", "tunnels", "age", "silent")
    for one in report["links"]:
        name = plain(one["server"]) or "not said"
        links.add_row(name, str(one["version"]), f"{one['tunnels']:,}", seconds(one["age_s"]), seconds(one["silent_s"]))
    console.print(links, "")
    tunnels = table("Tunnels", *COLUMNS)
    for one in report["tunnels"]:
        up, down = one["up"], one["down"]
        tunnels.add_row(
            str(one["connection_id"]),
            *(plain(one[name]) for name in ("server", "version", "state", "carrier", "address")),
            seconds(one["age_s"]),
            seconds(one["pull_period_s"]),
            seconds(one["last_pull_s"]),
            *(both(up[name], down[name]) for name in FLOW),
            f"{one['crc_failures']:,}",
            f"{one['waiting_packets']:,}",
            f"{one['dropped']:,}",
        )
    console.print(tunnels, "")
    console.print(
        f"{counters['opened']:,} opened, {counters['adopted']:,} adopted, {counters['closed']:,} closed, "
        f"{counters['aborted']:,} aborted; {counters['packets_up']:,} packets ({counters['bytes_up']:,} bytes) up, "
        f"{counters['packets_down']:,} ({counters['bytes_down']:,} bytes) down; {counters['damaged']:,} damaged, "
        f"{counters['dropped'] + edge['dropped_links'] + edge['dropped_streams']:,} dropped"
    )


WORDS = {"server", "state", "carrier", "client"}
FLOW = ("received", "consumed", "window", "edge", "unacknowledged", "resends")
COLUMNS = (
    *("id", "server", "version", "state", "carrier", "client", "age", "period", "last pull"),
    *("R up/down", "C", "window", "edge", "unacked", "resends"),
    *("CRC failures", "waiting", "dropped"),
)


def both(up: int | None, down: int | None) -> str:
    """Towards the broker, and towards the client."""
    return "/".join("-" if one is None else str(one) for one in (up, down))


def plain(text: object) -> str:
    """Names are others' words: nothing in them moves the cursor, or is taken for a style."""
    from rich.markup import escape

    return escape("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(text)))


def seconds(value: float) -> str:
    return f"{value:,.1f} s" if value < 100 else f"{value:,.0f} s"
