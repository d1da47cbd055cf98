"""Imported by every interpreter that starts with this directory on its path; only message managers get the bug."""

import os
import sys

if os.environ.get("FAIRLEAD_PLANT") and "message-manager" in sys.orig_argv:
    import planted

    planted.plant(os.environ["FAIRLEAD_PLANT"])
