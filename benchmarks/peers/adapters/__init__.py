"""The peers: name -> (module, Broker class). A new broker is one more line here."""

from importlib import import_module

PEERS = {
    "fairlead": ("fairlead", "Fairlead"),
    "nats": ("nats_core", "Nats"),
    "jetstream": ("jetstream", "JetStream"),
    "jetstream-always": ("jetstream", "JetStreamAlways"),
    "rabbitmq": ("rabbitmq", "Rabbit"),
    "rabbitmq-quorum": ("rabbitmq", "RabbitQuorum"),
    "rabbitmq-pika": ("rabbitmq_pika", "RabbitPika"),
    "rabbitmq-quorum-pika": ("rabbitmq_pika", "RabbitQuorumPika"),
    "redis": ("redis_streams", "Redis"),
    "mosquitto": ("mosquitto", "Mosquitto"),
    "activemq": ("activemq", "ActiveMQ"),
    "activemq-nodelay": ("activemq", "ActiveMQNoDelay"),
    "zeromq": ("zeromq", "ZeroMQ"),
}


def load(peer: str):
    """The ``Broker`` class of a peer."""
    module, cls = PEERS[peer]
    return getattr(import_module(f"{__name__}.{module}"), cls)
