"""The gateway as an ASGI application, its link listener, and a server to run it in."""
