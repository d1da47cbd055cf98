"""The directory over sockets: its client."""
