"""Binary Star, sans-I/O: tables, timers, ballots, and the client's fail-over."""
