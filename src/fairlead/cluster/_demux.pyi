"""Types of the compiled twin; `demux.py` says what everything means."""

from fairlead.cluster.demux import LINK_FRAME_MAX as LINK_FRAME_MAX
from fairlead.cluster.demux import LOOKED_AT as LOOKED_AT
from fairlead.cluster.demux import MALFORMED as MALFORMED
from fairlead.cluster.demux import runs as runs
from fairlead.cluster.demux import scan as scan
