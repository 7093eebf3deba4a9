"""The frames of TSP (RFC 9), of batches and of the mirror protocol."""
