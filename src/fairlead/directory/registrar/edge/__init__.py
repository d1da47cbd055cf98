"""The registrar as a program: a client of its own broker and of the directory."""
