"""Traffic from the command line: what is sent and printed, without a server."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from fairlead.cli.traffic import as_facts, bodies, parse_headers, pub, respond
from fairlead.errors import ConfigError
from fairlead.wire.codec import Message


def test_headers_are_pairs() -> None:
    assert parse_headers(("a=1", "b=x=y")) == {"a": "1", "b": "x=y"}
    assert parse_headers(()) is None
    for wrong in ("a", "=1"):
        with pytest.raises(ConfigError, match="KEY=VALUE"):
            parse_headers((wrong,))


def test_bodies_come_from_the_argument_a_file_or_the_lines_of_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"\x00file")
    assert list(bodies("text", None)) == [b"text"]
    assert list(bodies(None, str(tmp_path / "f"))) == [b"\x00file"]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"one\ntwo\r\nthree")))
    assert list(bodies(None, None)) == [b"one", b"two", b"three"]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"all\nof it")))
    assert list(bodies(None, "-")) == [b"all\nof it"]
    with pytest.raises(ConfigError, match="not both"):
        list(bodies("text", "file"))
    with pytest.raises(ConfigError, match="Cannot read"):
        list(bodies(None, str(tmp_path / "absent")))


def test_bodies_that_are_not_text_are_shown_in_base64() -> None:
    message = Message(0x20, 0, 0, 0, 7, "t", b"", b"\xff\x00")
    assert as_facts(message) == {"topic": "t", "sender": 7, "body_base64": "/wA="}
    assert as_facts(Message(0x20, 0, 0, 0, 7, "t", b"", b"x"))["body"] == "x"


def test_nobody_there_and_wrong_usage_have_their_exit_codes() -> None:
    wrong = CliRunner().invoke(respond, ["topic"])
    assert wrong.exit_code == 2
    assert "Give one of ANSWER, --command and --echo" in wrong.output
    assert CliRunner().invoke(pub, ["t", "x", "-H", "wrong"]).exit_code == 2
