"""How fast the directory answers, and how evenly connections are placed: see README.md."""
