"""Brokers together: pairs, and brokers that lend workers."""
