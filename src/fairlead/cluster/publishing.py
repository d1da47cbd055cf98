"""Between the two roads: a transient PUBLISH as an entry of a topic, and a topic's entries as PUBLISH frames.

Headers of the transient road are bytes; in an entry they become properties of type bytes, or text where they are
UTF-8. The other way round a property becomes the bytes of its text. Very large messages do not fit the transient road
and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.cluster.port import Bytes
from fairlead.errors import FairleadError
from fairlead.wire.durable import ENTRY_LARGE, PRIORITY_DEFAULT
from fairlead.wire.entry_codec import details, encode
from fairlead.wire.headers import decode_headers, encode_headers
from fairlead.wire.properties import decode as decode_properties
from fairlead.wire.properties import encode_properties

TO_PROPERTY = {":reply": ":reply-to", ":from": ":from"}
TO_HEADER = {":reply-to": ":reply", ":from": ":from"}


def entry_of(section: bytes, body: Bytes) -> bytes:
    """A PUBLISH's headers and body as one entry; RemoteProtocolError for a section that is none."""
    own: dict[str, str | bytes] = {}
    properties: dict[str, str | bytes] = {}
    for key, value in decode_headers(section):
        if key.startswith(":"):
            name = TO_PROPERTY.get(key)
            if name is not None:
                own[name] = value.decode(errors="replace")
        else:
            properties[key] = as_text(value)
    try:
        headers = encode_properties(properties, own)
    except FairleadError:
        headers = encode_properties({}, own)  # names no property can have
    return encode(bytes(body), headers=headers, priority=PRIORITY_DEFAULT)


def as_text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def publishes_of(entries: Bytes) -> Iterator[tuple[bytes, memoryview, bool]]:
    """Header section, body, and whether it says whose it is, for each entry that fits a PUBLISH frame."""
    view = memoryview(entries)
    for entry in details(view, 0, len(view)):
        if entry.flags & ENTRY_LARGE:
            continue
        section, identified = b"", False
        if entry.headers:
            own, pairs = [], []
            for name, value in decode_properties(bytes(entry.headers)).items():
                content = value if isinstance(value, bytes) else str(value).encode()
                if name in TO_HEADER:
                    own.append((TO_HEADER[name], content))
                elif not name.startswith(":"):
                    pairs.append((name, content))
            own.sort()  # `:from` first: that is where readers look for it
            identified = bool(own) and own[0][0] == ":from"
            section = encode_headers([*own, *pairs])
        yield section, view[entry.body_start : entry.body_end], identified
