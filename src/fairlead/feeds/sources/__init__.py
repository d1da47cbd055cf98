"""Where feeds come from: framing, holes and their recovery, sessions, made-up days. Sockets are in edge/sources."""
