"""A handler that misbehaves now and then, to see a system of pirates survive it. Used by nobody who does not ask for it.

After the first few requests each has a chance to be the last one (the worker plays dead without a word), and another to take
very long.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any, Final

from pirate.errors import SimulatedCrash

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

__all__ = ["Mishaps"]

log = logging.getLogger(__name__)

CALM_REQUESTS: Final = 3  # so that there is something to see before it begins


class Mishaps:
    """Wraps a handler.

    Args:
        handler: that answers in between.
        random: where chance comes from.
        one_in: one request in so many ends in a crash, and one in so many is slow.
        overload_s: seconds a slow one takes longer.
    """

    def __init__(self, handler: Callable[[list[bytes]], Any], random: Random, *, one_in: int = 5, overload_s: float = 3.0) -> None:
        self._handler = handler
        self._random = random
        self._one_in = one_in
        self._overload_s = overload_s
        self._requests = 0

    async def __call__(self, body: list[bytes]) -> Any:
        """Handle a request, or do something worse.

        Raises:
            SimulatedCrash: it is time to play dead.
        """
        self._requests += 1
        if self._requests > CALM_REQUESTS:
            if self._random.randrange(self._one_in) == 0:
                log.info("simulating a crash")
                raise SimulatedCrash
            if self._random.randrange(self._one_in) == 0:
                log.info("simulating CPU overload")
                await asyncio.sleep(self._overload_s)
        reply = self._handler(body)
        return await reply if inspect.isawaitable(reply) else reply
