"""Types of the compiled twin; `entry_columns.py` says what everything means."""

from fairlead.wire.entry_columns import entries_of as entries_of
