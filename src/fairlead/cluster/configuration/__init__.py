"""The three files of a node in a cluster, and how all nodes come to hold the same ones."""
