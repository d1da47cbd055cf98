"""A directory, brokers and clients of the machine, without a socket: what a request does is what `World.run` did."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import structs

from fairlead.directory.placing.attempts import Dial, Fail, Fetch, Pause, Pick, Report, Request, Wish
from fairlead.directory.placing.knowledge import Knowledge
from fairlead.directory.rows import Broker, Heuristic, Rule
from fairlead.errors import ConnectionLost, NoDirectory, NoneAvailable, UnknownCluster


def row(name: str, **facts: object) -> Broker:
    return structs.replace(Broker(name=name, ip="127.0.0.1", port=7400, secure_port=7443, available=True), **facts)


class World:
    """The directory rotates as one for all; brokers accept unless `refuse` says why not."""

    def __init__(self, *names: str, cluster: str = "cluster-A", heuristic: Heuristic = "decentralised") -> None:
        self.now_s = 1000.0
        self.cluster = cluster
        self.rows = {name: row(name) for name in names}
        self.heuristic: Heuristic = heuristic
        self.rule: Rule = "rotation"
        self.refuse: dict[str, Exception] = {}
        self.is_away = False
        self.latency_s = 0.01
        self.revision = 1
        self.last = ""
        self.asked: list[str] = []  # of the directory
        self.dialled: list[str] = []
        self.reports: list[Report] = []
        self.open: list[str] = []
        self.on_dial: Callable[[Dial], None] = lambda dial: None

    def knowledge(self) -> Knowledge:
        return Knowledge(lambda: 0.5)

    def change(self, name: str, **facts: object) -> None:
        self.rows[name] = structs.replace(self.rows[name], **facts)
        self.revision += 1

    def members(self) -> list[Broker]:
        return list(self.rows.values())

    def connect(self, knowledge: Knowledge, wish: Wish | None = None, *, avoid: str = "") -> str:
        """The broker a request ended at, or the error it ended with."""
        request = Request(wish or Wish("AX", self.cluster), knowledge, lambda: 0.5, self.now_s, avoid=avoid)
        for _ in range(100_000):
            step = request.step(self.now_s)
            match step:
                case Fetch(timeout_s):
                    self._fetch(request, knowledge, timeout_s)
                case Pick(exclude, timeout_s):
                    dial = self._pick(request, knowledge, exclude, timeout_s)
                    if dial is not None and self._dial(request, dial):
                        return self._reached(request)
                case Dial():
                    if self._dial(request, step):
                        return self._reached(request)
                case Pause(seconds):
                    assert seconds > 0
                    self.now_s += seconds
                case Fail(error):
                    raise error
        raise AssertionError("A request goes on for ever.")

    def connects(self, knowledge: Knowledge, times: int, wish: Wish | None = None) -> str:
        return "".join(self.connect(knowledge, wish) for _ in range(times))

    def fetch(self, knowledge: Knowledge) -> None:
        """As the periodic refresh does."""
        copy = knowledge.copies.get(self.cluster)
        if copy is not None and copy.revision == self.revision:
            knowledge.copies.confirm(self.cluster, self.now_s)
        else:
            knowledge.copies.take(
                self.cluster,
                self.members(),
                heuristic=self.heuristic,
                rule=self.rule,
                revision=self.revision,
                now_s=self.now_s,
            )

    def _ask(self, what: str, knowledge: Knowledge, timeout_s: float) -> None:
        self.asked.append(what)
        if self.is_away or self.latency_s > timeout_s:
            self.now_s += 0.01 if self.is_away else timeout_s
            knowledge.auto.on_bad("silence", self.now_s)
            raise NoDirectory("directory unreachable: nobody is there")
        self.now_s += self.latency_s
        knowledge.auto.on_answer(self.latency_s, False, self.now_s)

    def _fetch(self, request: Request, knowledge: Knowledge, timeout_s: float) -> None:
        try:
            self._ask("get_cluster", knowledge, timeout_s)
        except NoDirectory as error:
            request.on_no_directory(error)
            return
        if request.wish.cluster != self.cluster or not self.rows:
            request.on_unknown(UnknownCluster())
            return
        self.fetch(knowledge)
        request.on_copy()

    def pick(self, exclude: Iterable[str], secure: bool) -> Broker:
        names = list(self.rows)
        at = names.index(self.last) + 1 if self.last in names else 0
        for name in names[at:] + names[:at]:
            broker = self.rows[name]
            if name not in exclude and broker.available and (broker.secure_port if secure else broker.port):
                self.last = name
                return broker
        raise NoneAvailable

    def _pick(self, request: Request, knowledge: Knowledge, exclude: tuple[str, ...], timeout_s: float) -> Dial | None:
        try:
            self._ask("pick_broker", knowledge, timeout_s)
            if request.wish.cluster != self.cluster or not self.rows:
                raise UnknownCluster
            return request.on_picked(self.pick(exclude, request.wish.secure), "r-1", self.now_s)
        except NoDirectory as error:
            request.on_no_directory(error)
        except UnknownCluster as error:
            request.on_unknown(error)
        except NoneAvailable:
            request.on_none()
        return None

    def _dial(self, request: Request, dial: Dial) -> bool:
        self.dialled.append(dial.broker.name)
        self.on_dial(dial)
        error = self.refuse.get(dial.broker.name)
        if error is None:
            return True
        self.now_s += dial.timeout_s if isinstance(error, TimeoutError) else 0.01
        shown = ConnectionLost("it did not answer") if isinstance(error, TimeoutError) else error
        report = request.on_failed(shown, self.now_s)
        if report is not None:
            self.reports.append(report)
        return False

    def _reached(self, request: Request) -> str:
        name = request.on_reached().name
        self.open.append(name)
        return name
