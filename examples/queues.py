"""A queue: orders are stored before `send` returns, shared out to two workers, and tried again when one fails.

Run it as it stands against a server on this machine, or give it a URL.
"""

import asyncio
import sys

import fairlead


async def main(url: str) -> None:
    async with fairlead.connect(url, name="shop") as shop, fairlead.connect(url, name="worker") as workers:
        orders = shop.queue("example.orders")
        receipt = await orders.send({"id": 0, "item": "lamp"}, properties={"region": "eu"}, priority=9)
        print(f"stored as number {receipt.order}")

        # Many at once: up to 512 under way, in order, each durable before its receipt.
        async with orders.sender(window=512) as sender:
            for number in range(1, 1000):
                await sender.send({"id": number}, key=f"customer-{number % 7}", properties={"region": "eu"})
        print("1000 orders are safe")

        done: list[int] = []
        failed = 0

        async def work() -> None:
            nonlocal failed
            async for message in workers.queue("example.orders").consume("region = 'eu'", prefetch=50):
                async with message.process():  # acknowledged at its end, given back if it raises
                    number = message.data()["id"]
                    if number == 13 and not message.redelivered:
                        failed += 1
                        message.retry(delay=0.1)
                        continue
                    done.append(number)

        tasks = [asyncio.create_task(work()) for _ in range(2)]
        while len(done) < 1000:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        print(f"worked off {len(set(done))} orders, {failed} of them at the second try")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "fairlead://127.0.0.1:7400"))
