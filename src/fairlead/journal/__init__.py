"""The journal: one append-only log for all destinations of a message manager. What is beside `edge/` only computes."""
