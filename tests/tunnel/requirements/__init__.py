"""The numbered requirements as they can be seen from outside: a real gateway process, real ends, real faults."""
