"""The journal's files and its writing thread."""
