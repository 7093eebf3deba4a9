"""Pure machines that several packages share: deadlines, liveness, envelopes, workers of a queue."""
