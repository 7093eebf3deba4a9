"""Documented path that forwards to `mdp.eventlog.files`."""

from mdp.eventlog.files import EventLogOptions, EventLogWriter, read_events, read_segment, segment_number, segments

__all__ = ["EventLogOptions", "EventLogWriter", "read_events", "read_segment", "segment_number", "segments"]
