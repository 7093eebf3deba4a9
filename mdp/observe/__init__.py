"""Metrics, pages and traces of brokers and workers."""
