"""What every process of the server needs: configuration, counters, supervision. All of it is edge."""
