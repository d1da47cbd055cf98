"""The rules of the tables, each with a switch. All are on; tests switch one off to see that a law catches it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """What each switch stands for, and where the specification says it."""

    # picks
    rotation_of_app: bool = True  # each application has its own rotation through a cluster (DIR-49)
    count_reserved: bool = True  # a pick takes a place until the connection is reported (DIR-51)
    give_turns_back: bool = True  # who was passed over, or picked for nothing, has a turn left (DIR-52)
    same_request: bool = True  # a request said again is the same pick
    use_reservation: bool = True  # the row of a connection takes the place of its reservation (DIR-51)
    keep_place: bool = True  # when the broker used last leaves, its successor is next (DIR-44)
    two_reporters: bool = True  # one client alone cannot have a broker skipped (DIR-64)
    # rows
    merge_reports: bool = True  # two reports of one connection are one row (DIR-16)
    remember_closed: bool = True  # closed before opened leaves no row (DIR-17)
    labels_rise: bool = True  # the number of a label is not given again (DIR-13)
    keep_labels: bool = True  # a connection stated again keeps its label (DIR-21)
    dynamic_goes: bool = True  # a dynamic application goes with its last connection (DIR-28)
    # brokers
    leave_clusters: bool = True  # a broker that is removed is in no cluster any more (DIR-18)
    drop_links: bool = True  # connections end with the lease of their broker (DIR-22)
    guard_names: bool = True  # a name whose lease runs is not given to another server (DIR-33)
    # replication
    apply_once: bool = True  # a change that was applied is not applied again


ALL_RULES = Rules()
