"""Where the figures come from, and the doors they are shown at."""
