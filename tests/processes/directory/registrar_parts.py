"""What tests of the registrar need besides a world: users, a line that is overheard, a client that can be killed."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import fairlead
from fairlead.security import users
from fairlead.security.passwords import hash_password
from fairlead.security.users import User, Users

PASSWORD: Final = "correct-horse-battery-staple"
BROKER_PASSWORD: Final = "the-brokers-own-word"
ADMIN: Final = ("admin", "the-administrators-word")
LOGIN: Final = {"user": "ann", "password": PASSWORD}


def write_users(folder: Path) -> dict[str, Path]:
    """The users files of the brokers and of the directory, and the password file of the brokers."""
    apps = ["app.AX", "app.AY", "app.AZ", "app.A.>"]
    broker = User(hash=hash_password(BROKER_PASSWORD), serve=["_BROKER.>"])
    admin = User(hash=hash_password(ADMIN[1]), admin=["_DIRECTORY", "_ADMIN"])
    users.write(
        folder / "brokers.toml",
        Users({"ann": User(hash=hash_password(PASSWORD), consume=apps), "broker": broker, "admin": admin}),
    )
    users.write(folder / "directory.toml", Users({"broker": broker, "admin": admin}))
    (folder / "password").write_text(BROKER_PASSWORD)
    (folder / "password").chmod(0o600)
    return {name: folder / name for name in ("brokers.toml", "directory.toml", "password")}


class Overheard:
    """A line to a server that keeps every byte that passes, in both directions."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(0.1)
        self.port = int(self._listening.getsockname()[1])
        self.heard = bytearray()
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while not self._stopped.is_set():
            with contextlib.suppress(TimeoutError):
                near, _ = self._listening.accept()
                thread = threading.Thread(target=self._pass_on, args=(near,))
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._to)) as far:
            while not self._stopped.is_set():
                for sock in select.select([near, far], [], [], 0.1)[0]:
                    data = sock.recv(65536)
                    if not data:
                        return
                    self.heard += data
                    (far if sock is near else near).sendall(data)

    def close(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._listening.close()


CLIENT: Final = """
import asyncio, json, sys
import fairlead

async def main():
    facts = json.loads(sys.argv[1])
    connections = [await fairlead.connect(facts["url"], application=app, **facts["login"]) for app in facts["apps"]]
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for connection in connections:
        await connection.close()

asyncio.run(main())
"""


@contextlib.contextmanager
def client_process(url: str, *apps: str) -> Iterator[subprocess.Popen[str]]:
    """A program of its own with a connection for each of these applications; ends when its input does."""
    facts = json.dumps({"url": url, "apps": apps, "login": LOGIN})
    arguments = [sys.executable, "-c", CLIENT, facts]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            yield process
        finally:
            process.kill()


def own_address() -> str | None:
    """An address of this host by which a connection to itself does not look local; None if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            return None
        found = str(probe.getsockname()[0])
    return None if found.startswith("127.") else found


def at(url: str, app: str, **options: object) -> fairlead.Connection:
    """A connection of an application at exactly this broker."""
    return fairlead.connect(url, application=app, **{**LOGIN, **options})  # type: ignore[arg-type]
