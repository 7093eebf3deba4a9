"""Machines that several packages share, sans-I/O: deadlines, liveness, envelopes, queues."""
