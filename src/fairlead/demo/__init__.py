"""The tour: a server, its updates, its failures and its neighbours, done for real and counted by number."""
