"""A load balancer: new clients go round robin to several gateways, known ones by its cookie."""

from __future__ import annotations

from itertools import cycle

from tests.tunnel.middlebox.http1 import Message
from tests.tunnel.middlebox.line import LOST, Address, Cut, Line, Peer
from tests.tunnel.middlebox.proxy import Middlebox

COOKIE = "route="


class BalancedLine(Line):
    box: Balancer
    route = 0

    def inner(self, request: Message) -> tuple[Address, str, list[tuple[str, str]]]:
        said = [part.strip() for part in request.get("cookie").split(";")]
        routes = [int(part.removeprefix(COOKIE)) for part in said if part.startswith(COOKIE)]
        self.route = routes[0] if routes else next(self.box.turn)
        self.box.chosen.append((request.kind, self.route, bool(routes)))
        self.box.gateway = self.box.gateways[self.route]
        return super().inner(request)

    def outer(self, answer: Message, keep: bool) -> list[tuple[str, str]]:
        return [*super().outer(answer, keep), ("Set-Cookie", f"{COOKIE}{self.route}; Path=/")]


class Balancer(Middlebox):
    def __enter__(self) -> Balancer:
        super().__enter__()
        return self

    def __init__(self, *gateways: Address) -> None:
        super().__init__(gateways[0])
        self.gateways = gateways
        self.turn = cycle(range(len(gateways)))
        self.chosen: list[tuple[str, int, bool]] = []
        """Kind of the request, where it went, and whether the cookie said so."""

    async def serve(self, client: Peer) -> None:
        line = BalancedLine(self, client)
        try:
            while await line.exchange():
                pass
        except (*LOST, Cut):
            client.abort()
        finally:
            line.hang_up()
            client.close()
            self.peers.discard(client)
