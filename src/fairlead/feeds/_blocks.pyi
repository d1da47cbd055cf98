"""Types of the compiled twin of `blocks.py`."""

from fairlead.feeds.blocks import Block as Block
from fairlead.feeds.blocks import StreamMessage as StreamMessage
from fairlead.feeds.blocks import pack as pack
from fairlead.feeds.blocks import pack_columns as pack_columns
from fairlead.feeds.blocks import with_first as with_first
