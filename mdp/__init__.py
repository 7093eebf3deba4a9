"""Majordomo: a broker of services, its clients and its workers (MDP/0.1, 0.2 and our draft 0.3)."""
