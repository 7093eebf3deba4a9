"""Requests with a key after their client has left, over sockets."""

from __future__ import annotations

import asyncio

import mdp.testing
from tests.scenes.waiting import eventually


class Slow:
    """A handler that answers once its gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun: list[bytes] = []

    async def execute(self, request: mdp.Request) -> list[bytes]:
        self.begun.append(request.body[0])
        await self.gate.wait()
        return [b"done", request.body[0]]


def ignore() -> None: ...


async def test_what_no_worker_has_begun_is_withdrawn_when_its_client_leaves() -> None:
    """Two run, six wait at the worker, others at the broker: two are executed, and their replies kept."""
    slow = Slow()
    async with mdp.testing.broker() as local:
        async with mdp.Worker(local.endpoint, "slow", handler=slow.execute, concurrency=2, credit=8, context=local.context):
            counters = local.broker.machine.counters
            client = await local.add_client()
            window = client.open_window("slow", ignore, wait=True)
            window.send([b"%d" % number for number in range(30)], [f"key-{number}" for number in range(30)])
            await eventually(lambda: counters.accepted == 30 and len(slow.begun) == 2)
            await client.close()
            await eventually(lambda: counters.as_dict()["returned"] == 6)
            slow.gate.set()
            await eventually(lambda: counters.as_dict()["replies_kept"] == 2)
            # Another client gets the replies that are there, and what was withdrawn is a new request.
            assert await local.client.request("slow", b"1", key="key-1") == [b"done", b"1"]
            assert slow.begun == [b"0", b"1"]
            assert await local.client.request("slow", b"7", key="key-7") == [b"done", b"7"]
            assert slow.begun == [b"0", b"1", b"7"]


async def test_a_recalled_request_is_given_again_if_a_client_has_asked_for_it_meanwhile() -> None:
    slow = Slow()
    async with mdp.testing.broker() as local:
        async with mdp.Worker(local.endpoint, "slow", handler=slow.execute, concurrency=1, credit=4, context=local.context):
            counters = local.broker.machine.counters
            client = await local.add_client()
            client.open_window("slow", ignore, wait=True).send([b"0", b"1", b"2"], ["key-0", "key-1", "key-2"])
            await eventually(lambda: counters.accepted == 3 and len(slow.begun) == 1)
            asked = asyncio.gather(
                client.close(),
                local.client.request("slow", b"1", key="key-1"),
                local.client.request("slow", b"2", key="key-2"),
            )
            await eventually(lambda: counters.as_dict()["recalled"] >= 1)
            slow.gate.set()
            _, one, two = await asked
            assert (one, two) == ([b"done", b"1"], [b"done", b"2"])
            assert sorted(slow.begun) == [b"0", b"1", b"2"]
