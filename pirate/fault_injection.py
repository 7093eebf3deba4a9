"""Handler with simulated failures, to test a system of pirates. Used only on request.

After the first few requests each one may crash the worker (without a message) or take very long.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from core.rpc.running_handlers import call
from pirate.errors import SimulatedCrash

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

__all__ = ["Mishaps"]

log = logging.getLogger(__name__)

CALM_REQUESTS: Final = 3  # without failures at the beginning


class Mishaps:
    """Handler that fails at random.

    Args:
        handler: answers the other requests.
        random: source of randomness.
        one_in: one request in this many crashes, and one in this many is slow.
        overload_s: additional seconds of a slow request.
    """

    def __init__(self, handler: Callable[[list[bytes]], Any], random: Random, *, one_in: int = 5, overload_s: float = 3.0) -> None:
        self._handler = handler
        self._random = random
        self._one_in = one_in
        self._overload_s = overload_s
        self._requests = 0

    async def __call__(self, body: list[bytes]) -> Any:
        """Handle a request, or fail; raises SimulatedCrash: by chance."""
        self._requests += 1
        if self._requests > CALM_REQUESTS:
            if self._random.randrange(self._one_in) == 0:
                log.info("simulating a crash")
                raise SimulatedCrash
            if self._random.randrange(self._one_in) == 0:
                log.info("simulating CPU overload")
                await asyncio.sleep(self._overload_s)
        return await call(self._handler, body)
