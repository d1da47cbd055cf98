"""The client driver: packets as bodies of HTTP requests, or as WebSocket frames."""
