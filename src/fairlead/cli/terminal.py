"""Words of others on their way to somebody's terminal: they are shown, never obeyed.

A terminal takes control characters for orders: it clears itself, changes its title, draws over what stood there. Rich
takes square brackets for colours. So whatever a client has chosen (names, headers, bodies, reasons) passes through here
on its way to a person. What goes to a pipe or file goes as it is: programs want the bytes that were sent.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Final

UNSHOWN: Final = "\N{REPLACEMENT CHARACTER}"
# What `json.dumps` leaves as it is: the second set of control characters, and what turns the direction of text.
_ORDERS: Final = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def plain(text: object, keep: str = "") -> str:
    """The text with a mark in place of each character that is none to look at, except those in `keep`."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(letter if letter.isprintable() or letter in keep else UNSHOWN for letter in shown)


def cell(text: object) -> str:
    """The same for Rich where it reads markup: brackets are brackets."""
    from rich.markup import escape

    return escape(plain(text))


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON that reads as what it is in every terminal, and says the same to every program."""
    return harmless(json.dumps(value, indent=indent, ensure_ascii=False))


def harmless(text: str) -> str:
    """JSON that was made elsewhere, with escapes for what a terminal would obey."""
    return _ORDERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def content(data: bytes, *, is_terminal: bool | None = None) -> bytes:
    """A body on its way to standard output; line ends and tabs stay, since texts have them."""
    if not (sys.stdout.isatty() if is_terminal is None else is_terminal):
        return data
    return plain(data.decode("utf-8", "replace"), keep="\n\t").encode()
