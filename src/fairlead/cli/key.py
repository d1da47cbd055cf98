"""`fairlead key`: making keys for sealed messages, giving their public halves away, trusting those of others."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.directory_target import DirectoryTool, directory_command
from fairlead.cli.options import EXIT_ERROR, as_json_option, fail, one_sentence
from fairlead.errors import BadParameter, ConfigError

if TYPE_CHECKING:
    from fairlead.sealing.edge.files import Keys
    from fairlead.sealing.keys import PublicKey

FILE = click.Path(path_type=Path, dir_okay=False)
pins_option = click.option("--pins", type=FILE, help="Where the keys of others are pinned; FILE.pins if not said.")


@click.group("key")
def key_group() -> None:
    """Keys for sealed messages: who can read what is sent to an application.

    \b
    At the host of AX, and then at that of AZ:
      fairlead key new ax.keys --app AX
      fairlead key publish ax.keys AX --server fairlead+directory://d1,d2
      fairlead key list az.keys
    """


@key_group.command("new")
@click.argument("file", type=FILE)
@click.option("--app", help="A key pair for this application; it replaces the one it has.")
@click.option("--shared", metavar="NAME", help="A key to be shared by all who may read and write what is under it.")
@click.option("--stdin", is_flag=True, help="With --shared: take the key from standard input, as `key show` prints it.")
@as_json_option
@one_sentence
def new(file: Path, app: str | None, shared: str | None, stdin: bool, as_json: bool) -> None:
    """Make a key and add it to FILE, which is made if it is not there. The newest seals, older ones still open.

    The file is a secret: copy it to the hosts that run the application, and to nobody else.

    \b
    Examples:
      fairlead key new ax.keys --app AX
      fairlead key new ax.keys --shared letters
      ssh there fairlead key show ax.keys --secret letters | fairlead key new az.keys --shared letters --stdin
    """
    if bool(app) == bool(shared) or (stdin and not shared):
        raise click.UsageError("give either --app or --shared NAME; --stdin goes with --shared.")
    from fairlead.sealing import keys, sodium
    from fairlead.sealing.edge import files

    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    added: list[str] = []

    def change(before: Keys) -> Keys:
        if app:
            older = [pair for pair in before.pairs if pair.public.app == app]
            pair = keys.new_pair(app, since=today, older=older[-1] if older else None)
            added.append(pair.public.id.hex())
            return before._replace(pairs=(*before.pairs, pair))
        assert shared is not None
        secret = keys.of_text(sys.stdin.readline().strip(), sodium.KEY_BYTES) if stdin else None
        key = keys.new_shared(shared, since=today)
        if secret is not None:
            key = keys.SharedKey(key.name, secret, today)
        if key.id in {other.id for other in before.shared}:
            raise BadParameter(f"That key is in {file} already.")
        added.append(key.id.hex())
        return before._replace(shared=(*before.shared, key))

    files.update(file, change)
    facts = {"file": str(file), "id": added[0]} | ({"app": app} if app else {"shared": shared})
    told(as_json, facts, f"Added the key {added[0]} of {app or shared} to {file}.")


@key_group.command("show")
@click.argument("file", type=FILE)
@click.option("--app", help="Only of this application.")
@click.option("--all", "every", is_flag=True, help="Older ones too, the newest last.")
@click.option("--secret", metavar="NAME", help="Print the shared key of this name instead. Whoever has it reads along.")
@one_sentence
def show(file: Path, app: str | None, every: bool, secret: str | None) -> None:
    """Print public keys of FILE as records, one per line: what others may know, and `fairlead key pin` takes.

    \b
    Examples:
      fairlead key show ax.keys
      fairlead key show ax.keys --secret letters
    """
    from fairlead.sealing.edge import files
    from fairlead.sealing.keys import to_text

    keys = files.read(file)
    if secret is not None:
        found = [key for key in keys.shared if key.name == secret]
        if not found:
            raise BadParameter(f"There is no shared key {secret!r} in {file}.")
        click.echo(to_text(found[-1].secret))
        return
    newest = {pair.public.app: pair.public for pair in keys.pairs}
    shown = [pair.public for pair in keys.pairs] if every else list(newest.values())
    shown = [key for key in shown if app in (None, key.app)]
    if not shown:
        raise BadParameter(f"There is no key pair of {app or 'any application'} in {file}.")
    for key in shown:
        click.echo(json.dumps(key.record(), ensure_ascii=False))


@key_group.command("list")
@click.argument("file", type=FILE)
@pins_option
@as_json_option
@one_sentence
def list_keys(file: Path, pins: Path | None, as_json: bool) -> None:
    """List the keys of FILE and those pinned beside it. No secret is shown.

    \b
    Example:
      fairlead key list ax.keys
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fairlead.sealing.edge import files

    keys, pinned = files.read(file), files.read_pins(pins or files.pins_beside(file))
    rows = [{"kind": "pair", "name": pair.public.app} | facts_of(pair.public) for pair in keys.pairs]
    rows += [{"kind": "shared", "name": key.name, "id": key.id.hex(), "since": key.since} for key in keys.shared]
    rows += [{"kind": "pinned", "name": pin.key.app, "how": pin.how} | facts_of(pin.key) for pin in pinned]
    if as_json:
        click.echo(json.dumps({"file": str(file), "keys": rows}, ensure_ascii=False))
        return
    columns = ("kind", "name", "id", "since", "replaces", "how")
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(escape(row.get(column, "")) for column in columns))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@key_group.command("publish")
@click.argument("file", type=FILE)
@click.argument("app")
@click.option("--only", is_flag=True, help="Take what else is published of APP out of the directory.")
@directory_command
def publish(tool: DirectoryTool, file: Path, app: str, only: bool) -> None:
    """Publish the public keys of APP in the directory, so that others can seal messages for it.

    Those it replaced are published too: who has pinned an older one sees by their signatures that the new one is right.
    Publish after all hosts of the application have the new FILE.

    \b
    Example:
      fairlead key publish ax.keys AX --server fairlead+directory://d1,d2
    """
    from fairlead.directory.answers import Done
    from fairlead.directory.bounds import KEYS_MAX
    from fairlead.directory.edge.client import DirectoryClient
    from fairlead.sealing.edge import files

    records = [pair.public.record() for pair in files.read(file).pairs if pair.public.app == app]
    if not records:
        raise BadParameter(
            f"There is no key pair of {app} in {file}; make one with `fairlead key new {file} --app {app}`."
        )
    chosen = records[-KEYS_MAX:]

    async def all_of_them(directory: DirectoryClient) -> Done:
        before = (await directory.lookup_app(app)).keys if only else ()
        for other in {record["id"] for record in before} - {record["id"] for record in chosen}:
            await directory.publish_key(app, {"id": other})
        for record in chosen:
            answer = await directory.publish_key(app, record)
        return answer

    answer = tool.ask(all_of_them)
    tool.told(
        f"Published {len(chosen)} {'key' if len(chosen) == 1 else 'keys'} of {app}; the newest is {chosen[-1]['id']}.",
        answer,
    )


@key_group.command("pin")
@click.argument("file", type=FILE)
@click.argument("app")
@click.option("--id", "id", metavar="ID", help="Take the published key of this id from the directory.")
@click.option(
    "--record", metavar="RECORD", help="Take this record, as `fairlead key show` prints it; -: from standard input."
)
@click.option("--only", is_flag=True, help="Trust no other key of APP any more.")
@pins_option
@directory_command
def pin(
    tool: DirectoryTool, file: Path, app: str, id: str | None, record: str | None, only: bool, pins: Path | None
) -> None:
    """Trust a key of APP from now on, because its owner told you its id.

    \b
    Examples:
      fairlead key pin ax.keys AZ                  which ones are published? compare with the owner of AZ
      fairlead key pin ax.keys AZ --id 9f86d081884c7d659a2feaa0c55ad015 --only
      fairlead key show az.keys | fairlead key pin ax.keys AZ --record -
    """
    from fairlead.sealing.edge import files

    if id and record:
        raise click.UsageError("give either --id or --record.")
    if record is not None:
        found = [record_of(sys.stdin.readline() if record == "-" else record)]
        if found[0].app != app:
            raise BadParameter(f"That is a key of {found[0].app}, not of {app}.")
    else:
        found = published(tool, app)
        if not id:
            listed = ", ".join(key.id.hex() for key in found)
            fail(f"{app} has published {listed or 'no key'}. Compare with its owner; then say --id ID.", EXIT_ERROR)
        found = [key for key in found if key.id.hex() == id]
        if not found:
            raise BadParameter(f"{app} has not published a key {id}.")
    files.update_pins(pins or files.pins_beside(file), lambda before: before.pin(found[0], only=only))
    facts = {"app": app, "id": found[0].id.hex()}
    told(tool.as_json, facts, f"Pinned the key {found[0].id.hex()} of {app}.")


def published(tool: DirectoryTool, app: str) -> list[PublicKey]:
    """The whole ones among what an application has published."""
    from fairlead.sealing.keys import read_record

    answer = tool.ask(lambda directory: directory.lookup_app(app))
    found = []
    for record in answer.keys:
        try:
            key = read_record(record)
        except BadParameter:
            continue
        if key.app == app:
            found.append(key)
    return found


def record_of(text: str) -> PublicKey:
    from fairlead.sealing.keys import read_record

    try:
        return read_record(json.loads(text))
    except ValueError:
        raise ConfigError("That is not a record; take what `fairlead key show` prints.") from None


def facts_of(key: PublicKey) -> dict[str, str]:
    return {"id": key.id.hex(), "since": key.since, "replaces": key.previous.hex()}


def told(as_json: bool, facts: dict[str, Any], sentence: str) -> None:
    click.echo(json.dumps({"ok": True} | facts, ensure_ascii=False) if as_json else sentence)
