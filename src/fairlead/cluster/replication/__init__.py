"""Who leads a group and what is safe in its log: pure machines (docs/cluster.md, section 4)."""
