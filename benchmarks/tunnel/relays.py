"""The servers of those that bring none: a WebSocket relay and a Socket.IO relay, as short as their users write them.

python -m benchmarks.tunnel.relays websockets PORT
python -m benchmarks.tunnel.relays socketio PORT
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from typing import Any


async def websocket_relay(port: int) -> None:
    """Text `sub NAME` subscribes; a binary frame is a byte of name's length, the name, the message."""
    from websockets.asyncio.server import ServerConnection, serve

    listeners: dict[bytes, set[ServerConnection]] = defaultdict(set)

    async def handle(connection: ServerConnection) -> None:
        mine = []
        try:
            async for frame in connection:
                if isinstance(frame, str):
                    mine.append(frame.removeprefix("sub ").encode())
                    listeners[mine[-1]].add(connection)
                    await connection.send("ok")
                else:
                    for listener in tuple(listeners.get(frame[1 : 1 + frame[0]], ())):
                        await listener.send(frame)
        except Exception:
            pass  # cut off, or a listener was
        finally:
            for name in mine:
                listeners[name].discard(connection)

    async with serve(handle, "127.0.0.1", port, max_size=None, compression=None) as server:
        await server.serve_forever()


def socketio_application() -> Any:
    import socketio
    from engineio.payload import Payload

    Payload.max_decode_packets = 1 << 16  # of one request; the default of 16 refuses any burst
    server = socketio.AsyncServer(async_mode="asgi", max_http_buffer_size=16 << 20)

    @server.event
    async def sub(sid: str, name: str) -> str:
        await server.enter_room(sid, name)
        return "ok"

    @server.event
    async def pub(sid: str, name: str, message: bytes) -> None:
        await server.emit("message", message, room=name)

    return socketio.ASGIApp(server)


if __name__ == "__main__":
    kind, port = sys.argv[1], int(sys.argv[2])
    if kind == "websockets":
        asyncio.run(websocket_relay(port))
    else:
        import uvicorn

        uvicorn.run(socketio_application(), host="127.0.0.1", port=port, log_level="warning", access_log=False)
