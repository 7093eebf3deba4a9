"""Documented path that forwards to `mdp.observe.tracing`."""

from mdp.observe.tracing import BrokerSpans, Spans, TracedClient, traced

__all__ = ["BrokerSpans", "Spans", "TracedClient", "traced"]
