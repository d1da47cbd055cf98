"""Types of the compiled twin; `itch_columns.py` says what everything means."""

from fairlead.feeds.formats.itch_columns import read as read
