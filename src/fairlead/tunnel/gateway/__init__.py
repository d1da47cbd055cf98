"""The gateway without its sockets: tunnels, buffers, links, tokens, limits."""
