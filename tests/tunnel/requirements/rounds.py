"""A client as a process that opens and closes tunnels, one after another: URL ROUNDS, and what it says in JSON."""

from __future__ import annotations

import asyncio
import gc
import json
import sys

from fairlead.tunnel.edge.dial import open_stream
from fairlead.tunnel.options import TunnelOptions
from fairlead.tunnel.rules import Rules
from tests.tunnel.hostile.talk import Mode, Wish

STEP = 20
OPTIONS = TunnelOptions(websocket="never", rules=Rules(resend_max_s=1.0))  # remembered for 2 s


async def main(url: str, rounds: int) -> None:
    for number in range(rounds):
        stream = await open_stream(url, OPTIONS, timeout_s=60)
        await stream.write(Wish(Mode.ECHO).encode() + b"hello")
        assert await stream.readexactly(5, 60) == b"hello"
        assert await stream.close()
        if (number + 1) % STEP == 0:
            gc.collect()
            print(json.dumps({"event": "rounds", "number": number + 1}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
