"""The console's edges: its HTTP application, what it asks the server, and its process."""
