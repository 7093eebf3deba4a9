"""Titanic: a disk-backed store-and-forward service on Majordomo (RFC 9, TSP)."""
