"""The gateway without its sockets."""
