"""What clients and servers of every package are built from."""
