"""Commands that change the settings of a running cluster: `set`, voters, members of groups."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fairlead.cli.admin import confirm, yes_option
from fairlead.cli.cluster_target import ClusterTarget, cluster_command
from fairlead.cli.options import one_sentence
from fairlead.errors import ConfigError, Unavailable


@click.command("set")
@click.argument("key")
@click.argument("value")
@click.option("--file", "file", type=click.Path(dir_okay=False, path_type=Path),
              help="Change this settings.toml, while no node runs, instead of a running cluster.")  # fmt: skip
@cluster_command
def set_command(target: ClusterTarget, key: str, value: str, file: Path | None) -> None:
    """Change a setting on all nodes: KEY of settings.toml, such as min_copies or messages.cache_bytes.

    VALUE is written as in TOML; @FILE takes the text of a file (for `users`). A majority of the voters decides, and
    every node writes it to its file. What stands in cluster.toml cannot be changed while a node runs.

    \b
    Examples:
      fairlead cluster set min_copies 3
      fairlead cluster set messages.flush_wait_ms 0.5
      fairlead cluster set users @users.toml
      fairlead cluster set removal_s 10 --file ./mm1/settings.toml       (offline; the others take it over)
    """
    parsed = parse_value(value)
    if key == "users" and value.startswith("@"):
        from fairlead.security import users

        users.read(Path(value[1:]).expanduser())  # a mistake in it is told here, before every node has it
    if file is not None:
        _set_in_file(file, key, parsed)
        return
    _report(target, target.change({key: parsed}), f"{key} = {value}", _at_start(key, parsed))


def _at_start(key: str, value: Any) -> list[str]:
    """What of this does not reach message managers that run."""
    from fairlead.cluster.options import is_live

    section, _, name = key.partition(".")
    if section != "messages":
        return []
    names = [name] if name else list(value) if isinstance(value, dict) else []
    return [f"messages.{one}" for one in names if not is_live(one)]


def parse_value(text: str) -> Any:
    """As in TOML; what is no TOML is a text."""
    import tomllib

    if text.startswith("@"):
        try:
            return Path(text[1:]).expanduser().read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot read {text[1:]}: {error.strerror}") from None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


@one_sentence
def _set_in_file(file: Path, key: str, value: Any) -> None:
    from fairlead.cluster.configuration.checks import check_change
    from fairlead.cluster.configuration.documents import changed_settings, to_toml
    from fairlead.cluster.configuration.edge.files import COMMENT, read_settings, write_file

    settings = read_settings(file)
    changed = changed_settings(settings, {key: value})
    check_change(settings, changed)
    write_file(file, to_toml(changed, COMMENT).encode())
    click.echo(f"{file} has revision {changed.revision} now; start this node first or with the others, and all take it")


def _report(target: ClusterTarget, answer: dict[str, Any], sentence: str, at_start: Sequence[str] = ()) -> None:
    """`at_start`: values that nodes take at their next start."""
    if target.as_json:
        facts = {"revision": answer.get("revision"), "missing": answer.get("missing", []), "at_start": list(at_start)}
        click.echo(json.dumps(facts))
        return
    click.echo(f"{sentence}, decided as revision {answer.get('revision')}")
    for name in at_start:
        click.echo(
            f"{name} is valid on each node of message managers from its next start on (`fairlead cluster update`)"
        )
    if missing := answer.get("missing"):
        click.echo(f"not yet told by {', '.join(missing)}, which take it when they can")


# --- Voters -------------------------------------------------------------------------------------------------------
@click.command("add-voter")
@click.argument("node")
@cluster_command
def add_voter(target: ClusterTarget, node: str) -> None:
    """Give NODE a vote on who leads, in every group. One at a time; an odd number on different machines is best.

    \b
    Example:
      fairlead cluster add-voter w1
    """
    status = target.status()
    if node not in {found["node"] for found in status["nodes"]}:
        raise Unavailable(f"{node} does not run; start it first, a voter that is away only makes majorities harder.")
    voters = _voters(target)
    if node not in voters:
        answer = target.change({"voters": [*voters, node]})
    else:
        answer = {"revision": target.settings()["revision"]}
    _change_votes(target, node, add=True)
    _report(target, answer, f"{node} votes in every group")


@click.command("remove-voter")
@click.argument("node")
@yes_option
@cluster_command
def remove_voter(target: ClusterTarget, node: str, yes: bool) -> None:
    """Take NODE's vote away, in every group; the node itself goes on.

    \b
    Example:
      fairlead cluster remove-voter cm2
    """
    voters = _voters(target)
    left = [voter for voter in voters if voter != node]
    if not left:
        raise Unavailable(f"{node} is the only voter; add another one first.")
    confirm(yes, f"Decide with {len(left)} votes ({', '.join(left)}) from now on?")
    _change_votes(target, node, add=False)
    if node in voters:
        answer = target.change({"voters": left})
    else:
        answer = {"revision": target.settings()["revision"]}
    _report(target, answer, f"{node} has no vote any more")


def _voters(target: ClusterTarget) -> list[str]:
    for answer in target.ask("status", patience_s=10.0)["nodes"].values():
        config = (answer.get("status") or answer).get("config")
        if config:
            return list(config["voters"])
    raise Unavailable("No node tells who votes; `fairlead cluster status` shows who is there.")


def _change_votes(target: ClusterTarget, node: str, *, add: bool, wait_s: float = 30.0) -> None:
    """In the control record of each group, by its primary (CLU-145); repeated until it is so."""
    status = target.status()
    votes = _vote_names(target, node)
    for group in status["groups"]:
        name = group["group"]
        until_s = time.monotonic() + wait_s
        while True:
            held = _held(target, name, node)
            if (add and votes.get(name) in held) or (not add and not held):
                break
            if time.monotonic() >= until_s:
                raise Unavailable(f"group {name} has not changed its voters in {wait_s:g} s; run the command again")
            leader = target.primary(name)
            if held:  # also before an addition: a vote whose notes were lost goes out before the new one comes in
                target.ask_one("electorate", leader, group=name, remove=held[0])
            elif name in votes:
                target.ask_one("electorate", leader, group=name, add=votes[name])
            time.sleep(0.2)


def _vote_names(target: ClusterTarget, node: str) -> dict[str, str]:
    answer = target.ask("status", [node], patience_s=10.0)["nodes"].get(node, {})
    votes: dict[str, Any] = (answer.get("status") or answer).get("votes") or {}
    return {group: str(facts.get("vote", "")) for group, facts in votes.items()}


def _held(target: ClusterTarget, group: str, node: str) -> list[str]:
    found = next((one for one in target.status()["groups"] if one["group"] == group), None)
    return [vote for vote in (found or {"votes": []})["votes"] if vote.rpartition(".")[0] == node]


# --- Groups -------------------------------------------------------------------------------------------------------
@click.command("grow")
@click.argument("group")
@click.argument("node")
@cluster_command
def grow(target: ClusterTarget, group: str, node: str) -> None:
    """Make NODE a member of GROUP: it copies the group's state and becomes a backup. A new GROUP is made at the end.

    \b
    Examples:
      fairlead cluster grow a mm3
      fairlead cluster grow c mm1          (a new group c, with its first member)
    """
    groups = _groups(target)
    found = next((one for one in groups if one["name"] == group), None)
    if found is None:
        groups.append({"name": group, "members": [node]})
    elif node in found.get("members", []):
        raise Unavailable(f"{node} is a member of group {group} already.")
    else:
        found["members"] = [*found.get("members", []), node]
    _report(target, target.change({"groups": groups}), f"{node} is a member of group {group}")


@click.command("shrink")
@click.argument("group")
@click.argument("node")
@yes_option
@cluster_command
def shrink(target: ClusterTarget, group: str, node: str, yes: bool) -> None:
    """NODE is no longer a member of GROUP. If it leads, it hands over first; its copy stays on its disk.

    \b
    Example:
      fairlead cluster shrink a mm3
    """
    groups = _groups(target)
    found = next((one for one in groups if one["name"] == group), None)
    if found is None or node not in found.get("members", []):
        raise Unavailable(f"{node} is no member of group {group}.")
    left = [member for member in found["members"] if member != node]
    if not left:
        raise Unavailable(f"{node} is the only member of group {group}; messages would be out of reach.")
    confirm(yes, f"Keep the messages of group {group} only on {', '.join(left)}?")
    if target.primary(group) == node:
        in_sync = _in_sync(target, group, left)
        if not in_sync:
            raise Unavailable(f"nobody else in group {group} is in sync; wait until one is.")
        target.ask_one("hand-over", node, group=group, to=in_sync[0])
        from fairlead.cli.cluster import await_primary

        await_primary(target, group, in_sync[0], 30.0)
    found["members"] = left
    _report(target, target.change({"groups": groups}), f"{node} is no member of group {group} any more")


def _groups(target: ClusterTarget) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = target.settings()["groups"]
    return groups


def _in_sync(target: ClusterTarget, group: str, among: list[str]) -> list[str]:
    found = next(one for one in target.status()["groups"] if one["group"] == group)
    return [member["node"] for member in found["members"] if member["in_sync"] and member["node"] in among]
