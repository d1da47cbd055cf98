"""Who may connect (`users`), and what they may do there (`rules`)."""
