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

        written: list[int] = []
        while len(written) < 5:
            try:
                # Committed when the function returns; done again if the connection is lost on the way.
                written.append(await connection.run_transaction(invoice))
            except OutOfStock as error:
                print(f"order {error} went back, and no invoice was sent for it")
        print("invoices in the order of their orders:", sorted(written))

        async with connection.queue("example.invoices").consume(ack="auto") as consumer:
            found = [await consumer.receive(timeout=2) for _ in range(5)]
        numbers = sorted(message.data()["for"] for message in found if message)
        print(f"{len(numbers)} invoices, each once: {numbers == [0, 1, 2, 3, 4]}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "fairlead://127.0.0.1:7400"))
