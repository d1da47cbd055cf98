"""Questions to a running server, and which server is meant."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import ConfigError, Unavailable
from fairlead.runtime import rundir
from fairlead.runtime.admin import SOCKET_NAME, AdminServer, Asker, answer_of, ask, run_directory
from fairlead.runtime.loop import Loop


def test_a_server_is_named_by_its_directory_or_its_local_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert run_directory(data=str(tmp_path)) == tmp_path / "run"
    with pytest.raises(ConfigError, match="is not on this host"):
        run_directory(server="fairlead://example.com:7400")
    with pytest.raises(Unavailable, match="No server of yours is known on port 7555"):
        run_directory(server="fairlead://localhost:7555")
    rundir.write_port_note(7400, rundir.PortNote("/d", "/d/run", 1))
    assert run_directory() == run_directory(server="fairlead://127.0.0.1") == Path("/d/run")
    several = "fairlead://example.com:7400,127.0.0.1:7556,127.0.0.1:7400"
    assert run_directory(server=several) == Path("/d/run"), "of a cluster's addresses the one that is here"


def test_nobody_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No server answers"):
        answer_of(tmp_path / "run", "status")


def serve(run: Path, questions: int) -> threading.Thread:
    loop = Loop()
    left = [questions]

    def on_question(asker: Asker, question: dict[str, Any]) -> None:
        match question["command"]:
            case "long":
                asker.tell(progress=1)
                asker.answer(text="x" * 3_000_000)
            case "no":
                asker.refuse("Not today.")
        left[0] -= 1
        if not left[0]:
            loop.call_after(0.5, loop.stop)

    server = AdminServer(loop, run, on_question)

    def work() -> None:
        loop.run()
        server.close()
        loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_long_answers_come_whole_and_a_no_is_raised(tmp_path: Path) -> None:
    thread = serve(tmp_path, 2)
    first, last = ask(tmp_path, "long")
    assert first == {"progress": 1}
    assert last["ok"]
    assert len(last["text"]) == 3_000_000
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(tmp_path / SOCKET_NAME))
        sock.sendall(b"nonsense\n")
        assert b'"ok":false' in sock.recv(1000)
    with pytest.raises(Unavailable, match="Not today"):
        answer_of(tmp_path, "no")
    thread.join()
