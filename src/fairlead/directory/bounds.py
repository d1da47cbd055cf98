"""How large the directory may become, and what a name may be: nobody fills the memory of all its servers."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from fairlead.directory.rows import Broker, Link
from fairlead.errors import BadName, BadParameter, TooMany

BROKERS_MAX: Final = 10_000
CLUSTERS_MAX: Final = 10_000
MEMBERS_MAX: Final = 1_000  # of one cluster
CLUSTERS_OF_BROKER_MAX: Final = 100
APPS_MAX: Final = 100_000
LINKS_MAX: Final = 200_000
RESERVATIONS_MAX: Final = 100_000
ROTATIONS_MAX: Final = 100_000  # the one used longest ago is forgotten
CLOSED_MAX: Final = 20_000  # the one closed longest ago is forgotten
FADED_MAX: Final = 20_000  # applications whose last number is remembered
REPORTERS_MAX: Final = 100  # of failures of one broker; the oldest is forgotten
EXCLUDE_MAX: Final = 1_000
KEYS_MAX: Final = 64  # published keys of one application
KEYS_OF_ALL_MAX: Final = 20_000
KEY_FIELDS_MAX: Final = 16
KEY_TEXT_MAX: Final = 1_024  # a field, with its name
LABEL_MAX: Final = 10**12  # a larger number in a label that is stated again is not believed
TEXT_MAX: Final = 255

_NAME: Final = re.compile(r"[A-Za-z0-9._\-/:]{1,240}").fullmatch  # with `carry.` before it: the name of a queue


def check_name(what: str, name: str) -> None:
    """Raise unless it can be the name of a broker, a cluster or an application: they are parts of names of queues."""
    if not _NAME(name):
        raise BadName(f"{name[:60]!r} cannot be the name of {what}: 1 to 240 letters, digits and `. _ - / :`.")


def check_text(what: str, text: str, *, needed: bool = False) -> None:
    if len(text) > TEXT_MAX or not (text.isprintable() and (text or not needed)):
        least = 1 if needed else 0
        raise BadParameter(f"{what}: {least} to {TEXT_MAX} characters that can be printed, not {text[:60]!r}.")


def check_room(what: str, have: int, most: int) -> None:
    if have >= most:
        raise TooMany(f"The directory takes no more than {most} {what}; remove some first.")


def check_broker(broker: Broker) -> None:
    """Raise unless somebody could connect to what the row says."""
    check_name("a broker", broker.name)
    for what, text in (("host", broker.host), ("identity", broker.identity), ("store", broker.store)):
        check_text(f"{what} of broker {broker.name}", text)
    try:
        address = ipaddress.ip_address(broker.ip)
    except ValueError:
        raise BadParameter(f"Broker {broker.name}: {broker.ip[:60]!r} is not an IP address.") from None
    if address.is_unspecified or address.is_multicast:
        raise BadParameter(f"Broker {broker.name}: nobody can connect to {broker.ip}; say which address to advertise.")
    if not (0 <= broker.port < 65536 and 0 <= broker.secure_port < 65536 and broker.port + broker.secure_port):
        raise BadParameter(f"Broker {broker.name} needs a port of 1 to 65535, plain or secure.")
    if not 0 <= broker.limit < 2**31:
        raise BadParameter(f"Broker {broker.name}: a limit of {broker.limit} connections makes no sense.")


def check_link(app: str, link: Link) -> None:
    check_name("an application", app)
    check_text("identity of a connection", link.identity, needed=True)
    for what, text in (("client", link.client), ("user", link.user)):
        check_text(f"{what} of a connection", text)
    if link.cluster:
        check_name("a cluster", link.cluster)
