"""NOTICEs about a producer or a consumer, brought to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.errors import from_wire

if TYPE_CHECKING:
    from fairlead.client.durable.commands import Facts
    from fairlead.client.durable.consumer import DurableConsumer
    from fairlead.client.durable.producer import Producer

__all__ = ["tell_consumer", "tell_producer"]


def tell_producer(producer: Producer, event: str, facts: Facts) -> None:
    code, text = str(facts.get("code", "refused")), str(facts.get("text", ""))
    match event:
        case "blocked" | "unblocked":
            producer.on_blocked(event == "blocked")
        case "refused" if "transfer" in facts:
            for upload in list(producer.part.uploads):
                if upload.number == facts["transfer"]:
                    upload.fail(from_wire(code, text))
        case "refused":
            producer.on_refused(int(facts["first"]), int(facts["count"]), code, text)
            if producer.part.transaction is not None:
                producer.part.transaction.on_refused(from_wire(code, text))
        case "ended":
            producer.fail(from_wire(code, text))
        case "transfer":
            for upload in list(producer.part.uploads):
                if upload.number == facts.get("transfer"):
                    upload.on_granted(int(facts["offset"]), complete=bool(facts.get("complete")))


def tell_consumer(consumer: DurableConsumer, event: str, facts: Facts) -> None:
    match event:
        case "ended":
            consumer.on_handle_ended(
                int(facts.get("handle", 0)), from_wire(str(facts.get("code")), str(facts.get("text", "")))
            )
        case "caught-up":
            consumer.on_caught_up()
        case "joined":
            consumer.on_joined(facts)
            consumer.part.road.late(int(facts["handle"]))
