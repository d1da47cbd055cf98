"""How a client chooses a broker: pure parts; `fairlead.client.aio.placing` is their edge."""
