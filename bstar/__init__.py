"""Binary Star: a primary and a backup, one of which serves, and a client that finds it.

    async with bstar.Pair(bstar.PRIMARY, local="tcp://*:5003", remote="tcp://10.0.0.2:5004") as pair:
        pair.voter("tcp://*:5001", handler=lambda request: request.body)
        await pair.serve_forever()

    async with bstar.Client("tcp://10.0.0.1:5001", "tcp://10.0.0.2:5001") as client:
        reply = await client.request(b"hello")

`bstar.Witness` is a third process that makes two masters impossible; `docs/bstar.md` says when it is needed. Names that need sockets are
loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from majordomo_toolkit import __version__
from bstar import errors
from bstar.errors import *  # noqa: F403
from bstar.machine.ballot import Ballot
from bstar.machine.fsm import State, Verdict
from majordomo_toolkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from bstar.client import Client
    from bstar.net.voter import Request
    from bstar.pair import Pair
    from bstar.witness import Witness

__all__ = ["BACKUP", "PRIMARY", "Ballot", "Client", "Pair", "Request", "State", "Verdict", "Witness", "__version__"]
__all__ += errors.__all__  # a type checker takes what is not named here for private

PRIMARY = State.PRIMARY
BACKUP = State.BACKUP

if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    __getattr__ = lazy_names(
        __name__, {"bstar.client": ("Client",), "bstar.net.voter": ("Request",), "bstar.pair": ("Pair",), "bstar.witness": ("Witness",)}
    )
