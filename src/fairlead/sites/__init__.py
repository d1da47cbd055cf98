"""Several servers as one: bridges carry messages between them (docs/sites.md)."""
