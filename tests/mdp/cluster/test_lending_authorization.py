"""Rules and peers that lend each other workers.

A borrowed worker has no peer of its own, and new rules keep it.
"""

from __future__ import annotations

import asyncio

import core
import mdp
from mdp.cluster.lending_broker import LendingBroker
from tests.scenes.mdp_handlers import echo

PASSWORDS = {"desk": "d", "east": "e", "web": "w"}
OF_LENDER = {"allow": [{"who": ["desk"], "serve": ["echo"]}, {"who": ["east"], "call": ["echo", "mmi.lending"]}]}
OF_BORROWER = {"allow": [{"who": ["web"], "call": ["echo"]}]}


class East(core.Plain):
    """Lets clients in, and goes to its peer under its own name."""

    def __init__(self) -> None:
        super().__init__(user="east", password=PASSWORDS["east"], users=PASSWORDS)


async def test_a_request_goes_over_a_lender_with_rules_and_survives_new_ones() -> None:
    async with mdp.Broker(security=core.Plain(users=PASSWORDS), rules=mdp.Rules(OF_LENDER)) as west:
        where = west.bind("tcp://127.0.0.1:*")
        async with (
            mdp.Worker(where, "echo", handler=echo, security=core.Plain(user="desk", password="d")) as worker,
            LendingBroker([where], state_ms=50, security=East(), rules=mdp.Rules(OF_BORROWER)) as east,
        ):
            while not worker.connected:
                await asyncio.sleep(0.005)
            async with mdp.Client(east.bind("tcp://127.0.0.1:*"), security=core.Plain(user="web", password="w")) as client:
                assert await client.request("echo", b"one", wait=True) == [b"one"]
                east.set_rules(mdp.Rules(OF_BORROWER))
                assert east.stats["workers"] == 1
                assert await client.request("echo", b"two", wait=True) == [b"two"]
            assert west.counters["forbidden_mmi"] == west.counters["error_forbidden"] == 0
