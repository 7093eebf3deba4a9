"""core.rpc.drained: the time for which each caller waits."""

from __future__ import annotations

import asyncio

from core.rpc.drained import Drained
from tests.scenes.virtual_loop import in_virtual_time


@in_virtual_time
async def test_each_caller_waits_until_nothing_is_open_or_its_own_time_is_over() -> None:
    began = asyncio.get_running_loop().time()
    open_requests = {1, 2}
    drained = Drained(lambda: not open_requests)
    waits = [asyncio.ensure_future(drained.wait(time_s)) for time_s in (0.0, 1.0, 3600.0, 3600.0)]
    await asyncio.sleep(2.0)
    assert [wait.done() for wait in waits] == [True, True, False, False]
    waits[3].cancel()
    await asyncio.wait([waits[3]])
    open_requests.discard(1)
    drained.look()
    await asyncio.sleep(0)
    assert drained.awaited
    assert not waits[2].done()
    open_requests.discard(2)
    drained.look()
    assert await asyncio.gather(*waits[:3]) == [False, False, True]
    assert asyncio.get_running_loop().time() - began == 2.0


async def test_a_new_wait_begins_where_requests_came_after_the_last_one() -> None:
    open_requests = {1}
    drained = Drained(lambda: not open_requests)
    assert not drained.awaited
    for number in range(3):
        wait = asyncio.ensure_future(drained.wait(3600.0))
        await asyncio.sleep(0)
        open_requests.clear()
        drained.look()
        assert (await wait, drained.awaited) == (True, False), number
        assert await drained.wait(0.0)  # nobody waits
        assert not drained.awaited
        open_requests.add(number)
    open_requests.clear()
    assert await drained.wait(0.0)
    assert not drained.awaited
