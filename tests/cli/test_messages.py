"""What `fairlead send`, `receive` and `browse` make of their arguments; traffic is tested with real processes."""

from __future__ import annotations

import io
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.cli import main
from fairlead.cli.messages import STREAMED_BYTES, Joined, bodies, property_of
from fairlead.errors import ConfigError


class Stdin:
    def __init__(self, data: bytes, *, seekable: bool) -> None:
        self.buffer = io.BytesIO(data)
        if not seekable:
            self.buffer.seekable = lambda: False  # type: ignore[method-assign]


def all_bodies(body: str | None, file: str | None = None, lines: bool = False) -> list[bytes]:
    with ExitStack() as stack:
        return [one if isinstance(one, bytes) else one.read() for one in bodies(body, file, lines, stack)]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("n=5", 5),
        ("n=2.5", 2.5),
        ("n=true", True),
        ('n="5"', "5"),
        ("n=five", "five"),
        ("n=", ""),
        ("n=[1]", "[1]"),
        ("n=null", "null"),
        ("n=a=b", "a=b"),
    ],
)
def test_a_property_has_the_type_it_looks_like(text: str, meant: object) -> None:
    name, value = property_of(text)
    assert (name, value, type(value)) == ("n", meant, type(meant))


@pytest.mark.parametrize("text", ["n", "=5", ""])
def test_a_property_needs_a_name_and_a_value(text: str) -> None:
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        property_of(text)


def test_bodies_come_from_the_argument_a_file_or_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all_bodies("hällo") == ["hällo".encode()]
    file = tmp_path / "orders"
    file.write_bytes(b"one\r\ntwo\n\nthree")
    assert all_bodies(None, str(file)) == [b"one\r\ntwo\n\nthree"]
    assert all_bodies(None, str(file), lines=True) == [b"one", b"two", b"", b"three"]
    monkeypatch.setattr(sys, "stdin", Stdin(b"from a pipe\n", seekable=False))
    assert all_bodies("-") == [b"from a pipe\n"]
    with pytest.raises(ConfigError, match="not both"):
        all_bodies("x", str(file))
    with pytest.raises(ConfigError, match="Cannot read"):
        all_bodies(None, str(tmp_path / "absent"))


@pytest.mark.parametrize("seekable", [True, False])
def test_a_large_body_is_not_read_at_once(seekable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * (STREAMED_BYTES // 128)
    monkeypatch.setattr(sys, "stdin", Stdin(data, seekable=seekable))
    with ExitStack() as stack:
        (one,) = bodies(None, None, False, stack)
        assert not isinstance(one, bytes)
        if one.seekable():
            one.seek(0)
        assert b"".join(iter(lambda: one.read(100_000), b"")) == data


def test_what_was_read_already_comes_first() -> None:
    joined = Joined(b"abc", io.BytesIO(b"def"))
    assert (joined.read(2), joined.read(5), joined.read()) == (b"ab", b"c", b"def")
    assert Joined(b"abc", io.BytesIO(b"def")).read() == b"abcdef"


@pytest.mark.parametrize("command", ["send", "receive", "browse", "admin", "log", "journal", "backup", "restore"])
def test_every_command_has_examples(command: str) -> None:
    done = CliRunner().invoke(main, [command, "--help"])
    assert done.exit_code == 0
    assert "Example" in done.output
