"""Host names of endpoints."""
