"""Fan-out: one request to everybody who listens, chosen by topic, program type or organisation.

Run it as it stands against a server on this machine, or give it a URL.
"""

import asyncio
import sys

import fairlead


async def main(url: str) -> None:
    shops = [
        await fairlead.connect(url, type="shop", name=f"shop-{i}", org="north" if i < 2 else "south") for i in range(4)
    ]
    for shop in shops:
        await shop.respond("stock.apples", lambda request, who=shop.instance: f"{who} has {len(who) * 3} apples")
    async with fairlead.connect(url, name="buyer") as buyer:
        replies = buyer.request_all("stock.apples", b"how many?", timeout=2)
        async for reply in replies:
            print(reply.body.decode())
        print(f"asked {replies.asked}, answered {replies.answered}, lost {replies.lost}")

        print("only the north:")
        async for reply in buyer.request_all("stock.apples", type="shop", org="north", timeout=2):
            print(reply.body.decode())
    for shop in shops:
        await shop.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "fairlead://127.0.0.1:7400"))
