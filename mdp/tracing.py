"""Documented path that forwards to `mdp.observe.tracing`."""

from mdp.observe.tracing import BrokerSpans, TracedClient, traced

__all__ = ["BrokerSpans", "TracedClient", "traced"]
