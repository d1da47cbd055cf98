"""Every door of one real server, tried by somebody who should not get in, and what its operator sees of that."""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from click.testing import CliRunner

import fairlead
from fairlead import errors
from fairlead.broker.answers import PREFACE, frame
from fairlead.broker.edge.credentials import NICENESS
from fairlead.cli import main as program
from fairlead.console.edge.doorman import Doorman
from fairlead.security import inside
from fairlead.security.passwords import hash_password
from fairlead.security.quotas import Quota
from fairlead.security.throttling import FREE
from fairlead.security.users import User, Users, write
from fairlead.testing import Server
from tests.processes.raw import CONFIRM, ERROR, PUBLISH, REGISTER, REQUEST, SUBSCRIBE, Raw
from tests.processes.test_access import certificate
from tests.processes.tools import NEVER_FROZEN, reported

pytestmark = pytest.mark.processes

SECRET = "nobody says this by chance"
HASH = hash_password(SECRET)
WAYS = ("plain", "tls", "unix", "http", "https")
PATIENCE_S = 60.0
ORDERS = "\x1b]0;mine\x07\x1b[2J\x9b31mred\u202e\rfirst\nsecond [/red][blink]"


class Fort(NamedTuple):
    """A server that was started where every file is open to everybody, unless somebody closes it."""

    server: Server
    trusting: ssl.SSLContext
    socket: Path
    pids: set[int]  # of its processes when it began

    def connect(self, way: str, **said: Any) -> fairlead.Connection:
        port = self.server.port
        url = {
            "plain": f"fairlead://127.0.0.1:{port}",
            "tls": f"fairleads://localhost:{port}",
            "unix": f"fairlead+unix://{self.socket}",
            "http": f"http://127.0.0.1:{port}",
            "https": f"https://localhost:{port}",
        }[way]
        if way in ("tls", "https"):
            said["tls"] = self.trusting
        return fairlead.connect(url, **{"name": "stranger", "connect_timeout_s": PATIENCE_S} | said)

    def command(self, *arguments: str) -> str:
        """What a command prints for an operator."""
        where = ["--server", f"fairlead://127.0.0.1:{self.server.port}"]
        if arguments[0] != "status":
            where += ["--user", "root", "--password", SECRET]
        done = CliRunner().invoke(program, [*arguments, *where], env={"COLUMNS": "400"})
        assert done.exit_code == 0, (arguments, done.output, done.exception)
        return done.output


@pytest.fixture(scope="module")
def fort(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fort]:
    data = tmp_path_factory.mktemp("fort")
    users = {name: User(hash=HASH) for name in ("alice", "dora", *WAYS)}
    users["root"] = User(hash=HASH, admin=["_ADMIN"], consume=[">", "_LOG"], browse=[">"])
    users |= {"red": User(hash=HASH, tenant="red", admin=["_ADMIN"]), "blue": User(hash=HASH, tenant="blue")}
    write(data / "users.toml", Users(users, tenants={"red": Quota(), "blue": Quota()}))
    pem, trusting = certificate(data)
    settings: dict[str, Any] = {
        "security.tls_certificate": str(pem),
        "security.tls_key": str(pem),
        "limits.preface_s": 2.0,
        "limits.handshake_s": 2.0,
    }
    server = Server(data=data, managers=1, console=True, **settings, **NEVER_FROZEN)
    server._arguments += ["--listen", f"unix:{data / 'fairlead.sock'}"]
    mask = os.umask(0)
    try:
        server.start()
    finally:
        os.umask(mask)
    with ExitStack() as stack:
        stack.callback(server.__exit__, None, None, None)
        yield Fort(server, trusting, data / "fairlead.sock", set(server.pids("manager") + server.pids("router")))


# -- who gets in


def seen_of(status: dict[str, Any]) -> set[tuple[int, str]]:
    """Who is there, in the report."""
    return {(one["uid"], one["user"]) for one in status["connections"]}


@pytest.mark.parametrize("way", WAYS)
async def test_no_door_opens_without_a_login(fort: Fort, way: str) -> None:
    for user, password in (("", ""), (way, "wrong"), (way, ""), ("stranger", SECRET), ("anonymous", "")):
        with pytest.raises(errors.BadCredentials):
            await fort.connect(way, user=user, password=password)
    async with fort.connect(way, user=way, password=SECRET) as client:
        await reported(fort.server, lambda status: (client.uid, way) in seen_of(status))


async def test_names_of_the_servers_own_programs_are_no_way_in(fort: Fort) -> None:
    for user in sorted(inside.USERS):
        for password in ("", SECRET, user):
            with pytest.raises(errors.BadCredentials):
                await fort.connect("plain", user=user, password=password)


@pytest.mark.parametrize("kind", [PUBLISH, SUBSCRIBE, REGISTER, REQUEST, 0x30, 0x48])
def test_nothing_works_before_the_login(fort: Fort, kind: int) -> None:
    with Raw(fort.server.port, attach=False) as client:
        client.send(PREFACE + frame(kind, topic=b"prices", body=b"x", number=1))
        assert client.frame().kind == CONFIRM
        assert client.frame().kind == ERROR
        assert client.is_closed()


def test_passwords_sent_at_once_are_no_more_than_a_few_guesses(fort: Fort) -> None:
    with ExitStack() as stack:
        guessing = [stack.enter_context(Raw(fort.server.port, attach=False)) for _ in range(40)]
        for client in guessing:
            client.send(PREFACE)
            assert client.frame().kind == CONFIRM
        for number, client in enumerate(guessing):
            client.send(Raw.connect_frame(user="dora", password=f"guess {number}"))
        said = [client.expect(ERROR) for client in guessing]
    checked = [one for one in said if one.code == "bad-credentials" and b"try again" not in one.body]
    assert 1 <= len(checked) <= 2 * FREE, [(one.code, one.body) for one in said]

    async def elsewhere() -> None:
        async with (
            fort.connect("unix", user="dora", password=SECRET),
            fort.connect("plain", user="alice", password=SECRET),
        ):
            pass  # neither dora from another place nor anybody else from the same has to wait

    asyncio.run(elsewhere())


def test_checking_passwords_gives_way_to_messages(fort: Fort) -> None:
    (manager,) = fort.server.pids("manager")
    with Raw(fort.server.port, attach=False) as client:
        client.send(PREFACE + Raw.connect_frame(user="alice", password="never said before"))
        assert client.expect(ERROR).code == "bad-credentials"
    fields = [path.read_text().rpartition(")")[2].split() for path in Path(f"/proc/{manager}/task").glob("*/stat")]
    gentleness = {int(one[16]) for one in fields}
    assert max(gentleness) == min(gentleness) + NICENESS


def test_half_a_handshake_of_tls_is_ended_in_time(fort: Fort) -> None:
    hello = ssl.MemoryBIO()
    half = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        half.do_handshake()
    whole = hello.read()
    for sent in (whole[: len(whole) // 2], whole):
        with Raw(fort.server.port, attach=False) as client:
            client.send(sent)
            while client.sock.recv(1 << 16):
                pass  # its part of the handshake, and then the end
    fort.server.wait_until(lambda status: all(one["state"] != "opening" for one in status["connections"]))


# -- the console


def at_console(fort: Fort, user: str = "", password: str = SECRET) -> httpx.Client:
    auth = (user, password) if user else None
    return httpx.Client(base_url=f"{fort.server.console_url}/api/v1", timeout=PATIENCE_S, auth=auth)


@pytest.mark.parametrize("path", ["overview", "destinations", "connections", "events", "live", "history", "metrics"])
def test_the_console_tells_nobody_anything_without_a_login(fort: Fort, path: str) -> None:
    for user, password in (("", ""), ("stranger", SECRET), ("_console", "")):
        with at_console(fort, user, password) as http:
            url = f"{fort.server.console_url}/metrics" if path == "metrics" else path
            assert http.get(url).status_code in (401, 429)


def test_no_tenant_reaches_another_through_the_console(fort: Fort) -> None:
    async def filled() -> None:
        for user in ("red", "blue", "alice"):
            async with fort.connect("plain", user=user, password=SECRET) as client:
                await client.queue("orders", create=True).send(f"of {user}", timeout=PATIENCE_S)

    asyncio.run(filled())
    names = {"red": "_T.red.orders", "blue": "_T.blue.orders", "alice": "orders"}
    for user, own in names.items():
        with at_console(fort, user) as http:
            seen: set[str] = set()
            while own not in seen:  # the console looks once a second
                seen = {one["name"] for one in http.get("destinations").json()["destinations"]}
            assert not seen & (set(names.values()) - {own}), user
            for name in names.values():
                at = f"destinations/{name}"
                answers = [
                    http.get(at).status_code,
                    http.get(f"{at}/messages").status_code,
                    http.post(f"{at}/send", json={"text": "x"}).status_code,
                ]
                assert (answers == [403, 403, 403]) == (name != own), (user, name, answers)
                administers = user == "red" and name == own  # an administrator, of its tenant alone
                assert http.post(f"{at}/purge", json={}).status_code == (200 if administers else 403)
                into_itself = http.post(f"{at}/move", json={"to": own, "dry_run": False}).status_code
                assert into_itself == (409 if administers else 403)
                if name != own:
                    for source, target in ((name, own), (own, name)):
                        moved = http.post(f"destinations/{source}/move", json={"to": target, "dry_run": False})
                        assert moved.status_code == 403, (user, source, target)
                    assert http.delete(at).status_code == 403
            for path in ("overview", "connections", "sessions", "events", "dead"):
                assert http.get(path).status_code == 403, (user, path)


async def test_guesses_at_the_console_are_few_and_keep_nobody_out(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    write(file, Users({name: User(hash=HASH) for name in ("alice", "dora")}))
    doorman = Doorman(file, 60.0)
    guesses = [doorman.verify("dora", f"guess {number}", "there") for number in range(20)]
    others = [doorman.verify(f"user-{number}", "x", "there") for number in range(20)]
    *found, right = await asyncio.gather(
        *guesses, *others, doorman.verify("alice", SECRET, "here"), return_exceptions=True
    )
    doorman.close()
    assert right is None
    assert 1 <= sum(isinstance(one, errors.BadCredentials) for one in found[:20]) <= FREE
    assert all(isinstance(one, errors.FairleadError) for one in found)


# -- what an operator sees


@pytest.mark.parametrize("field", ["org", "software", "type", "instance"])
def test_whoever_calls_itself_an_order_to_terminals_is_refused(fort: Fort, field: str) -> None:
    with Raw(fort.server.port, attach=False) as client:
        client.send(PREFACE + Raw.connect_frame(user="alice", password=SECRET, **{field: "x\x1b[2J"}))
        assert client.expect(ERROR).code == "bad-request"
    assert "\x1b" not in (fort.server.data / "log" / "fairlead.log").read_text()


async def test_words_of_clients_stay_words_in_every_table(fort: Fort) -> None:
    said = {"name": "[blink]\u202e<b>", "org": "[/red]\u202e", "user": "alice", "password": SECRET}
    async with fort.connect("plain", **said) as client:
        await reported(fort.server, lambda status: (client.uid, "alice") in seen_of(status))
        queue = client.queue("words", create=True)
        sent = await queue.send(ORDERS, properties={"said": ORDERS}, correlation_id=ORDERS, type=ORDERS, key=ORDERS)
        seen = {
            command: await asyncio.to_thread(fort.command, *command.format(id=sent.id).split())
            for command in (
                "status --connections",
                "admin list",
                "admin browse words",
                "admin browse words --json",
                "admin message words 1",
                "admin connections",
                "admin sessions",
                "trace {id}",
                "trace {id} --json",
                "browse words --json",
                "log",
            )
        }
    for command, text in seen.items():
        assert all(letter.isprintable() or letter == "\n" for letter in text), (command, ascii(text))
    assert "[blink]" in seen["status --connections"]
    assert "[/red]" in seen["status --connections"]
    assert "mine" in seen["admin browse words"]
    assert '"mine' not in seen["admin browse words --json"]  # escaped, and not left out
    assert "\\u001b]0;mine\\u0007" in seen["browse words --json"]


async def test_nobody_writes_audit_events_but_the_server(fort: Fort) -> None:
    forged = {"user": "alice", "action": "purge", "object": "everything", "outcome": "done", "destination": "_LOG"}
    async with fort.connect("plain", user="root", password=SECRET) as root:
        with pytest.raises(errors.NotAllowed):
            await root.admin.execute("audit", timeout=PATIENCE_S, **forged)
        await root.publish("_LOG", b'{"code": "audit", "text": "forged everything"}')
        await root.flush()
    assert "everything" not in (fort.server.data / "log" / "events.jsonl").read_text()


# -- what others on this host see


def test_nothing_is_open_to_others_whatever_the_umask(fort: Fort) -> None:
    places = (fort.server.data, Path(fort.server.status()["store"]))
    files = [path for place in places for path in (place, *place.rglob("*")) if path.name != "serve.out"]
    assert len(files) > 20
    assert not [path for path in files if stat.S_IMODE(path.lstat().st_mode) & 0o077]


def shown_of(server: Server) -> Iterator[str]:
    """What processes, report and logs tell whoever looks."""
    yield str(server.status())
    for component in server.status()["components"]:
        for file in ("cmdline", "environ"):
            yield Path(f"/proc/{component['pid']}/{file}").read_bytes().decode(errors="replace")
    for log in (server.data / "log").iterdir():
        yield log.read_text(errors="replace")


async def test_secrets_are_in_no_process_list_log_report_or_error(fort: Fort) -> None:
    texts = list(shown_of(fort.server))
    port = fort.server.port
    for url in (
        f"fairleads://alice:{SECRET.replace(' ', '%20')}@127.0.0.1:{port}",
        f"fairlead://alice:{SECRET.replace(' ', '%20')}@127.0.0.1:1",
        f"fairlead://alice:{SECRET.replace(' ', '%20')}@[::1:{port}",
    ):
        with pytest.raises((errors.FairleadError, ValueError)) as refused:
            await fairlead.connect(url, reconnect=False)
        texts.append(f"{refused.value} {refused.value!r}")
    store = Path(fort.server.status()["store"])
    inside = (store / "secret").read_bytes()
    for text in texts:
        assert SECRET not in text
        assert SECRET.replace(" ", "%20") not in text
        assert HASH not in text
        assert inside.hex() not in text


def test_guesses_and_strangers_have_left_the_server_as_it_was(fort: Fort) -> None:
    status = fort.server.wait_until(
        lambda status: {user for _, user in seen_of(status)} <= {inside.CONSOLE} and status["stored"] == 0, PATIENCE_S
    )
    assert status["accounting_faults"] == 0
    assert {one["pid"] for one in status["components"]} >= fort.pids
