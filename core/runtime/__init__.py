"""What a program runs on: event loop, threads, supervision of tasks, ownership of sockets."""
