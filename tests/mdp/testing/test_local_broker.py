"""mdp.testing: a broker, workers and a client in a test, and the faults it can cause."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

import mdp
import mdp.testing
from tests.scenes.fault_injection import sabotaged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Literal


@mdp.service("double", concurrency=2)
async def double(request: mdp.Request) -> list[bytes]:
    return [*request.body, *request.body]


def loud(request: mdp.Request) -> bytes:
    return request.body[0].upper()


@pytest.fixture
async def shop() -> AsyncIterator[mdp.testing.Local]:
    """Return it as a program's own fixture would."""
    async with mdp.testing.broker(double, services={"loud": loud}) as local:
        yield local


async def test_everything_is_ready_when_the_block_begins(shop: mdp.testing.Local) -> None:
    assert await shop.client.request("double", b"x") == [b"x", b"x"]
    assert await shop.client.request("loud", b"x") == [b"X"]
    assert [worker.service for worker in shop.workers] == ["double", "loud"]
    assert shop.broker.stats["workers"] == 2
    assert shop.workers[0].options.concurrency == 2


@pytest.mark.parametrize("transport", ["inproc", "tcp"])
async def test_both_transports_serve(transport: Literal["inproc", "tcp"]) -> None:
    async with mdp.testing.broker(double, transport=transport) as local:
        assert local.endpoint.startswith(f"{transport}://")
        assert await local.client.request("double", b"x") == [b"x", b"x"]


async def test_tcp_is_reached_from_other_contexts() -> None:
    async with mdp.testing.broker(double, transport="tcp") as local, mdp.Client(local.endpoint) as other:
        assert await other.request("double", b"x") == [b"x", b"x"]


async def test_two_test_brokers_are_independent(shop: mdp.testing.Local) -> None:
    async with mdp.testing.broker() as empty:
        with pytest.raises(mdp.NoService):
            await empty.client.request("double", b"x")
        assert await shop.client.request("double", b"x") == [b"x", b"x"]


async def test_limits_are_the_brokers() -> None:
    async with mdp.testing.broker(manage=True) as local:
        assert await local.client.mmi("enable", "nobody") == "404"
    with pytest.raises(TypeError, match="no_such_limit"):
        async with mdp.testing.broker(no_such_limit=1):  # type: ignore[call-arg]
            pass


async def test_more_workers_and_clients_can_be_added(shop: mdp.testing.Local) -> None:
    second = await shop.add_worker(double, concurrency=1)
    named = await shop.add_worker("shout", loud)
    assert shop.workers[2:] == [second, named]
    assert shop.broker.stats["workers"] == 4
    client = await shop.add_client(timeout=1.0)
    assert await client.request("shout", b"x") == [b"X"]


async def test_a_request_left_open_ends_with_the_block() -> None:
    cancelled = asyncio.Event()

    async def hangs(request: mdp.Request) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return b""

    async with mdp.testing.broker(services={"hangs": hangs}) as local:
        reply = local.client.request("hangs", b"x")
        while not local.workers[0].running:
            await asyncio.sleep(0)
    assert cancelled.is_set()
    assert isinstance(reply.exception(), mdp.ClientClosed)


async def test_a_handler_without_a_name_is_refused_and_nothing_is_left() -> None:
    with pytest.raises(TypeError, match="a handler without a service"):
        async with mdp.testing.broker(loud):
            pass


# ---------------------------------------------------------------------------------------------------------------- apps


APP = mdp.App()


@APP.lifespan
async def counting(app: mdp.App) -> AsyncIterator[list[str]]:
    ended: list[str] = []
    yield ended
    ended.append("left")


@APP.service("add")
async def add(left: int, right: int) -> int:
    return left + right


async def test_an_app_is_served_with_its_lifespan() -> None:
    async with mdp.testing.broker(APP, double) as local:
        resources: list[str] = APP.state
        assert await local.client.call("add", 1, 2, result=int) == 3
        assert [worker.service for worker in local.workers] == ["add", "double"]
        assert resources == []
    assert resources == ["left"]
    assert APP.state is None


async def test_a_module_is_served_and_one_without_handlers_refused() -> None:
    async with mdp.testing.broker(sys.modules[__name__]) as local:
        assert await local.client.request("double", b"x") == [b"x", b"x"]
        with pytest.raises(TypeError, match="json decorates nothing"):
            await local.add_app(__import__("json"))


# --------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("silent", [False, True])
def test_the_requests_of_a_lost_worker_go_to_another(silent: bool) -> None:
    begun: list[str] = []
    ended: list[str] = []

    def handler(name: str, take_s: float) -> object:
        async def work(request: mdp.Request) -> bytes:
            begun.append(name)
            try:
                await asyncio.sleep(take_s)
            finally:
                ended.append(name)
            return name.encode()

        return work

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        async with mdp.testing.broker() as local:
            first = await local.add_worker("work", handler("first", 60.0))  # type: ignore[arg-type]
            reply = local.client.request("work", b"x", timeout=100.0)
            while not begun:
                await asyncio.sleep(0.01)
            await local.add_worker("work", handler("second", 0.0))  # type: ignore[arg-type]
            at = clock()
            assert await local.lose_worker("work", silent=silent) is first
            assert ended == ["first"], "its handler was cancelled"
            if silent:
                assert local.broker.stats["workers"] == 2, "the broker was told nothing"
            assert await reply == [b"second"]
            assert (5.0 < clock() - at < 10.0) is silent, "2.5 s times 3, by default"
            assert local.broker.stats["workers"] == len(local.workers) == 1
            with pytest.raises(LookupError, match="there is no worker 'none'; there are work"):
                await local.lose_worker("none")

    mdp.testing.run(main())
    assert begun == ["first", "second"]


async def test_a_lost_worker_can_have_nothing_to_do_and_is_chosen_itself(shop: mdp.testing.Local) -> None:
    second = await shop.add_worker(double)
    assert await shop.lose_worker(second) is second
    with pytest.raises(LookupError, match="there are double, loud"):
        await shop.lose_worker(second)
    assert await shop.client.request("loud", b"x") == [b"X"]


def test_delayed_requests_arrive_late_in_their_order_and_cancelled_ones_not_at_all() -> None:
    served: list[tuple[float, bytes]] = []

    async def main() -> None:
        clock = asyncio.get_running_loop().time

        async def note(request: mdp.Request) -> bytes:
            served.append((round(clock() - begun, 1), request.body[0]))
            return request.body[0]

        async with mdp.testing.broker(services={"note": note, "other": note}) as local:
            begun = clock()
            local.delay("note", 20.0)
            with pytest.raises(mdp.DeadlineExceeded):
                await local.client.request("note", b"late", deadline=5.0)
            assert await local.client.request("other", b"other") == [b"other"]
            slow = local.client.request("note", b"slow", timeout=60.0)
            await asyncio.sleep(1.0)
            local.delay("note", 0.0)
            fast = local.client.request("note", b"fast", timeout=60.0)
            assert [await slow, await fast] == [[b"slow"], [b"fast"]]
            assert round(clock() - begun) == 25

    mdp.testing.run(main())
    assert served == [(5.0, b"other"), (25.0, b"slow"), (25.0, b"fast")]


@pytest.mark.faults
async def test_delayed_requests_arrive_after_a_fault_of_their_timer() -> None:
    with sabotaged("mdp testing delay") as supervisor:
        async with mdp.testing.broker(double) as local:
            local.delay("double", 0.001)
            assert await local.client.request("double", b"x") == [b"x", b"x"]
        assert supervisor.faults


async def test_losing_one_service_of_an_app_loses_no_other() -> None:
    app = mdp.App()
    for name in ("lost", "kept"):

        @app.service(name)
        async def handler(request: mdp.Request) -> bytes:
            return request.service.encode()

    async with mdp.testing.broker(app) as local:
        await local.lose_worker("lost")
        assert await local.client.request("kept", b"x") == [b"kept"]
        with pytest.raises(mdp.NoService):
            await local.client.request("lost", b"x")
