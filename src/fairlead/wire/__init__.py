"""The bytes between client and server: frames, header pairs, the handshake, credit. See docs/protocol.md."""
