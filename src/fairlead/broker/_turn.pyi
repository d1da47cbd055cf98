"""Signatures of the compiled turn: those of its plain twins."""

from typing import Any

from fairlead.broker.parties import Ask as Ask
from fairlead.broker.parties import Attachment as Attachment
from fairlead.broker.parties import Route as Route
from fairlead.broker.turn import Turn as Turn

made_of: Any
