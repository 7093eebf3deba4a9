"""Event log of a broker: format, files, and following a log while it is written. The names of the format are available here."""

from mdp.eventlog import format as event_format
from mdp.eventlog.format import *  # noqa: F403

__all__: list[str] = []
__all__ += event_format.__all__
