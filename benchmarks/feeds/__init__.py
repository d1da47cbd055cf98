"""What a program notices of a failover, and what arbitration costs: see README.md."""
