"""Types of the compiled twin; `entries.py` says what everything means."""

from fairlead.wire.entries import Delivered as Delivered
from fairlead.wire.entries import Entry as Entry
from fairlead.wire.entries import deliveries as deliveries
from fairlead.wire.entries import details as details
from fairlead.wire.entries import encode as encode
from fairlead.wire.entries import encode_many as encode_many
from fairlead.wire.entries import forged as forged
from fairlead.wire.entries import keys as keys
from fairlead.wire.entries import pick as pick
from fairlead.wire.entries import span as span
from fairlead.wire.entries import survey as survey
