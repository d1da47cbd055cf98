"""Proxies of the real world, as a distribution has them: started with a configuration of ours, known by their pid.

Where one is not installed its tests are left out and say how to install it; in continuous integration (`CI` is set)
that is a failure.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.tunnel.hostile.harness import free_port

PACKAGES = {"nginx": "nginx-light", "tinyproxy": "tinyproxy-bin", "squid": "squid"}
PLACES = ("/usr/sbin", "/usr/local/sbin")


def program(name: str) -> str:
    path = os.pathsep.join((os.environ.get("PATH", ""), *PLACES))
    if found := shutil.which(name, path=path):
        return found
    text = f"{name} is not installed: apt-get install --no-install-recommends {PACKAGES[name]}"
    if os.environ.get("CI"):
        pytest.fail(text)
    print(f"\nLEFT OUT: {text}", file=sys.stderr)
    pytest.skip(text)


class RealProxy(ABC):
    """A process that listens on a port of its own."""

    name = ""

    def __init__(self, directory: Path, gateway: tuple[str, int], host: str = "127.0.0.1") -> None:
        self.directory, self.gateway = directory / self.name, gateway
        self.directory.mkdir()
        self.directory.chmod(0o777)  # some give up their rights, and write then
        self.address = (host, free_port())
        self.program = program(self.name)
        self.file = self.directory / f"{self.name}.conf"
        self.file.write_text(self.configuration())

    @abstractmethod
    def configuration(self) -> str:
        """The text of its file."""

    @abstractmethod
    def words(self) -> list[str]:
        """Its command line."""

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def start(self) -> None:
        with open(self.directory / "output.log", "ab") as log:
            self.process = subprocess.Popen([self.program, *self.words()], stdout=log, stderr=log, cwd=self.directory)
        limit_s = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(self.address, 1).close()
                return
            except OSError:
                assert self.process.poll() is None, self.log()
                assert time.monotonic() < limit_s, self.log()
                time.sleep(0.05)

    def log(self) -> str:
        return "\n".join(one.read_text(errors="replace")[-2000:] for one in self.directory.glob("*.log"))

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


class Nginx(RealProxy):
    """A reverse proxy that takes requests and answers whole before it passes them on."""

    name = "nginx"

    def configuration(self) -> str:
        folders = "\n".join(
            f"  {kind}_temp_path {self.directory}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        return f"""
daemon off;
master_process off;
pid {self.directory}/pid;
error_log {self.directory}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off;
{folders}
  map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
  upstream gateway {{ server {self.gateway[0]}:{self.gateway[1]}; keepalive 8; }}
  server {{
    listen {self.address[0]}:{self.address[1]};
    client_max_body_size {self.body_max};
    location / {{
      proxy_pass http://gateway;
      proxy_http_version 1.1;
      proxy_request_buffering on;
      proxy_buffering on;
      proxy_read_timeout {self.read_s}s;
      proxy_set_header Connection $connection_upgrade;
      proxy_set_header Upgrade {"$http_upgrade" if self.upgrades else "''"};
    }}
  }}
}}
"""

    def __init__(
        self,
        directory: Path,
        gateway: tuple[str, int],
        *,
        body_max: str = "1m",
        read_s: int = 60,
        upgrades: bool = True,
    ) -> None:
        self.body_max, self.read_s, self.upgrades = body_max, read_s, upgrades
        super().__init__(directory, gateway)

    def words(self) -> list[str]:
        return ["-c", str(self.file), "-p", str(self.directory), "-e", str(self.directory / "error.log")]


class Tinyproxy(RealProxy):
    """A small forward proxy; with a login when one is given."""

    name = "tinyproxy"

    def __init__(
        self,
        directory: Path,
        gateway: tuple[str, int],
        host: str = "127.0.0.1",
        *,
        login: tuple[str, str] | None = None,
    ) -> None:
        self.login = login
        super().__init__(directory, gateway, host)

    def configuration(self) -> str:
        login = f"BasicAuth {self.login[0]} {self.login[1]}\n" if self.login else ""
        return f"Port {self.address[1]}\nListen {self.address[0]}\nTimeout 600\nMaxClients 100\n{login}"

    def words(self) -> list[str]:
        return ["-d", "-c", str(self.file)]


class Squid(RealProxy):
    """The large one: it caches, and keeps connections on both sides."""

    name = "squid"

    def configuration(self) -> str:
        return f"""
http_port {self.address[0]}:{self.address[1]}
pid_filename {self.directory}/pid
cache_log {self.directory}/cache.log
access_log none
netdb_filename none
coredump_dir {self.directory}
http_access allow all
shutdown_lifetime 0 seconds
cache_mem 8 MB
"""

    def words(self) -> list[str]:
        return ["-N", "-f", str(self.file)]
