"""Host names and zones of endpoints."""
