"""The bridge process."""
