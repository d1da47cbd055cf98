"""The message manager's process: links, disk and clock."""
