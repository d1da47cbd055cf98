"""The broker's side as a process: a tunnel server that does what each client wishes (see talk.py).

Each line of its output is an event in JSON: linked, accepted, ended. A line `status` on its input is answered by one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import sys
from pathlib import Path
from typing import Any

from fairlead.errors import FairleadError
from fairlead.tunnel.edge.links import GatewayAddress
from fairlead.tunnel.edge.server import TunnelServer
from fairlead.tunnel.edge.stream import TunnelStream
from fairlead.tunnel.rules import Rules
from tests.tunnel.hostile.talk import serve_one


def say(event: str, **more: object) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


async def one(stream: TunnelStream) -> None:
    identity = stream.status().end.connection_id
    say("accepted", id=identity)
    try:
        await serve_one(stream)
        say("ended", id=identity, how="closed")
    except (FairleadError, asyncio.IncompleteReadError) as error:
        say("ended", id=identity, how=str(error))


async def answer_questions(server: TunnelServer) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        tunnels = [pump.status() for pump in server.pumps()]
        say("status", tunnels=[facts(one.end) for one in tunnels])


def facts(status: Any) -> dict[str, Any]:
    return {name: value for name, value in status._asdict().items() if isinstance(value, int | float | str)}


async def main(words: argparse.Namespace, secret: bytes) -> None:
    tasks: set[asyncio.Task[None]] = set()
    server = TunnelServer(words.name, rules=Rules(**json.loads(words.rules)), secret=secret)
    tls = ssl.create_default_context(cafile=words.ca) if words.ca else None
    await server.listen(*(GatewayAddress.parse(one, tls) for one in words.link), timeout_s=60)
    say("linked")
    questions = asyncio.ensure_future(answer_questions(server))
    while not questions.done():
        accepting = asyncio.ensure_future(server.accept())
        await asyncio.wait([accepting, questions], return_when=asyncio.FIRST_COMPLETED)
        if not accepting.done():
            accepting.cancel()
            break
        task = asyncio.ensure_future(one(accepting.result()))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--link", action="append", required=True)
    parser.add_argument("--name", default="b1")
    parser.add_argument("--secret-file")
    parser.add_argument("--ca")
    parser.add_argument("--rules", default="{}")
    given = parser.parse_args()
    asyncio.run(main(given, Path(given.secret_file).read_bytes().strip() if given.secret_file else b""))
