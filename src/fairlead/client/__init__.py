"""The client library: one machine (`session`) and two thin faces on it (`aio`, `sync`)."""
