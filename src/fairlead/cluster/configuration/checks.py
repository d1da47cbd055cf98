"""Values that each make sense and together do not: found before a node has spoken with anybody.

What only shows when several nodes are there (different buses inside a group, a machine too many of whose votes would be
lost together) is judged here as well, from facts that are handed in.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping

from fairlead.cluster.configuration.types import ClusterConfig, ClusterSettings, NodeConfig, electorate, hosted
from fairlead.errors import ConfigError


def check_cluster(cluster: ClusterConfig) -> None:
    """ConfigError if this cluster.toml cannot work."""
    names = [bus.name for bus in cluster.buses]
    _once("cluster.toml: bus", names)
    _once("cluster.toml: voter", cluster.voters)
    if cluster.form == "single" and len(names) != 1:
        raise ConfigError(
            f'cluster.toml: form = "single" has one bus, not {len(names)} ({", ".join(names)}); with several say '
            '"a" (every client manager on all) or "b" (every message manager on all)'
        )
    if cluster.carrier == "udp":
        for bus in cluster.buses:
            if not _is_multicast(bus.multicast):
                raise ConfigError(
                    f"cluster.toml: bus {bus.name} needs a multicast address for the udp carrier, such as "
                    f"239.255.74.1; it has {bus.multicast!r}"
                )
        groups = [(bus.multicast, bus.port) for bus in cluster.buses]
        if len(set(groups)) != len(groups):
            raise ConfigError("cluster.toml: two buses have the same multicast address and port")


def check_settings(settings: ClusterSettings) -> None:
    """ConfigError if this settings.toml cannot work."""
    _once("settings.toml: group", [group.name for group in settings.groups])
    _once("settings.toml: voter", settings.voters)
    for group in settings.groups:
        _once(f"settings.toml: member of group {group.name}", group.members)
    pins = Counter(pin for group in settings.groups for pin in set(group.pins))
    for pin, count in pins.items():
        if count > 1:
            raise ConfigError(f"settings.toml: {pin} is pinned to {count} groups; a name lives in one")
    messages = settings.messages
    if messages.fragment_bytes > messages.large_bytes:
        raise ConfigError("settings.toml: [messages] fragment_bytes cannot exceed large_bytes")
    for unit in ("commands", "bytes"):
        if getattr(messages, f"low_water_{unit}") >= getattr(messages, f"high_water_{unit}"):
            raise ConfigError(f"settings.toml: [messages] low_water_{unit} is not below high_water_{unit}")
    if messages.quota_bytes and messages.quota_bytes < 4 * messages.segment_bytes:
        raise ConfigError("settings.toml: [messages] quota_bytes has no room for four segments")


def check_change(old: ClusterSettings, new: ClusterSettings) -> None:
    """ConfigError if the one may not become the other while the cluster runs."""
    check_settings(new)
    before, after = [group.name for group in old.groups], [group.name for group in new.groups]
    if after[: len(before)] != before:
        raise ConfigError(
            "groups keep their place in the list for ever, since numbers of sessions and messages say it; add new "
            f"ones at the end (there are {', '.join(before)})"
        )


def check_node(node: NodeConfig, cluster: ClusterConfig, settings: ClusterSettings) -> None:
    """ConfigError if this node cannot be one of that cluster (CLU-47, CLU-48)."""
    known = [bus.name for bus in cluster.buses]
    for bus in node.buses:
        if bus not in known:
            raise ConfigError(f"node.toml: there is no bus {bus} in cluster.toml; it has {', '.join(known)}")
    for bus in node.seeds:
        if bus not in node.buses:
            raise ConfigError(f"node.toml: seeds for bus {bus}, but this node is not on it")
    _check_form(node, cluster.form, known)
    if node.kind != "mm":
        if node.groups:
            raise ConfigError(f"node.toml: only a node of kind `mm` hosts groups, {node.name} is a `{node.kind}`")
        if at := hosted(node, settings):
            raise ConfigError(
                f"settings.toml names {node.name} as a member of {', '.join(at)}, but node.toml says that it is a "
                f"`{node.kind}`; message managers are of kind `mm`"
            )
    for name in node.groups:
        if settings.group(name) is None:
            raise ConfigError(
                f"node.toml: there is no group {name} in settings.toml; it has "
                f"{', '.join(group.name for group in settings.groups)}"
            )
    if node.groups and (more := [name for name in hosted(node, settings) if name not in node.groups]):
        raise ConfigError(
            f"settings.toml names {node.name} as a member of {', '.join(more)}, but node.toml only allows "
            f"{', '.join(node.groups)}; add it to `groups` there, or leave that out"
        )
    _check_tls(node, cluster)
    if not node.secret_file and (exposed := exposed_addresses(node, cluster)):
        raise ConfigError(
            f"on {', '.join(exposed)} anybody on the network could join the cluster; write a secret into a file "
            "(`fairlead node secret FILE`), copy it to all nodes and name it as secret_file in node.toml"
        )


def _check_tls(node: NodeConfig, cluster: ClusterConfig) -> None:
    files = {key: getattr(node, key) for key in ("tls_certificate", "tls_key", "tls_ca")}
    if any(files.values()) and not all(files.values()):
        missing = next(key for key, file in files.items() if not file)
        raise ConfigError(f"node.toml: certificates of nodes need all of {', '.join(files)}; {missing} is not set")
    if node.tls_certificate and cluster.carrier == "udp":
        raise ConfigError(
            "node.toml: multicast is not encrypted; with tls_certificate the carrier in cluster.toml is tcp"
        )


def _check_form(node: NodeConfig, form: str, buses: list[str]) -> None:
    has = sorted(node.buses)
    if not has:
        raise ConfigError(f'node.toml: {node.name} is on no bus; say [buses] {buses[0]} = "HOST:PORT"')
    missing = [bus for bus in buses if bus not in node.buses]
    everywhere = {"a": "cm", "b": "mm"}.get(form)
    if node.kind == everywhere and missing:
        raise ConfigError(
            f"in form {form} every `{node.kind}` is on all buses, since others are on one each; {node.name} is not on "
            f"{', '.join(missing)}"
        )
    if form != "single" and node.kind in ("cm", "mm") and node.kind != everywhere and len(has) != 1:
        raise ConfigError(
            f"in form {form} every `{node.kind}` is on exactly one bus; {node.name} is on {', '.join(has)}"
        )


def exposed_addresses(node: NodeConfig, cluster: ClusterConfig) -> list[str]:
    """The addresses of its buses that other hosts can reach."""
    if cluster.carrier == "local":
        return []
    return [address for address in node.buses.values() if not _is_loopback(host_of(address))]


def check_group_buses(name: str, buses: Iterable[str], group: str, others: Mapping[str, Iterable[str]]) -> None:
    """ConfigError unless all members of the group are on the same buses as this one."""
    mine = sorted(buses)
    for other, has in sorted(others.items()):
        if other != name and sorted(has) != mine:
            raise ConfigError(
                f"members of group {group} must be on the same buses: {name} is on {', '.join(mine)}, {other} on "
                f"{', '.join(sorted(has))}"
            )


def electorate_warning(machines: Mapping[str, str]) -> str:
    """What is wrong with votes spread over machines like this (voter → machine), or nothing (CLU-147)."""
    votes = len(machines)
    if not votes:
        return ""
    machine, most = Counter(machines.values()).most_common(1)[0]
    if (votes - most) * 2 > votes:
        return ""
    if most == votes:
        return (
            f"all {votes} votes are on one machine ({machine}): without it no group can be led"
            if votes > 1
            else (f"there is one vote ({next(iter(machines))}): without it no group can be led")
        )
    return (
        f"{most} of {votes} votes are on {machine}: without it the other {votes - most} are no majority and no group "
        "can be led; add a witness on a third machine (`fairlead cluster add-voter NODE`)"
    )


def voters_warning(cluster: ClusterConfig, settings: ClusterSettings) -> str:
    """What can be said of the electorate before any node is known."""
    voters = electorate(cluster, settings)
    if len(voters) % 2 == 0:
        return f"{len(voters)} votes survive the loss of no more voters than {len(voters) - 1} would: make them odd"
    return ""


def host_of(address: str) -> str:
    """The host of HOST:PORT or [IPV6]:PORT."""
    return address.rpartition(":")[0].strip("[]")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may resolve to anything


def _is_multicast(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_multicast
    except ValueError:
        return False


def _once(what: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ConfigError(f"{what} {name} is named {count} times")
