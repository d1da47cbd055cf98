"""A small shop, as load for the console: something of everything an operator may meet.

    python scripts/console_load.py fairlead://127.0.0.1:7400      # until Ctrl-C

Orders that three workers take, some of which they reject; invoices that nobody fetches until their queue is full;
e-mails that are paused; offers that expire; an audit topic whose archive is behind; prices that are not stored;
reminders by the clock; a branch office behind HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random

import fairlead

BOOKS = ("Moby-Dick", "Middlemarch", "Der Zauberberg", "Il Gattopardo", "Bleak House", "Dubliners")
TOWNS = ("Bremen", "Porto", "Galway", "Trieste", "Turku")


async def shop(url: str) -> None:
    """Everything at once, until it is cancelled."""
    async with contextlib.AsyncExitStack() as stack:

        async def connect(kind: str, name: str, where: str = url) -> fairlead.Connection:
            return await stack.enter_async_context(fairlead.connect(where, type=kind, name=name))

        office = await connect("office", "back-office")
        await prepare(office)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sell(await connect("shop", "web-1")))
            tasks.create_task(sell(await connect("shop", "web-2")))
            for number in (1, 2, 3):
                tasks.create_task(work(await connect("warehouse", f"picker-{number}"), number))
            tasks.create_task(bill(await connect("billing", "billing-1")))
            tasks.create_task(settle(await connect("billing", "billing-2")))
            tasks.create_task(quote(await connect("ticker", "ticker-1")))
            tasks.create_task(quote(await connect("ticker", "ticker-2")))
            for number in (1, 2, 3, 4):
                tasks.create_task(watch(await connect("screen", f"screen-{number}")))
            tasks.create_task(watch(await connect("screen", "branch-office", url.replace("fairlead://", "http://"))))


async def prepare(office: fairlead.Connection) -> None:
    """What is there before the day begins."""
    admin = office.admin
    await admin.create(destination="invoices", parameters={"max_messages": 1200})
    await admin.create(destination="offers", parameters={"expired": "dead", "ttl_s": 2.0})
    await admin.create(destination="emails")
    await admin.pause(destination="emails")
    archive = office.topic("audit").subscribe("archive")
    await archive.__aenter__()
    await archive.close()
    await office.queue("emails").send_many([letter(n) for n in range(340)])
    await office.queue("offers").send_many([{"offer": n, "book": random.choice(BOOKS)} for n in range(40)])
    await office.queue("shipments.eu").send_many([{"parcel": n, "to": random.choice(TOWNS)} for n in range(57)])
    await office.queue("shipments.us").send_many([{"parcel": n, "to": "Salem"} for n in range(12)])
    await office.queue("scans").send_many([random.randbytes(220) for _ in range(25)])
    await office.queue("reminders").send("Count the tills", cron="0 18 * * 1-6")
    await office.queue("reminders").send("Order paper", cron="0 9 1 * *")
    for minutes in (5, 20, 90):
        await office.queue("reminders").send(f"Call back in {minutes} minutes", delay=60 * minutes)


def letter(number: int) -> dict[str, object]:
    return {"to": f"reader-{number}@example.org", "subject": f"{random.choice(BOOKS)} has arrived"}


async def sell(connection: fairlead.Connection) -> None:
    orders, audit = connection.queue("orders"), connection.topic("audit")
    for number in itertools.count(1):
        copies = random.randint(1, 4)
        order = {"order": number, "book": random.choice(BOOKS), "copies": copies, "to": random.choice(TOWNS)}
        await orders.send(order, key=f"customer-{random.randint(1, 200)}", properties={"copies": copies})
        if number % 5 == 0:
            await audit.send({"seen": number})
        await asyncio.sleep(random.uniform(0.005, 0.05))


async def work(connection: fairlead.Connection, number: int) -> None:
    async for message in connection.queue("orders").consume(prefetch=20):
        await asyncio.sleep(random.uniform(0.01, 0.09))
        chance = random.random()
        if chance < 0.01:
            message.reject()
        elif chance < 0.04:
            message.retry(delay=1)
        else:
            message.ack()


async def bill(connection: fairlead.Connection) -> None:
    invoices, settled = connection.queue("invoices"), connection.queue("payments.settled")
    await invoices.send_many([{"invoice": -n} for n in range(1150)])
    for number in itertools.count(1):
        await settled.send({"paid": number})
        if not invoices.is_blocked:
            await invoices.send({"invoice": number, "amount": round(random.uniform(5, 90), 2)})
        await asyncio.sleep(0.02)


async def settle(connection: fairlead.Connection) -> None:
    async for message in connection.queue("payments.settled").consume():
        message.ack()


async def quote(connection: fairlead.Connection) -> None:
    for number in itertools.count():
        await connection.publish_many(f"prices.{number % 7}", [b'{"price": %d}' % random.randint(100, 900)] * 20)
        await asyncio.sleep(random.uniform(0.01, 0.06))


async def watch(connection: fairlead.Connection) -> None:
    async for _ in connection.subscribe("prices.*"):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", default="fairlead://127.0.0.1:7400")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(shop(parser.parse_args().url))


if __name__ == "__main__":
    main()
