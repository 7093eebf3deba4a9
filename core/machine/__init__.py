"""Pure machines that several packages share: deadlines, liveness, envelopes, queues."""
