"""What can be seen of a running server from outside: metrics, health, and the screen of `fairlead top`."""
