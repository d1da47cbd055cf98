"""Where tunnels meet sockets and clocks."""
