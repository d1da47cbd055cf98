"""A conversation: all its messages go to the same receiver, which can therefore remember what was said.

Run it as it stands against a server on this machine, or give it a URL.
"""

import asyncio
import sys

import fairlead


async def clerk(url: str, name: str, ready: asyncio.Event) -> None:
    """Adds up what it is told, per conversation."""
    async with fairlead.connect(url, type="clerk", name=name) as connection, connection.accept("accounts") as talks:
        ready.set()
        async for talk in talks:
            total = 0
            async for message in talk:
                total += int(message.body)
                await talk.send(f"{name} has {total}")


async def main(url: str) -> None:
    async with fairlead.connect(url, name="customer") as connection:
        events = [asyncio.Event(), asyncio.Event()]
        clerks = [asyncio.create_task(clerk(url, f"clerk-{i}", event)) for i, event in enumerate(events)]
        for event in events:
            await event.wait()
        for _ in range(2):
            async with connection.converse("accounts") as talk:
                for amount in (10, 20, 12):
                    await talk.send(str(amount))
                    print((await talk.receive(timeout=5)).body.decode())
        for task in clerks:
            task.cancel()
        await asyncio.gather(*clerks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "fairlead://127.0.0.1:7400"))
