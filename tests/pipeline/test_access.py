"""Users, passwords and TLS of source and sink, against a server that asks for them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from fairlead.errors import FairleadError
from fairlead.pipeline.source import FairleadSource
from fairlead.testing import Server
from tests.processes.test_access import add_user, certificate

SECRET = "boss-secret"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    data = tmp_path_factory.mktemp("guarded")
    add_user(data, "boss")
    add_user(data, "looker", "--browse", "public.>", "--send", "nothing")
    pem, _ = certificate(tmp_path_factory.mktemp("certificate"))
    settings = {"security.tls_certificate": str(pem), "security.tls_key": str(pem)}
    with Server(managers=1, data=data, **settings) as server:
        yield server, pem


def write(options: dict[str, str], body: bytes) -> None:
    writer: Any = FairleadSource(options={"create": "true", **options}).writer(
        StructType().add("body", "binary"), False
    )
    writer.commit([writer.write(iter([pa.record_batch([pa.array([body], pa.binary())], names=["body"])]))])


def read(options: dict[str, str]) -> list[bytes]:
    source = FairleadSource(options=options)
    reader: Any = source.reader(source.schema())
    return [body for lot in reader.partitions() for batch in reader.read(lot) for body in batch["body"].to_pylist()]


def test_with_a_password_over_tls(guarded: tuple[Server, Path], tmp_path: Path) -> None:
    server, pem = guarded
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    url = server.url.replace("fairlead://", "fairleads://").replace("127.0.0.1", "localhost")
    options = {"url": url, "user": "boss", "passwordFile": str(file), "tlsCa": str(pem), "destination": "public.a"}
    write(options, b"1")
    assert read(options) == [b"1"]
    stranger = {name: value for name, value in options.items() if name != "tlsCa"} | {"patience": "1"}
    with pytest.raises(FairleadError, match="certificate"):
        read(stranger)
    assert read(stranger | {"tlsVerify": "false"}) == [b"1"]


def test_a_wrong_password_and_a_missing_right_are_said_without_the_password(
    guarded: tuple[Server, Path], caplog: pytest.LogCaptureFixture
) -> None:
    server, _ = guarded
    boss = {"url": server.url.replace("://", f"://boss:{SECRET}@"), "destination": "public.b", "patience": "2"}
    write(boss, b"1")
    assert read(boss) == [b"1"]
    looker = {"url": server.url, "user": "looker", "password": "looker-secret", "patience": "2"}
    assert read(looker | {"destination": "public.b"}) == [b"1"]
    said = []
    with caplog.at_level(logging.DEBUG):
        for wrong in (
            {"url": server.url.replace("://", f"://boss:{SECRET}x@"), "destination": "public.b", "patience": "2"},
            looker | {"destination": "private"},
        ):
            with pytest.raises(FairleadError) as raised:
                read(wrong)
            said.append(f"{raised.value!r} {raised.value}")
        with pytest.raises(FairleadError) as raised:
            write(looker | {"destination": "public.b"}, b"2")
        said.append(str(raised.value))
    assert "send" in said[2]
    assert not re.search("boss-secret|looker-secret", "".join(said) + caplog.text)
