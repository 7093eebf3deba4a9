"""Binary Star's shells: sockets, ballot files, the clock that counts suspended time."""
