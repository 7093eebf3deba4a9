"""Runtime of a program: event loop, threads, supervision of tasks, ownership of sockets, scheduling of writes."""
