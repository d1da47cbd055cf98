"""Queues and topics as a client sees them, without input or output: sessions, producers, consumers, transactions."""
