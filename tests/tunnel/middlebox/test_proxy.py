"""The box in the middle itself, against a plain HTTP server: what it is told to do happens, and nothing else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from websockets.sync.client import connect as ws_connect
from websockets.sync.server import ServerConnection, serve

from fairlead.tunnel.packets import Kind, encode, split
from tests.tunnel.middlebox.faults import Act
from tests.tunnel.middlebox.proxy import Middlebox
from tests.tunnel.middlebox.wire import Wire

PUSH, PULL = "/tunnel?ServerName=b&Type=push&ConnId=7", "/tunnel?ServerName=b&Type=pull&ConnId=7"
PACKETS = [encode(Kind.DATA, 7, number, 0, b"%d" % number * 100) for number in range(1, 101)]


class Origin(ThreadingHTTPServer):
    """Answers each POST with its own body and the number of the request; remembers what it saw."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, bytes, dict[str, str], str]] = []
        self.hold_s = 0.0
        self.headers: dict[str, str] = {}
        self.sockets: set[int] = set()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Origin

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.path, body, dict(self.headers), self.client_address[0]))
        self.server.sockets.add(self.client_address[1])
        number = len(self.server.seen)
        time.sleep(self.server.hold_s)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Number", str(number))
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def origin() -> Iterator[Origin]:
    server = Origin()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def box(origin: Origin) -> Iterator[Middlebox]:
    with Middlebox(("127.0.0.1", origin.server_port)) as box:
        yield box


@pytest.fixture
def client(box: Middlebox) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=box.url, timeout=10, trust_env=False) as client:
        yield client


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    limit_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit_s
        time.sleep(0.005)


def test_without_faults_it_is_not_noticed(origin: Origin, box: Middlebox, client: httpx.Client) -> None:
    for number in range(20):
        answer = client.post(PUSH, content=b"%d" % number * 1000, headers={"Authorization": "Bearer x"})
        assert answer.content == b"%d" % number * 1000
    assert [body for _, body, _, _ in origin.seen] == [b"%d" % number * 1000 for number in range(20)]
    assert len(origin.sockets) == 1
    assert {one.client_connection for one in box.capture.of("push")} == {box.capture.exchanges[0].client_connection}
    assert all(one.fate == "passed" and one.status == 200 for one in box.capture.exchanges)
    assert origin.seen[0][2]["Authorization"] == "Bearer x"


def test_a_request_in_chunks_arrives_whole(origin: Origin, client: httpx.Client) -> None:
    answer = client.post(PUSH, content=iter([b"one", b"two" * 1000, b"three"]))
    assert answer.content == b"one" + b"two" * 1000 + b"three"


def test_a_dropped_request_never_arrives_and_a_dropped_answer_did(
    origin: Origin, box: Middlebox, client: httpx.Client
) -> None:
    dropped = box.faults.add(Act.DROP_REQUEST, {"push"}, times=1)
    with pytest.raises(httpx.TransportError):
        client.post(PUSH, content=b"lost")
    assert not origin.seen
    assert dropped.done == 1
    box.faults.add(Act.DROP_ANSWER, {"pull"}, times=1)
    with pytest.raises(httpx.TransportError):
        client.post(PULL, content=b"arrives")
    assert [body for _, body, _, _ in origin.seen] == [b"arrives"]
    assert client.post(PULL, content=b"well").content == b"well"
    assert [one.fate for one in box.capture.exchanges] == ["request dropped", "answer dropped", "passed"]


def test_a_share_is_about_that_share_and_the_seed_repeats_it(origin: Origin) -> None:
    fates = []
    for _ in range(2):
        with Middlebox(("127.0.0.1", origin.server_port), seed=7) as box, httpx.Client(trust_env=False) as client:
            box.faults.add(Act.ERROR_PAGE, {"push"}, share=0.3)
            fates.append([client.post(box.url + PUSH, content=b"x").status_code for _ in range(100)])
    assert fates[0] == fates[1]
    assert 15 <= fates[0].count(502) <= 45


def test_a_replay_arrives_twice_and_is_answered_once(origin: Origin, box: Middlebox, client: httpx.Client) -> None:
    box.faults.add(Act.REPLAY, {"push"})
    assert client.post(PUSH, content=b"again").content == b"again"
    until(lambda: len(origin.seen) == 2)
    assert origin.seen[0][1] == origin.seen[1][1] == b"again"


def test_every_second_is_late(origin: Origin, box: Middlebox, client: httpx.Client) -> None:
    late = box.faults.add(Act.DELAY, {"push"}, every=2, seconds=0.3)
    for number in range(4):
        client.post(PUSH, content=b"%d" % number)
    assert late.done == 2
    assert [one.fate for one in box.capture.exchanges] == ["passed", "delayed"] * 2
    assert all(one.ended_s - one.began_s >= 0.3 for one in box.capture.exchanges[1::2])


def test_a_slow_answer_is_cut(origin: Origin, box: Middlebox, client: httpx.Client) -> None:
    box.faults.add(Act.CUT, {"pull"}, seconds=0.2)
    origin.hold_s = 0.6
    began_s = time.monotonic()
    with pytest.raises(httpx.TransportError):
        client.post(PULL, content=b"x")
    assert time.monotonic() - began_s >= 0.2
    origin.hold_s = 0.0
    assert client.post(PULL, content=b"x").content == b"x"


def test_caps(origin: Origin, box: Middlebox, client: httpx.Client) -> None:
    cap = box.faults.add(Act.CAP_REQUEST, {"push"}, size=1000)
    assert client.post(PUSH, content=b"x" * 1001).status_code == 413
    assert client.post(PUSH, content=b"x" * 1000).status_code == 200
    assert (len(origin.seen), cap.done) == (1, 1)
    box.faults.add(Act.CAP_ANSWER, {"pull"}, size=10)
    refused = client.post(PULL, content=b"x" * 11)
    assert (refused.status_code, refused.headers["Content-Type"]) == (502, "text/html")
    assert client.post(PULL, content=b"x" * 10).status_code == 200


def test_pages_for_people_until_it_is_lifted(origin: Origin, box: Middlebox, client: httpx.Client) -> None:
    fault = box.faults.add(Act.ERROR_PAGE)
    answer = client.post(PULL, content=b"x")
    assert (answer.status_code, answer.headers["Content-Type"]) == (502, "text/html")
    assert not origin.seen
    box.faults.remove(fault)
    assert client.post(PULL, content=b"x").status_code == 200


def test_the_cache_obeys_no_store_of_either_side(origin: Origin, box: Middlebox, client: httpx.Client) -> None:
    box.faults.add(Act.CACHE)
    numbers = [client.post(PULL, content=b"x").headers["Number"] for _ in range(3)]
    assert numbers == ["1", "1", "1"]
    other = [client.post(PUSH, content=b"x", headers={"Cache-Control": "no-store"}).headers["Number"] for _ in range(2)]
    assert other == ["2", "3"]
    box.cached.clear()
    origin.headers = {"Cache-Control": "no-store"}
    assert [client.post(PULL, content=b"x").headers["Number"] for _ in range(2)] == ["4", "5"]


def test_single_bits_are_flipped_and_never_those_of_the_size(box: Middlebox, client: httpx.Client) -> None:
    fault = box.faults.add(Act.FLIP, {"push"}, every=10)
    came = client.post(PUSH, content=b"".join(PACKETS)).content
    found = split(came)
    assert (len(found.packets), found.damaged, found.fault) == (90, 10, "")
    assert fault.done == 10
    bits = sum((one ^ other).bit_count() for one, other in zip(came, b"".join(PACKETS), strict=True))
    assert bits == 10


def test_swallowed_until_it_is_lifted(origin: Origin, box: Middlebox) -> None:
    hole = box.faults.add(Act.SWALLOW)
    with httpx.Client(base_url=box.url, timeout=0.3, trust_env=False) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.post(PUSH, content=b"x")
        box.faults.remove(hole)
        assert client.post(PUSH, content=b"y").content == b"y"
    assert [body for _, body, _, _ in origin.seen] == [b"y"]


def test_no_keep_alive_and_closed_between_requests(box: Middlebox, client: httpx.Client) -> None:
    fault = box.faults.add(Act.NO_KEEP_ALIVE)
    for _ in range(3):
        assert client.post(PUSH, content=b"x").headers["Connection"] == "close"
    assert len({one.client_connection for one in box.capture.exchanges}) == 3
    box.faults.remove(fault)
    box.faults.add(Act.CLOSE_IDLE)
    answer = client.post(PUSH, content=b"x")
    assert answer.headers["Connection"] == "keep-alive"
    until(lambda: not [peer for peer in list(box.peers) if not peer.writer.is_closing()])


def test_whole_answers_only(box: Middlebox, client: httpx.Client) -> None:
    box.faults.add(Act.BUFFER)
    assert client.post(PUSH, content=b"x" * 3_000_000).content == b"x" * 3_000_000


def test_a_client_that_hangs_up_takes_its_held_request_with_it(origin: Origin, box: Middlebox) -> None:
    origin.hold_s = 0.5
    with socket.create_connection(box.address) as one:
        one.sendall(f"POST {PULL} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx".encode())
        until(lambda: origin.seen)
    until(lambda: not box.peers)


def test_as_a_forward_proxy_with_login(origin: Origin) -> None:
    with Middlebox(login=("ann", "secret")) as box:
        url = f"http://127.0.0.1:{origin.server_port}"
        with httpx.Client(proxy=f"http://ann:secret@{box.address[0]}:{box.address[1]}", trust_env=False) as client:
            assert client.post(url + PUSH, content=b"in").content == b"in"
        with httpx.Client(proxy=f"http://ann:wrong@{box.address[0]}:{box.address[1]}", trust_env=False) as client:
            assert client.post(url + PUSH, content=b"in").status_code == 407
        assert box.refused_logins == 1
        _, _, headers, _ = origin.seen[0]
        assert not [name for name in headers if name.lower().startswith("proxy-")]
        with socket.create_connection(box.address) as one:
            one.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x\r\n" % origin.server_port)
            one.sendall(b"Proxy-Authorization: Basic YW5uOnNlY3JldA==\r\n\r\n")
            assert one.recv(1000).startswith(b"HTTP/1.1 200")
            one.sendall(f"POST {PUSH} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi".encode())
            assert b"".join(iter(lambda: one.recv(1000), b"")).endswith(b"hi")


def test_from_another_address_after_a_move(origin: Origin, box: Middlebox, client: httpx.Client) -> None:
    client.post(PUSH, content=b"x")
    box.move("127.0.0.2")
    until(lambda: not box.peers)
    with httpx.Client(base_url=box.url, trust_env=False) as other:
        other.post(PUSH, content=b"x")
    assert [address for _, _, _, address in origin.seen] == ["127.0.0.1", "127.0.0.2"]


def test_gone_and_back_at_the_same_place(box: Middlebox) -> None:
    box.stop_listening()
    with pytest.raises(httpx.ConnectError):
        httpx.post(box.url + PUSH, content=b"x", trust_env=False)
    box.listen_again()
    assert httpx.post(box.url + PUSH, content=b"x", trust_env=False).status_code == 200


@pytest.fixture
def echo() -> Iterator[int]:
    def handle(connection: ServerConnection) -> None:
        for message in connection:
            connection.send(message)

    with serve(handle, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.socket.getsockname()[1]
        server.shutdown()
    thread.join()


def test_websockets_pass_are_refused_and_are_cut(echo: int) -> None:
    with Middlebox(("127.0.0.1", echo)) as box:
        url = f"ws://127.0.0.1:{box.address[1]}/tunnel?Type=stream"
        with ws_connect(url, proxy=None, compression=None) as connection:
            connection.send(b"x" * 100_000)
            assert connection.recv() == b"x" * 100_000
        refusal = box.faults.add(Act.NO_UPGRADE)
        with pytest.raises(Exception, match="403"), ws_connect(url, proxy=None, compression=None):
            pass
        box.faults.remove(refusal)
        box.faults.add(Act.CUT_UPGRADED, size=50_000)
        with ws_connect(url, proxy=None, compression=None) as connection:
            connection.send(b"x" * 10_000)
            assert connection.recv() == b"x" * 10_000
            connection.send(b"x" * 90_000)
            with pytest.raises(Exception, match=r"close|reset|frame"):
                connection.recv(timeout=20)
        assert [one.fate for one in box.capture.of("stream")] == ["upgraded", "upgrade refused", "upgraded"]


@pytest.mark.parametrize(
    "rubbish", [b"\x16\x03\x01" * 100, b"GET\r\n\r\n", b"x" * 200_000, b"POST / HTTP/1.1\r\nno\r\n\r\n"]
)
def test_rubbish_is_hung_up_on(box: Middlebox, rubbish: bytes) -> None:
    with socket.create_connection(box.address) as one:
        one.settimeout(20)
        try:
            one.sendall(rubbish)
            one.shutdown(socket.SHUT_WR)
            assert one.recv(100) == b""
        except OSError as error:  # hung up before all was sent
            assert not isinstance(error, TimeoutError)


def test_a_wire_passes_stalls_cuts_and_captures(origin: Origin) -> None:
    with Wire(("127.0.0.1", origin.server_port), capture_bytes=1000) as wire:
        url = f"http://127.0.0.1:{wire.address[1]}"
        with httpx.Client(base_url=url, timeout=0.3, trust_env=False) as client:
            assert client.post(PUSH, content=b"through").content == b"through"
            assert b"through" in wire.captured[0]["up"]
            wire.stalled = True
            with pytest.raises(httpx.ReadTimeout):
                client.post(PUSH, content=b"x")
            wire.stalled = False
            client.post(PUSH, content=b"x")
            wire.cut()
            wire.refusing = True
            with pytest.raises(httpx.TransportError):
                client.post(PUSH, content=b"x")
            wire.refusing = False
            assert client.post(PUSH, content=b"x").status_code == 200
