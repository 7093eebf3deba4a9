"""Look for other Titanics at the same broker.

It gives a question for a ticket to any of them, and each knows its own tickets only.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import mdp
from core.daemon.logs import RateLimitedLog
from core.machine.peer_text import json_or_none
from core.runtime import supervision
from titanic.access.broker_permissions import ASK_TIMEOUT_S
from titanic.wire import tsp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

log = logging.getLogger("titanic")

WORKERS: Final = b"mmi.workers"
FIRST_LOOK_S: Final = 15.0  # more than a broker needs to see that the last process of this store has ended
LOOK_S: Final = 600.0  # what is started later looks itself


class OtherStores:
    """Asks the broker for the workers of `titanic.reply`; without an answer there are no others.

    Attributes:
        count: other stores, when the broker was asked last.
    """

    def __init__(self) -> None:
        self.count = 0
        self._log = RateLimitedLog(log)

    @asynccontextmanager
    async def watched(self, client: mdp.Client) -> AsyncIterator[None]:
        """Look again and again within the block."""
        task = supervision.current().task("titanic other stores", partial(self._look, client))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _look(self, client: mdp.Client) -> None:
        pause_s = FIRST_LOOK_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = LOOK_S
            try:
                reply = await client.request(WORKERS, tsp.REPLY, timeout=ASK_TIMEOUT_S, attempts=1)
                if reply[:1] == [b"403"]:  # and would write each further question into its audit log
                    return
                workers = json_or_none(reply[1]) if reply[:1] == [b"200"] and len(reply) > 1 else None
                self.count = max(0, len(workers) - 1) if isinstance(workers, list) else 0
            except mdp.RequestError:
                self.count = 0
            if self.count:
                self._log.warning(
                    "others", "other Titanics serve this broker, and are asked for tickets that only this one knows", others=self.count
                )
