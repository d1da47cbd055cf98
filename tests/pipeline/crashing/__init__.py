"""Exactly once, shown with real processes: streaming queries, and what kills them, their server and their tasks."""
