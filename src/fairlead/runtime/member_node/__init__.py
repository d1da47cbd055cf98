"""The node that keeps messages: a keeper and its child, the member node (`fairlead node mm`)."""

from fairlead.runtime.member_node.keeper import run_mm_node

__all__ = ["run_mm_node"]
