"""Documented path that forwards to `mdp.eventlog.files`."""

from mdp.eventlog.files import EventLogWriter, read_events, read_segment, segment_number, segments
from mdp.eventlog.log_options import EventLogOptions

__all__ = ["EventLogOptions", "EventLogWriter", "read_events", "read_segment", "segment_number", "segments"]
