"""A forward proxy of the tests' own: whole URLs and CONNECT, with or without a login."""

from __future__ import annotations

import asyncio
import hashlib
import re
from base64 import b64encode
from typing import Literal
from urllib.parse import urlsplit

USER, PASSWORD = "ann", 'p@ss "word"'
NONCE = "n0nce"


class Forward:
    """`async with Forward("basic") as proxy`; keeps the request lines and logins it saw."""

    def __init__(self, login: Literal["none", "basic", "digest"] = "none", algorithm: str = "MD5") -> None:
        self.login = login
        self.algorithm = algorithm
        self.seen: list[str] = []
        self.logins: list[str] = []
        self.port = 0
        self.connects = True
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Forward:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def url(self, password: str = PASSWORD) -> str:
        from urllib.parse import quote

        who = "" if self.login == "none" else f"{USER}:{quote(password, safe='')}@"
        return f"http://{who}127.0.0.1:{self.port}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *rest = head.strip().split("\r\n")
                headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in rest)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.seen.append(line)
                method, target, _ = line.split(" ")
                if not self._knows(method, target, headers.pop("proxy-authorization", "")):
                    writer.write(self._challenge())
                    continue
                if method == "CONNECT" and not self.connects:
                    writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
                    continue
                url = urlsplit(target if method != "CONNECT" else f"//{target}")
                inner, outer = await asyncio.open_connection(url.hostname, url.port)
                try:
                    if method == "CONNECT":
                        writer.write(b"HTTP/1.1 200 Connection established\r\nContent-Length: 7\r\n\r\n")
                        await asyncio.gather(_copy(reader, outer), _copy(inner, writer))
                        return
                    headers["connection"] = "close"
                    lines = [f"{method} {url.path}?{url.query} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
                    outer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
                    answer = await inner.readuntil(b"\r\n\r\n")
                    size = int((re.search(rb"(?i)content-length: (\d+)", answer) or [0, 0])[1])
                    writer.write(answer + await inner.readexactly(size))
                finally:
                    outer.transport.abort()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    def _challenge(self) -> bytes:
        if self.login == "basic":
            asks = 'Proxy-Authenticate: Basic realm="x"'
        else:
            fields = f'realm="r, s", nonce="{NONCE}", qop="auth,auth-int", opaque="o", algorithm={self.algorithm}'
            asks = f"Proxy-Authenticate: Negotiate\r\nProxy-Authenticate: Digest {fields}"
        return f"HTTP/1.1 407 Who?\r\n{asks}\r\nContent-Length: 0\r\n\r\n".encode()

    def _knows(self, method: str, target: str, said: str) -> bool:
        self.logins.append(said)
        if self.login == "none":
            return True
        if self.login == "basic":
            return said == "Basic " + b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        fields = {
            name: quoted or plain
            for name, quoted, plain in re.findall(r'(\w+)=(?:"((?:[^"\\]|\\.)*)"|([^\s,]+))', said)
        }
        if (
            not said.startswith("Digest ")
            or fields["nonce"] != NONCE
            or fields["opaque"] != "o"
            or fields["uri"] != target
        ):
            return False

        def h(text: str) -> str:
            return hashlib.new("md5" if self.algorithm.startswith("MD5") else "sha256", text.encode()).hexdigest()

        secret = h(f"{USER}:r, s:{PASSWORD}")
        if self.algorithm.endswith("-sess"):
            secret = h(f"{secret}:{NONCE}:{fields['cnonce']}")
        wanted = h(f"{secret}:{NONCE}:{fields['nc']}:{fields['cnonce']}:auth:{h(f'{method}:{target}')}")
        return fields["response"] == wanted


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
