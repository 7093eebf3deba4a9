"""A user that may call `titanic.request` only can submit, with options and each request once."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

import core
import mdp
import titanic
from tests.titanic.access.test_verbs import PASSWORDS, RULES, WORKERS, Scene, plain, rules
from titanic.wire import tsp

ALONE = '[[allow]]\nwho = ["bob"]\ncall = ["echo", "titanic.request"]\n'
ONLY_ANN = RULES.replace('who = ["ann", "bob"]', 'who = ["ann"]')


async def test_submits_with_options_and_without() -> None:
    async with Scene(ALONE + ONLY_ANN) as scene:
        first = await scene.submit("bob")
        second = await scene.submit("bob", key="order-1", attempts=3, ttl=60.0)
        assert await scene.submit("bob", key="order-1", attempts=3, ttl=60.0) == second
        assert {row["uuid"].encode() for row in await scene.rows("root")} == {first, second}


async def test_what_is_sent_again_would_be_known_by_its_key() -> None:
    async with Scene(ALONE + ONLY_ANN) as scene:
        await scene.submit("bob")
        assert [row["key"] is not None for row in await scene.rows("root")] == [True]


async def test_the_question_is_answered_by_both_services() -> None:
    async with Scene() as scene:
        for service in (tsp.REPLY, tsp.REQUEST):
            assert await scene.ask("ann", service, tsp.EXTENSIONS) == [tsp.OK, b"options", b"headers"]
        assert await scene.rows("root") == []


@pytest.mark.parametrize("closes", [True, False])
async def test_a_stock_store_is_distinguished_from_ours_by_the_request_too(closes: bool) -> None:
    """A stock store may keep the question as a request that can never run: it is closed."""
    stored: dict[bytes, list[bytes]] = {}

    async def store(request: mdp.Request) -> list[bytes]:
        uuid = uuid4().hex.upper().encode()
        stored[uuid] = list(request.body)
        return [b"200", uuid]

    async def close(request: mdp.Request) -> list[bytes]:
        stored.pop(request.body[0], None)
        return [b"200"]

    allowed = '[[allow]]\nwho = ["bob"]\ncall = ["echo", "titanic.request"%s]\n' % (', "titanic.close"' if closes else "")
    async with mdp.Broker(security=core.Plain(users=PASSWORDS), rules=rules(allowed + WORKERS)) as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with (
            mdp.Worker(where, "titanic.request", handler=store, security=plain("desk")),
            mdp.Worker(where, "titanic.close", handler=close, security=plain("desk")),
            titanic.Client(where, security=plain("bob")) as client,
        ):
            await asyncio.gather(client.submit("echo", b"one"), client.submit("echo", b"two"))
            asked = [] if closes else [[tsp.EXTENSIONS]]
            assert sorted(stored.values()) == sorted([*asked, [b"echo", b"one"], [b"echo", b"two"]])
            with pytest.raises(titanic.OptionsNotSupported):
                await client.submit("echo", b"three", key="k")


async def test_a_store_that_has_no_service_for_replies_knows_no_options() -> None:
    """It is not waited for: what is submitted without options needs none."""
    stored: list[list[bytes]] = []

    async def store(request: mdp.Request) -> list[bytes]:
        stored.append(list(request.body))
        return [b"200", uuid4().hex.upper().encode()]

    async with mdp.Broker() as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Worker(where, "titanic.request", handler=store), titanic.Client(where, timeout=20.0, attempts=1) as client:
            await asyncio.gather(client.submit("echo", b"one"), client.submit("echo", b"two"))
            assert sorted(stored) == [[b"echo", b"one"], [b"echo", b"two"]]
            with pytest.raises(titanic.OptionsNotSupported):
                await client.submit("echo", b"three", ttl=5.0)


async def test_a_store_that_comes_later_is_waited_for() -> None:
    async with mdp.Broker() as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with titanic.Client(where, timeout=100) as client:
            submitted = asyncio.ensure_future(client.submit("absent", b"x", key="k"))
            await asyncio.wait([submitted], timeout=0.1)
            async with titanic.Service(where, titanic.Store(None, None)):
                again = await client.submit("absent", b"x", key="k")
                assert (await submitted).uuid == again.uuid
