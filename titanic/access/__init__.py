"""Who may use which stored request."""
