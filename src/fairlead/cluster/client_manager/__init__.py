"""The client manager side of a cluster: what stands between connection managers and the groups that keep messages."""
