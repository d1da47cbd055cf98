"""The message bus: ordered messages between the nodes of a cluster, and who is there (docs/cluster.md, section 3)."""
