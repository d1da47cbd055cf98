"""Sealed messages between applications at different brokers: nobody on the way can read or change them.

The examples of docs/sealing.md run here too, since they need such a world.
"""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import fairlead
from fairlead.cli import main
from fairlead.client.effects import Event
from fairlead.errors import IntegrityError, KeyChanged, NoKey, Unavailable
from fairlead.sealing import Keyring, new_pair, new_shared
from fairlead.sealing.edge import files
from fairlead.sealing.edge.files import Keys
from fairlead.sealing.envelope import MAGIC
from fairlead.testing.directory_world import World
from tests.processes.directory.sealed_parts import Tap, change_stored, in_a_loop, stored

pytestmark = pytest.mark.processes

SHARED = new_shared("letters")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "sealing.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
CONSOLES = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


@pytest.fixture(scope="module")
def tap() -> Iterator[Tap]:
    with Tap() as tap:
        yield tap


@pytest.fixture(scope="module")
def world(tap: Tap) -> Iterator[World]:
    """AX is at A, who keeps the directory too; whoever reads is at C, which others reach through the tap."""
    with World("AC", servers=0, own={"C": {"directory.advertise": f"127.0.0.1:{tap.port}"}}) as world:
        tap.target = world.brokers["C"].port
        yield world


class Applications:
    """AX and a recipient, with key files of their own and their public keys in the directory."""

    def __init__(self, world: World, home: Path, recipient: str) -> None:
        self.world, self.home, self.recipient = world, home, recipient

    async def begin(self) -> None:
        """Make and publish keys; the recipient is registered at C, and away."""
        for app in ("AX", self.recipient):
            keys = self.keys(app, make=True)
            async with self.world.open() as directory:
                for record in (await directory.lookup_app(app)).keys:
                    await directory.publish_key(app, {"id": record["id"]})  # of the test before
                for record in keys.public(app):
                    await directory.publish_key(app, record)
        async with self.reading():
            pass

    def keys(self, app: str, *, make: bool = False) -> Keyring:
        path = self.home / f"{app}.keys"
        if make:
            files.update(path, lambda keys: Keys((*keys.pairs, new_pair(app)), (SHARED,)))
        return Keyring.load(path)

    def sending(self, **options: Any) -> fairlead.Connection:
        options = {"keys": self.keys("AX")} | options
        return fairlead.connect(self.world.url("only-A"), name="AX", **options)

    def reading(self, **options: Any) -> fairlead.Connection:
        options = {"keys": self.keys(self.recipient)} | options
        return fairlead.connect(self.world.url("only-C"), name=self.recipient, kind="static", **options)

    def call_without_a_loop(self, body: bytes) -> Any:
        options: dict[str, Any] = {"name": "AX", "keys": self.keys("AX")}
        with fairlead.sync.connect(self.world.url("only-A"), **options) as connection:
            return connection.call(self.recipient, body, sealed=True, timeout=30)

    async def until_stored(self, *texts: bytes) -> bytes:
        """All that C keeps, as soon as these are in it."""
        data = self.world.brokers["C"].data

        def there() -> bytes | None:
            found = stored(data)
            return found if all(text in found for text in texts) else None

        found: bytes = await self.world.until(there, "the messages are at C")
        return found


@pytest.mark.requirement("DIR-79")
@in_a_loop
async def test_nobody_on_the_way_can_read_a_sealed_body(world: World, tap: Tap, tmp_path: Path) -> None:
    apps = Applications(world, tmp_path, "reader")
    await apps.begin()
    async with apps.sending() as ax:
        await ax.send_to("reader", "the sealed words of the first letter", sealed=True)
        await ax.send_to("reader", "the sealed words of the shared letter", sealed="letters")
        await ax.send_to("reader", "the clear words of the last letter")
    found = await apps.until_stored(b"the clear words of the last letter")
    assert found.count(MAGIC) >= 2
    for trace in (found, stored(world.brokers["A"].data), tap.heard):
        assert b"the sealed words" not in trace
    assert b"the clear words" in tap.heard
    async with apps.reading() as reader, reader.application() as inbox:
        got = [await inbox.receive(timeout=30) for _ in range(3)]
        for message in got:
            assert message is not None
            message.ack()
        assert [(message.text(), message.sealed, message.sender) for message in got if message] == [
            ("the sealed words of the first letter", True, "AX"),
            ("the sealed words of the shared letter", True, "AX"),
            ("the clear words of the last letter", False, "AX"),
        ]
    assert b"the sealed words" not in tap.heard  # the way to the reader is one of them


@pytest.mark.requirement("DIR-80")
@in_a_loop
async def test_what_a_broker_has_changed_is_an_error_and_not_a_message(world: World, tap: Tap, tmp_path: Path) -> None:
    apps = Applications(world, tmp_path, "ledger-one")
    await apps.begin()
    async with apps.sending() as ax:
        for number in range(3):
            await ax.send_to("ledger-one", {"number": number}, headers={"mark": f"letter-{number}"}, sealed=True)
    await apps.until_stored(b"letter-2")
    world.stop("C")
    data = world.brokers["C"].data
    assert change_stored(data, change_a_byte_of_the_body) == 1
    assert change_stored(data, change_the_recipient) == 1
    world.start_again("C")
    tap.target = world.brokers["C"].port

    events: list[Event] = []
    async with apps.reading() as reader, reader.application() as inbox:
        reader.on_event(events.append)
        message = await inbox.receive(timeout=60)
        assert message is not None
        assert (message.data(), message.sealed) == ({"number": 0}, True)
        message.ack()
        with pytest.raises(IntegrityError, match="was changed on the way"):
            await inbox.receive(timeout=30)
        with pytest.raises(IntegrityError, match="ledger-two"):
            await inbox.receive(timeout=30)
        assert await inbox.receive(timeout=0.2) is None
        dead = reader.queue("_DMQ", create=False).browse()
        async with dead:
            assert [one.properties["mark"] async for one in dead] == ["letter-1", "letter-2"]
    assert [event.name for event in events if isinstance(event.error, IntegrityError)] == ["integrity"] * 2


def change_a_byte_of_the_body(record: bytes) -> bytes:
    """Of the letter 1: one bit, in the ciphertext."""
    at = record.find(b"letter-1")
    if at < 0:
        return record
    at = record.index(MAGIC, at) + 225
    return record[:at] + bytes((record[at] ^ 1,)) + record[at + 1 :]


def change_the_recipient(record: bytes) -> bytes:
    """Of the letter 2: not the queue it is in, only the instruction."""
    at = record.find(b"letter-2")
    if at < 0:
        return record
    return record[:at] + record[at:].replace(b"ledger-one", b"ledger-two", 1)


@in_a_loop
async def test_calls_and_answers_are_sealed_alike(world: World, tap: Tap, tmp_path: Path) -> None:
    apps = Applications(world, tmp_path, "oracle")
    await apps.begin()
    async with apps.reading(sealed_only=True) as oracle, apps.sending(sealed_only=True) as ax:
        seen: list[bool] = []

        def answer(message: Any) -> bytes:
            seen.append(message.sealed)
            return b"the hidden answer to " + message.body

        async with await oracle.serve_app(answer):
            for how in (True, "letters"):
                reply = await ax.call("oracle", b"the hidden question", sealed=how, timeout=30)
                assert (reply.body, reply.sealed) == (b"the hidden answer to the hidden question", True)
            reply = await asyncio.to_thread(apps.call_without_a_loop, b"the hidden question")
            assert (reply.body, reply.sealed) == (b"the hidden answer to the hidden question", True)
            with pytest.raises(fairlead.FairleadError):
                await ax.call("oracle", b"in the clear", timeout=2)  # put aside by who takes only sealed ones
    assert seen == [True, True, True]
    assert b"the hidden" not in tap.heard


@pytest.mark.requirement("DIR-80", state="half", note="which keys are believed, with a real directory")
@in_a_loop
async def test_a_key_that_is_not_the_pinned_one_is_not_believed(world: World, tmp_path: Path) -> None:
    apps = Applications(world, tmp_path, "vault")
    await apps.begin()
    async with apps.sending() as ax:
        await ax.send_to("vault", b"pinned", sealed=True)
    thief = Keyring([new_pair("vault")])
    async with world.open() as directory:
        await directory.publish_key("vault", thief.public()[0])
    async with apps.sending() as ax:
        with pytest.raises(KeyChanged, match="fairlead key pin"):
            await ax.send_to("vault", b"never sent", sealed=True)
        async with fairlead.connect(world.url("only-C"), name="newcomer"):
            with pytest.raises(NoKey, match="published no key"):
                await ax.send_to("newcomer", b"never sent", sealed=True)


@in_a_loop
async def test_while_the_directory_is_away_a_message_of_a_stranger_waits(world: World, tmp_path: Path) -> None:
    apps = Applications(world, tmp_path, "patient")
    await apps.begin()
    async with apps.reading() as patient:
        async with apps.sending() as ax:
            await ax.send_to("patient", b"sealed", sealed=True, headers={"mark": "for the patient"})
        await apps.until_stored(b"for the patient")
        world.freeze("A")
        try:
            async with patient.application() as inbox:
                with pytest.raises(Unavailable):
                    await inbox.receive(timeout=60)
        finally:
            world.thaw("A")
        async with patient.application() as inbox:
            while True:
                try:
                    message = await inbox.receive(timeout=60)
                    break
                except Unavailable:
                    pass
            assert message is not None
            assert (message.body, message.sealed, message.redelivered) == (b"sealed", True, True)
            message.ack()


@in_a_loop
async def test_who_has_no_keys_gets_no_sealed_message(world: World, tmp_path: Path) -> None:
    apps = Applications(world, tmp_path, "guest")
    await apps.begin()
    async with apps.sending() as ax:
        await ax.send_to("guest", b"sealed", sealed=True)
        await ax.send_to("guest", b"clear")
    async with apps.reading(keys=None) as guest, guest.application() as inbox:
        with pytest.raises(NoKey, match="keys="):
            await inbox.receive(timeout=30)
        message = await inbox.receive(timeout=30)
        assert message is not None
        assert message.body == b"clear"
        message.ack()
    async with apps.sending(keys=None) as ax:
        with pytest.raises(fairlead.errors.BadParameter, match="keys="):
            await ax.send_to("guest", b"", sealed=True)
    async with apps.sending() as ax:
        with pytest.raises(fairlead.errors.BadParameter, match="stream"):
            await ax.send_to("guest", io.BytesIO(b"large"), sealed=True)


@in_a_loop
async def test_the_examples_of_the_page_run(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in EXAMPLES:
        exec(compile(example.replace("d1,d2,d3/sales", world.url("only-A").partition("://")[2]), PAGE, "exec"), names)
    commands = [
        line.replace("fairlead+directory://d1,d2,d3", world.url()).split()[2:]
        for line in CONSOLES[0].splitlines() + CONSOLES[3].splitlines()[:1] + CONSOLES[3].splitlines()[2:]
    ]
    for command in commands:
        arguments = command[: command.index("#")] if "#" in command else command
        result = await asyncio.to_thread(CliRunner(env={"FAIRLEAD_DIRECTORY": world.url()}).invoke, main, arguments)
        assert result.exit_code == 0, result.output
    reading = asyncio.create_task(names["az"]())
    await world.labelled("AZ", 1)
    await names["ax"]()
    await reading
    assert capsys.readouterr().out.strip() == "AX True b'for your eyes only'"

    def queues() -> tuple[str, bytes]:
        with fairlead.sync.connect(world.brokers["A"].url) as connection:
            names["order"](connection, Keyring.load("ax.keys"))
            found: tuple[str, bytes] = names["take"](connection, Keyring.load("az.keys"))
        return found

    assert await asyncio.to_thread(queues) == ("AX", b"one book")
