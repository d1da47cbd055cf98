"""What a client makes of several streams: one, in order, each message once, and an exact word about what is missing.

A pure machine (`Arbiter`), told of lines, blocks and time; it answers with what the application gets and with what it
asks of whoever holds the lines.
"""

from fairlead.feeds.arbitration.asks import Dial, Drop, RenewNow, ReportNow, Say
from fairlead.feeds.arbitration.machine import Arbiter

__all__ = ["Arbiter", "Dial", "Drop", "RenewNow", "ReportNow", "Say"]
