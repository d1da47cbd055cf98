"""Ready-made converters: from the formats of sources to typed records (docs/feed-formats.md)."""
