"""Replicated queues side by side: what three copies cost, and what a killed leader does to a producer."""
