"""Messages between applications, without sockets: where they go, what they say, who waits for an answer."""
