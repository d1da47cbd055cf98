"""`fairlead cluster`: looking at a cluster and changing it. Starting one on this host is in `cluster_up`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from fairlead.cli.admin import confirm, yes_option
from fairlead.cli.cluster_change import add_voter, grow, remove_voter, set_command, shrink
from fairlead.cli.cluster_target import ClusterTarget, Facts, cluster_command
from fairlead.cli.cluster_up import down, init, up
from fairlead.cli.cluster_update import update
from fairlead.cli.options import fail, one_sentence
from fairlead.cluster.configuration.overview import differing
from fairlead.errors import Unavailable


@click.group("cluster")
def cluster_group() -> None:
    """Several hosts as one server that survives the loss of any one of them.

    \b
    A cluster on this host, to look at and to break:
      fairlead cluster up --data ./cluster          two client managers, two groups of two copies
      fairlead cluster status --data ./cluster
      fairlead cluster move-primary a mm2 --data ./cluster
    On several hosts: `fairlead node --help`.
    """


for _command in (up, down, init, set_command, add_voter, remove_voter, grow, shrink, update):
    cluster_group.add_command(_command)


@cluster_group.command("status")
@cluster_command
def status(target: ClusterTarget) -> None:
    """Show nodes, who leads which group, who is in sync and how far behind, files, and what is wrong.

    \b
    Examples:
      fairlead cluster status
      fairlead cluster status --server fairlead://10.0.0.1:7400 --json
      fairlead cluster status --data /var/lib/fairlead      (through the local socket of a node on this host)
    Exit codes: 0 all is well, 1 nobody answers, 4 there are warnings.
    """
    found = target.status()
    if target.as_json:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        from fairlead.cli.cluster_view import console, tables

        console().print(tables(found))
    if found["warnings"]:
        raise SystemExit(4)


@cluster_group.command("watch")
@click.option("--interval", type=click.FloatRange(min=0.2), default=1.0, show_default=True, help="Seconds between two.")
@cluster_command
def watch(target: ClusterTarget, interval: float) -> None:
    """The tables of `status`, again and again, until Ctrl-C.

    \b
    Example:
      fairlead cluster watch --data ./cluster
    """
    from rich.live import Live

    from fairlead.cli.cluster_view import console, tables

    try:
        with Live(console=console(), auto_refresh=False) as live:
            while True:
                try:
                    live.update(tables(target.status()), refresh=True)
                except Unavailable as error:
                    live.update(f"nobody answers: {error}", refresh=True)
                time.sleep(interval)
    except KeyboardInterrupt:
        pass


@cluster_group.command("move-primary")
@click.argument("group")
@click.argument("node")
@click.option("--wait", "wait_s", type=float, default=30.0, show_default=True, help="Seconds it may take.")
@cluster_command
def move_primary(target: ClusterTarget, group: str, node: str, wait_s: float) -> None:
    """Have NODE lead GROUP: planned, without loss; clients wait for a moment.

    \b
    Example:
      fairlead cluster move-primary a mm2
    """
    leader = target.primary(group)
    if leader != node:
        target.ask_one("hand-over", leader, group=group, to=node)
        await_primary(target, group, node, wait_s)
    told(target, f"{node} leads group {group}", {"group": group, "primary": node, "before": leader})


def await_primary(target: ClusterTarget, group: str, node: str, wait_s: float) -> None:
    """Until that node leads the group."""
    until_s = time.monotonic() + wait_s
    leader = ""
    while leader != node:
        if time.monotonic() >= until_s:
            raise Unavailable(
                f"group {group} is led by {leader or 'nobody'} after {wait_s:g} s, not by {node}; is {node} in sync? "
                "`fairlead cluster status` shows it"
            )
        time.sleep(0.1)
        try:
            leader = target.primary(group)
        except Unavailable:
            leader = ""


@cluster_group.command("force-primary")
@click.argument("group")
@click.argument("node")
@click.option("--accept-loss", is_flag=True, help="Confirmed messages that only others have may be lost.")
@yes_option
@cluster_command
def force_primary(target: ClusterTarget, group: str, node: str, accept_loss: bool, yes: bool) -> None:
    """Have NODE lead GROUP though it may lack confirmed messages, because those who have them will not come back.

    First try to bring back a member that has everything: `fairlead cluster status` says whom the group waits for.

    \b
    Example:
      fairlead cluster force-primary a mm2 --accept-loss
    """
    if not accept_loss:
        fail(
            f"confirmed messages of group {group} that {node} does not have would be lost for ever; if the members "
            "that have them cannot be brought back, say --accept-loss",
            2,
        )
    confirm(yes, f"Let {node} lead group {group}, and lose what it does not have?")
    answer = target.ask_one("force", node, group=group, accept_loss=True)
    told(target, f"{node} was told to lead group {group}; the log says what may be missing", answer)


@cluster_group.command("scrub")
@click.argument("group", required=False)
@click.option("--wait", "wait_s", type=float, default=600.0, show_default=True, help="Seconds it may take.")
@cluster_command
def scrub(target: ClusterTarget, group: str | None, wait_s: float) -> None:
    """Read everything stored in GROUP, or in all groups, on every member, and report damage.

    \b
    Example:
      fairlead cluster scrub a
    Exit codes: 0 everything is as it was written, 1 damage, or not all members answered.
    """
    groups = {found["group"]: found for found in target.status()["groups"]}
    chosen = [group] if group else sorted(groups)
    rows: list[Facts] = []
    compared: dict[str, list[str] | None] = {}
    for name in chosen:
        if name not in groups:
            raise Unavailable(f"There is no group {name}; there are {', '.join(sorted(groups))}.")
        nodes = [member["node"] for member in groups[name]["members"]]
        answers = target.ask("scrub", nodes, wait_s, group=name)["nodes"]
        for node in nodes:
            answer = answers.get(node, {"ok": False, "error": "no answer"})
            rows.append({"group": name, "member": node, **{k: v for k, v in answer.items() if k != "node"}})
        compared[name] = differing(answers) if len(answers) == len(nodes) else None
    bad = [row for row in rows if not row.get("ok", True) or row.get("damage")]
    if target.as_json:
        facts = {"members": rows, "damaged": len(bad), "differing": compared}
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        for row in rows:
            what = row.get("error") or _damage(row.get("damage") or [])
            then = f"; {row['repair']}" if row.get("repair") else ""
            click.echo(f"group {row['group']} on {row['member']}: {row.get('records', 0):,} records read, {what}{then}")
        for name, names in compared.items():
            click.echo(f"group {name}: {_comparison(names)}")
    if bad or any(compared.values()):
        raise SystemExit(1)


def _damage(found: list[Facts]) -> str:
    if not found:
        return "all as they were written"
    return f"{len(found)} damaged places, first: {found[0].get('text')} (file {found[0].get('segment')})"


def _comparison(names: list[str] | None) -> str:
    if names is None:
        return "copies not compared, since messages came meanwhile; try again when it is quiet"
    return f"copies differ in {', '.join(names)}" if names else "all copies are equal"


@cluster_group.command("fault")
@click.argument("kind", type=click.Choice(["cut", "drop", "delay", "rate", "heal"]))
@click.option("--from", "sender", default="*", help="Sending node; * is any.")
@click.option("--to", "receiver", default="*", help="Receiving node; * is any.")
@click.option("--bus", default="*", help="Bus; * is any.")
@click.option("--value", type=float, default=0.0, help="Probability of a drop, seconds of a delay, bytes/s of a rate.")
@cluster_command
def fault(target: ClusterTarget, kind: str, sender: str, receiver: str, bus: str, value: float) -> None:
    """Disturb the bus between nodes, for tests; only in a cluster started with --faults.

    \b
    Examples:
      fairlead cluster fault cut --from mm1 --to mm2 --data ./cluster
      fairlead cluster fault heal --data ./cluster
    """
    question: dict[str, Any] = {"fault": kind, "from": sender, "to": receiver, "bus": bus, "value": value}
    found = target.ask("fault", **question)
    refused = {name: answer.get("error") for name, answer in found["nodes"].items() if not answer.get("ok", True)}
    if refused:
        raise Unavailable("; ".join(f"{name}: {reason}" for name, reason in sorted(refused.items())))
    told(target, f"{kind} on {', '.join(sorted(found['nodes']))}", found)


@cluster_group.command("tap")
@click.option(
    "--node",
    "node_file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="node.toml of a node of the cluster: says where the buses are, and the secret.",
)
@click.option("--seconds", type=float, help="Stop after this time.")
@one_sentence
def tap(node_file: Path, seconds: float | None) -> None:
    """Print one line per message on the bus: time, bus, sender, receiver, port, number, bytes. Never contents.

    \b
    Example:
      fairlead cluster tap --node ./cluster/mm1/node.toml
    """
    from fairlead.bus.edge.tap import run_tap
    from fairlead.cluster.configuration.edge.files import NodeFiles
    from fairlead.cluster.configuration.edge.watching import tap_config

    until_s = time.monotonic() + seconds if seconds else float("inf")
    run_tap(tap_config(NodeFiles(node_file)), click.echo, lambda: time.monotonic() >= until_s)


def told(target: ClusterTarget, sentence: str, facts: dict[str, Any]) -> None:
    click.echo(json.dumps(facts, ensure_ascii=False) if target.as_json else sentence)
