"""What can be set for one destination; the defaults are those of a new one."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Kind = Literal["queue", "topic"]


class Parameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Set by administration, by configuration (`[destinations.NAME]`) or when it is created; kept in the journal."""

    max_messages: int = 0  # waiting messages at which producers are blocked; 0: no limit
    max_bytes: int = 0  # the same in bytes; 0: no limit of its own, the store's quota holds
    low_water: float = 0.5  # share of the limits below which they are released
    delivery_limit: int = 10  # deliveries after which a message is dead; 0: no limit (CLU-26)
    redelivery_delay_s: float = 0.0  # how long a returned message waits before it is delivered again
    redelivery_factor: float = 1.0  # growth of that delay with each further delivery
    redelivery_delay_max_s: float = 300.0  # and its end
    expired: Literal["drop", "dead"] = "drop"  # what becomes of expired messages (CLU-23)
    dead_queue: str = ""  # a dead queue of its own instead of _DMQ
    ttl_s: float = 0.0  # for messages that bring none; 0: they live for ever
    hold_s: float = 0.0  # messages of a lost session stay locked so long (CLU-126)
    retain_s: float = 0.0  # keep messages so long after they were consumed
    retain_bytes: int = 0  # keep the newest so many bytes
    retain_messages: int = 0  # keep the newest so many messages; all three 0: gone when consumed. -1: keep all
    last_value: bool = False  # a topic that keeps the newest message of each key only
    slow_subscriber: Literal["hold", "buffer", "drop-oldest"] = "buffer"  # for a slow one (CLU-107)
    subscriber_buffer: int = 100_000  # messages buffered for a non-durable subscriber before `slow_subscriber` acts
    rollback_redelivers: bool = False  # a topic's non-durable subscriber gets rolled-back messages again (CLU-160)
    dedup_s: float = 600.0  # how long deduplication ids are remembered
    dedup_max: int = 100_000  # and how many
    paused: bool = False  # nothing is delivered until resumed
    exclusive: bool = False  # one consumer at a time, the others stand by
    large_dead: bool = True  # very large messages may go to the dead queue
