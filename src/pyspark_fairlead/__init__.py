"""By this name Spark finds `format("fairlead")` on its own: it imports all modules called `pyspark_…`."""

from __future__ import annotations

import logging

__all__ = ["DefaultSource"]

try:
    from fairlead.pipeline.source import FairleadSource as DefaultSource
except ImportError as error:  # Spark imports this for every Python source, and must not stumble over ours
    logging.getLogger("fairlead.pipeline").warning(
        'format("fairlead") is not there, for %s. Install fairlead[spark].', error
    )
