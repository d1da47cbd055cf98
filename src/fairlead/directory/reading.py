"""What the tables answer to questions; a server cut off from the others can answer them as well (DIR-14, DIR-19)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from fairlead.directory.desk import Answer, Desk
from fairlead.directory.operations import GetCluster, ListApps, LookupApp, Nothing, Totals
from fairlead.errors import UnknownCluster


def get_cluster(desk: Desk, asked: GetCluster) -> Answer:
    """Rows without counts: they say the same until a client must know of something (DIR-20)."""
    state = desk.state
    cluster = state.clusters.get(asked.cluster)
    if cluster is None or not cluster.brokers:
        raise UnknownCluster(f"There is no cluster {asked.cluster[:60]!r} in the directory, or it has no brokers.")
    if asked.newer_than is not None and cluster.revision <= asked.newer_than <= state.revision:
        return {"unchanged": True, "revision": state.revision}
    if cluster.told is None:
        cluster.told = {
            "cluster": state.told_cluster(asked.cluster),
            "brokers": [state.told_broker(name) for name in cluster.brokers],
            "heuristic": cluster.heuristic or state.heuristic or desk.settings.heuristic,
            "rule": cluster.rule or state.rule or desk.settings.rule,
        }
    return {**cluster.told, "revision": state.revision}


def lookup_app(desk: Desk, asked: LookupApp) -> Answer:
    state = desk.state
    keys = list(state.keys.get(asked.app, {}).values())  # they outlive the registration of a dynamic application
    if asked.app not in state.apps:
        return {"app": None, "brokers": [], "keys": keys, "revision": state.revision}
    return {**state.told_app(asked.app), "keys": keys, "revision": state.revision}


def list_brokers(desk: Desk, asked: Nothing) -> Answer:
    state = desk.state
    return {"brokers": [state.full_broker(name) for name in state.brokers], "revision": state.revision}


def list_clusters(desk: Desk, asked: Nothing) -> Answer:
    state = desk.state
    return {"clusters": [state.told_cluster(name) for name in state.clusters], "revision": state.revision}


def list_apps(desk: Desk, asked: ListApps) -> Answer:
    """All, or the one that is named."""
    state = desk.state
    names = [asked.app] * (asked.app in state.apps) if asked.app else list(state.apps)
    return {"apps": [state.told_app(name)["app"] for name in names], "revision": state.revision}


def totals(desk: Desk, asked: Totals) -> Answer:
    """A connection is of the cluster it was placed through; one that was not placed, of all clusters of its broker."""
    state = desk.state
    app = state.apps.get(asked.app)
    cluster = state.clusters.get(asked.cluster)
    members = set(cluster.brokers) if cluster is not None else set()
    found = Counter(
        link.broker
        for link in (app.links.values() if app is not None else ())
        if not asked.cluster or link.cluster == asked.cluster or (not link.cluster and link.broker in members)
    )
    return {"total": found.total(), "brokers": dict(found), "revision": state.revision}


READS: Final[Mapping[str, Callable[[Desk, Any], Answer]]] = {
    "get_cluster": get_cluster,
    "lookup_app": lookup_app,
    "list_brokers": list_brokers,
    "list_clusters": list_clusters,
    "list_apps": list_apps,
    "totals": totals,
}
