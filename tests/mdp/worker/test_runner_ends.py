"""A program that ends with an error while requests are on their way.

The runner of its loop cancels them from outside the loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import mdp
from tests.conftest import LOOP_FACTORIES

if TYPE_CHECKING:
    from collections.abc import Callable


class OwnError(Exception):
    """Exit of the program."""


@pytest.mark.parametrize("factory", LOOP_FACTORIES.values(), ids=LOOP_FACTORIES)
@pytest.mark.parametrize("answered", [False, True])
def test_it_ends_with_its_own_error_and_its_blocks_are_left(factory: Callable[[], asyncio.AbstractEventLoop], answered: bool) -> None:
    left: list[str] = []
    unhandled: list[dict[str, object]] = []

    async def ask(where: str, asked: asyncio.Event) -> None:
        try:
            async with mdp.Client(where, attempts=1, timeout=100) as client:
                if answered:
                    assert await client.mmi("protocol", "0.3") == "200"
                request = client.request("nobody", b"x", wait=True)
                asked.set()
                await request
        finally:
            left.append("client")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        asked = asyncio.Event()
        async with mdp.Broker() as broker:
            asking = asyncio.get_running_loop().create_task(ask(broker.bind("tcp://127.0.0.1:*"), asked))
            await asked.wait()
            assert not asking.done()
            raise OwnError

    with pytest.raises(OwnError), asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
    assert left == ["client"]
    assert unhandled == []
