"""Who may call, serve and manage what."""
