"""What happened to a member, in words for the log."""

from __future__ import annotations

from fairlead.cluster.replication import events as told


def sentence(event: told.Event) -> tuple[str, str]:
    """Level and text of what has happened, for the log."""
    match event:
        case told.SetChanged(record):
            return "info", f"the in-sync set is {' '.join(sorted(record.members))}, epoch {record.epoch}"
        case told.Waiting(whom, why):
            return ("warning", f"waits for {', '.join(whom) or 'others'}: {why}") if why else ("info", "waits no more")
        case told.Degraded(degraded):
            return (
                "warning" if degraded else "info",
                f"has {'fewer copies than' if degraded else 'as many copies as'} are wanted",
            )
        case told.SetAside(first, last):
            return "warning", f"records {first} to {last} were never safe and are set aside"
        case told.HandedOver(to, done, why):
            return ("info", f"handed over to {to}") if done else ("warning", f"not handed over to {to}: {why}")
        case told.Forced(epoch, missing):
            return "error", f"leads in epoch {epoch} by force; these may have had more: {' '.join(missing)}"
        case told.NeedsState(why, hosts):
            return "info", f"needs a whole state from {', '.join(hosts)}: {why}"
        case _:
            return "info", str(event)
