"""Imported by every interpreter that starts with this directory on its path; only member nodes are changed."""

import os
import sys

if "fairlead.runtime.member_node.node" in sys.orig_argv:
    if os.environ.get("FAIRLEAD_PLANT"):
        import planted

        planted.plant(os.environ["FAIRLEAD_PLANT"])
    if os.environ.get("FAIRLEAD_DISK"):
        import disk

        disk.hurt(sys.orig_argv)
