"""Parts that clients and servers of every package share."""
