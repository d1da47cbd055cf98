"""Types of the compiled twin; `columns.py` says what everything means."""

from fairlead.wire.columns import ColumnBuilder as ColumnBuilder
from fairlead.wire.columns import Columns as Columns
from fairlead.wire.columns import parse as parse
