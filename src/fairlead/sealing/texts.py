"""A keyring's two files as text: FILE with the secrets, FILE.pins with the keys of others. Both are TOML.

::

    [[pair]]                      [[shared]]                    [[pinned]]      # in FILE.pins
    app = "AX"                    name = "letters"              how = "first use"
    box = "base64 of 32 bytes"    key = "base64 of 32 bytes"    app = "AZ"      # and the rest of the public record
    sign = "base64 of 32 bytes"   id = "…"
    id = "…"                      since = "2026-11-16"
    since = "2026-11-16"
    previous = "…"                # the pair it replaces
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.errors import BadParameter, ConfigError
from fairlead.sealing import sodium
from fairlead.sealing.keys import (
    KeyPair,
    SharedKey,
    check_name,
    check_since,
    id_of,
    of_text,
    pair_of,
    read_record,
    to_text,
)
from fairlead.sealing.pins import Pin, Pins

_PAIR = {"app", "box", "sign", "id", "since", "previous"}
_SHARED = {"name", "key", "id", "since"}
_HOW = {"first use", "by hand", "successor"}


def read_keys(text: str, where: str) -> tuple[list[KeyPair], list[SharedKey]]:
    """The keys in the text of a file; ConfigError names the file and what is wrong with it, and no secret."""
    tables = _tables(text, where, {"pair": _PAIR, "shared": _SHARED})
    pairs: dict[bytes, KeyPair] = {}
    shared = []
    for number, table in enumerate(tables["pair"], 1):
        try:
            pair = _pair(table, pairs)
        except BadParameter as fault:
            raise ConfigError(f"{where}: [[pair]] number {number}: {fault}") from None
        pairs[pair.public.id] = pair
    for number, table in enumerate(tables["shared"], 1):
        try:
            key = SharedKey(
                check_name(table["name"]), of_text(table["key"], sodium.KEY_BYTES), check_since(table["since"])
            )
            _same_id(table["id"], key.id)
        except BadParameter as fault:
            raise ConfigError(f"{where}: [[shared]] number {number}: {fault}") from None
        shared.append(key)
    return list(pairs.values()), shared


def write_keys(pairs: Iterable[KeyPair], shared: Iterable[SharedKey]) -> str:
    lines = ["# Secret. Written by `fairlead key`, which keeps no comments; the last key of a name is its newest.\n"]
    for pair in pairs:
        facts = {
            "app": pair.public.app,
            "box": to_text(pair.box_secret),
            "sign": to_text(pair.sign_seed),
            "id": pair.public.id.hex(),
            "since": pair.public.since,
            "previous": pair.public.previous.hex(),
        }
        lines.append(_table("pair", facts))
    for key in shared:
        facts = {"name": key.name, "key": to_text(key.secret), "id": key.id.hex(), "since": key.since}
        lines.append(_table("shared", facts))
    return "".join(lines)


def read_pins(text: str, where: str) -> Pins:
    tables = _tables(text, where, {"pinned": None})
    pins = []
    for number, table in enumerate(tables["pinned"], 1):
        record = dict(table)
        how = record.pop("how", "")
        try:
            if how not in _HOW:
                raise BadParameter(f"how: {how!r:.40} is none of {', '.join(sorted(_HOW))}.")
            pins.append(Pin(read_record(record), how))
        except BadParameter as fault:
            raise ConfigError(f"{where}: [[pinned]] number {number}: {fault}") from None
    try:
        return Pins(pins)
    except BadParameter as fault:
        raise ConfigError(f"{where}: {fault}") from None


def write_pins(pins: Pins) -> str:
    lines = ["# Keys of others that are trusted here. Written by clients and by `fairlead key pin`.\n"]
    lines += [_table("pinned", {"how": pin.how} | pin.key.record()) for pin in pins]
    return "".join(lines)


def _pair(table: Mapping[str, str], earlier: Mapping[bytes, KeyPair]) -> KeyPair:
    previous = id_of(table["previous"]) if table["previous"] else b""
    older = earlier.get(previous)
    if previous and older is None:
        raise BadParameter(f"it replaces {previous.hex()}, which is not before it in the file.")
    box, sign = of_text(table["box"], sodium.KEY_BYTES), of_text(table["sign"], sodium.KEY_BYTES)
    pair = pair_of(table["app"], box, sign, since=check_since(table["since"]), older=older)
    _same_id(table["id"], pair.public.id)
    return pair


def _same_id(text: str, id: bytes) -> None:  # noqa: A002
    if text and id_of(text) != id:
        raise BadParameter(f"its id is {id.hex()}, and the file says {text}: one of them was changed.")


def _tables(text: str, where: str, known: Mapping[str, set[str] | None]) -> dict[str, list[dict[str, str]]]:
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from None
    if unknown := sorted(document.keys() - known.keys()):
        raise ConfigError(f"{where}: there is no [[{unknown[0]}]] in such a file.")
    found: dict[str, list[dict[str, str]]] = {}
    for name, fields in known.items():
        tables = document.get(name, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise ConfigError(f"{where}: write [[{name}]].")
        for table in tables:
            if not all(isinstance(value, str) for value in table.values()):
                raise ConfigError(f"{where}: [[{name}]]: every value is a text.")
            if fields is not None and (other := sorted(table.keys() - fields)):
                raise ConfigError(f"{where}: there is no {other[0]!r} in [[{name}]].")
        found[name] = [(dict.fromkeys(fields, "") if fields else {}) | table for table in tables]
    return found


def _table(name: str, facts: Mapping[str, str]) -> str:
    # Names hold no control characters, so JSON's quoting is TOML's.
    rows = [f"{field} = {json.dumps(text, ensure_ascii=False)}\n" for field, text in facts.items() if text]
    return f"\n[[{name}]]\n" + "".join(rows)
