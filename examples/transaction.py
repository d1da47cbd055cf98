"""A transaction: an order is taken and an invoice is sent, or neither happens.

Run it as it stands against a server on this machine, or give it a URL.
"""

import asyncio
import sys

import fairlead


class OutOfStock(Exception):
    """Not today."""


async def main(url: str) -> None:
    async with fairlead.connect(url, name="accounts") as connection:
        await connection.queue("example.sales").send_many([{"id": number} for number in range(5)])

        async def invoice(transaction: fairlead.Transaction) -> int:
            order = await transaction.receive("example.sales", timeout=2)
            assert order is not None
            number: int = order.data()["id"]
            await transaction.send("example.invoices", {"for": number})
            if number == 2 and not order.redelivered:
                raise OutOfStock(number)
            return number

        written = []
        while len(written) < 5:
            try:
                # Committed when the function returns; done again if the connection is lost on the way.
                written.append(await connection.run_transaction(invoice))
            except OutOfStock as error:
                print(f"order {error} went back, and no invoice was sent for it")
        print("invoices in the order of their orders:", sorted(written))

        invoices = connection.queue("example.invoices")
        async with invoices.consume(ack="auto") as consumer:
            found = [message.data()["for"] async for batch in first(consumer, 5) for message in batch]
        print(f"{len(found)} invoices, each once: {sorted(found) == [0, 1, 2, 3, 4]}")


async def first(consumer: fairlead.Consumer, count: int):  # type: ignore[no-untyped-def]
    """Batches until there are so many messages."""
    while count > 0:
        batch = await consumer.receive_many(count, timeout=2)
        count -= len(batch)
        yield batch


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "fairlead://127.0.0.1:7400"))
