"""Binary Star: a primary and a backup, of which one serves, and a client that finds it."""

from bstar.errors import *  # noqa: F403
from bstar.fsm import State

__all__ = ["BACKUP", "PRIMARY", "State"]

PRIMARY = State.PRIMARY
BACKUP = State.BACKUP
