"""Submits while no store answers: each ends within its own time, however many there are."""

from __future__ import annotations

import asyncio

import mdp
import titanic

MANY = 200


async def test_submits_that_wait_for_a_store_ask_for_it_together() -> None:
    async with mdp.Broker() as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        async with titanic.Client(at, timeout=0.2, attempts=1) as store:
            asked = await asyncio.gather(*(store.submit("echo", b"x", key=f"{n}") for n in range(MANY)), return_exceptions=True)
            assert {type(one) for one in asked} == {mdp.Timeout}
            assert broker.counters["accepted"] <= 2  # one while they came, one for all the others
