"""Broadcast: two subscribers, one publisher, a wildcard, and an answer through a reply topic.

Run it as it stands against a server on this machine, or give it a URL: python broadcast.py fairlead://host:7400
"""

import asyncio
import sys

import fairlead


async def main(url: str) -> None:
    async with (
        fairlead.connect(url, name="ticker") as publisher,
        fairlead.connect(url, name="screen") as screen,
        fairlead.connect(url, name="archive") as archive,
        screen.subscribe("prices.eur.*") as euros,
        archive.subscribe("prices.>") as everything,
        publisher.subscribe("thanks") as thanks,
    ):
        await publisher.publish("prices.eur.usd", b"1.0843", reply_to="thanks")
        await publisher.publish("prices.gbp.usd", b"1.2711", headers={"source": "demo"})
        await publisher.publish(["prices.eur.chf", "alerts.chf"], b"0.9391")

        for _ in range(2):
            message = await euros.next(timeout=5)
            print(f"screen:  {message.topic} = {message.body.decode()}")
            if message.reply_to:
                await screen.publish(message.reply_to, "seen")
        count = 0
        async for message in everything:
            print(f"archive: {message.topic} = {message.body.decode()} {message.headers}")
            count += 1
            if count == 3:
                break
        print(f"ticker:  {(await thanks.next(timeout=5)).body.decode()}")

        await publisher.publish_many("prices.eur.usd", [f"1.{i:04}" for i in range(10_000)])
        got = 0
        async for batch in everything.batches():
            got += len(batch)
            if got == 10_000:
                break
        print(f"archive: and {got} more, in order")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "fairlead://127.0.0.1:7400"))
