"""Event log of a broker: format (whose names are available here), files, and following a log being written."""

from mdp.eventlog import format as event_format
from mdp.eventlog.format import *  # noqa: F403

__all__: list[str] = []
__all__ += event_format.__all__
