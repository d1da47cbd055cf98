"""The directory: how an application finds a broker, and another application by its name."""
