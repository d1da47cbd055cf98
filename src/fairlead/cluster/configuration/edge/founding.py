"""What a node that begins with its cluster writes down before its first start: that it never voted.

Without these notes a node counts as one that lost them, and its votes are readmitted by the others (CLU-145). So they
are made once, by the administrator's word (`fairlead node init --founding`), and never by the node itself.
"""

from __future__ import annotations

from fairlead.cluster.configuration.edge.files import NOTES, NodeFiles
from fairlead.cluster.configuration.edge.part import founding_notes
from fairlead.errors import ConfigError


def found_node(files: NodeFiles) -> None:
    """Make the data directory of a founding node."""
    files.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (files.data / NOTES).exists():
        raise ConfigError(
            f"{files.data} has notes of earlier votes; a node is founded once (an empty data directory can be founded)"
        )
    files.write_notes(founding_notes(files.settings))
    files.remember()
