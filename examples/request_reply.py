"""Request and response: three workers share the requests; one answer, several answers, errors and timeouts.

Run it as it stands against a server on this machine, or give it a URL.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator

import fairlead


async def main(url: str) -> None:
    async with fairlead.connect(url, name="asker") as asker:
        workers = [await fairlead.connect(url, type="worker", name=f"worker-{i}") for i in range(3)]
        for worker in workers:
            # A plain function is the fastest handler; a coroutine or a generator will do as well.
            await worker.respond(
                "upper", lambda request, who=worker.instance: request.body.upper() + f" ({who})".encode()
            )
            await worker.respond("count", count)
            await worker.respond("broken", broken)

        reply = await asker.request("upper", "hello", timeout=2)
        print("one answer:", reply.body.decode())

        replies = await asyncio.gather(*(asker.request("upper", b"x", timeout=5) for _ in range(300)))
        print("shared out:", dict(Counter(reply.body.decode() for reply in replies)))

        print("several answers:", [m.body.decode() async for m in asker.request_stream("count", b"5", timeout=2)])

        for topic in ("broken", "nobody-serves-this"):
            try:
                await asker.request(topic)
            except fairlead.FairleadError as error:
                print(f"{topic}: {error.code}: {error}")
        for worker in workers:
            await worker.close()


def count(request: fairlead.Request) -> Iterator[str]:
    for number in range(1, int(request.body) + 1):
        yield str(number)


def broken(request: fairlead.Request) -> bytes:
    raise RuntimeError("this handler always fails")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "fairlead://127.0.0.1:7400"))
