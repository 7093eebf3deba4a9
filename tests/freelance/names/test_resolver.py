"""freelance.names.resolver and freelance.names.server over sockets: pools, leases, watches, `name://` in core and mdp."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

import core
import freelance
import mdp
from freelance.names.catalog import CatalogLimits
from freelance.names.resolver import Names
from freelance.names.server import NameServer
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

ANY = "tcp://127.0.0.1:*"
NOBODY = "tcp://127.0.0.1:9"


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


@pytest.fixture
async def server(stack: AsyncExitStack) -> NameServer:
    return await stack.enter_async_context(NameServer(ANY))


async def asking(stack: AsyncExitStack, *servers: str, environment: str = "test", wait: float = 10.0) -> Names:
    return await stack.enter_async_context(Names(servers, environment=environment, timeout=100, wait=wait))


async def pool(stack: AsyncExitStack, folder: Path, size: int = 3) -> list[NameServer]:
    ends = [f"ipc://{folder / str(n)}" for n in range(size)]
    made = [NameServer(end, peers=[other for other in ends if other != end], sync_s=0.05) for end in ends]
    await asyncio.gather(*(stack.enter_async_context(one) for one in made))
    return made


async def test_nam_01_set_get_names_drop(stack: AsyncExitStack, server: NameServer) -> None:
    names = await asking(stack, server.identity)
    assert await names.get("shop") == await names.get("bank")
    await names.set("shop", bind=["tcp://*:1", "tcp://*:2"], connect=["tcp://a:1"])
    await names.set("bank", connect=["tcp://b:1"], ttl=60)
    listing = await names.get("shop")
    assert (listing.bind, listing.connect, listing.ttl_s) == (("tcp://*:1", "tcp://*:2"), ("tcp://a:1",), None)
    assert 0 < ((await names.get("bank")).ttl_s or 0) <= 60
    assert await names.names() == ["bank", "shop"]
    elsewhere = await asking(stack, server.identity, environment="production")
    assert await elsewhere.names() == []
    assert await names.drop("shop", connect=["tcp://a:1"])
    assert not await names.drop("shop", connect=["tcp://a:1"])


async def test_names_of_many_pages(stack: AsyncExitStack, server: NameServer) -> None:
    for n in range(1100):
        server.put("test", f"shop-{n:04}", connect=["tcp://a:1"])
    names = await asking(stack, server.identity)
    assert await names.names() == [f"shop-{n:04}" for n in range(1100)]


async def test_refusals_are_typed(stack: AsyncExitStack) -> None:
    small = await stack.enter_async_context(NameServer(ANY, limits=CatalogLimits(names_max=1)))
    names = await asking(stack, small.identity)
    await names.set("shop", connect=["tcp://a:1"])
    with pytest.raises(freelance.NamesRefused) as caught:
        await names.set("bank", connect=["tcp://a:1"])
    assert caught.value.code == 507
    with pytest.raises(freelance.NamesRefused) as caught:
        await names.get("no name")
    assert caught.value.code == 400
    with pytest.raises(freelance.NamesRefused):
        await anext(names.watch("no name"))


async def test_nam_04_watch_tells_changes_and_ends_of_life(stack: AsyncExitStack, server: NameServer) -> None:
    names = await asking(stack, server.identity)
    seen = names.watch("shop")
    assert (await anext(seen)).connect == ()
    change = asyncio.ensure_future(anext(seen))
    await eventually(lambda: server.counters["watch"] == 2)
    await names.set("shop", connect=["tcp://a:1"], ttl=1.0)
    assert (await change).connect == ("tcp://a:1",)
    assert (await anext(seen)).connect == (), "its time was over"
    await seen.aclose()


async def test_nam_04_a_watch_goes_on_after_its_wait_and_another_server(stack: AsyncExitStack, tmp_path: Path) -> None:
    async with NameServer(f"ipc://{tmp_path / 's'}") as first:
        names = await asking(stack, first.identity, wait=0.02)
        seen = names.watch("shop")
        await anext(seen)
        change = asyncio.ensure_future(anext(seen))
        await eventually(lambda: first.counters["watch"] > 3)
    second = await stack.enter_async_context(NameServer(f"ipc://{tmp_path / 's'}"))
    second.put("test", "shop", connect=["tcp://a:1"])
    assert (await change).connect == ("tcp://a:1",)
    await seen.aclose()


async def test_watchers_beyond_the_limit_are_answered_at_once(stack: AsyncExitStack) -> None:
    server = await stack.enter_async_context(NameServer(ANY, watchers_max=0))
    names = await asking(stack, server.identity)
    seen = names.watch("shop")
    await anext(seen)
    change = asyncio.ensure_future(anext(seen))
    await eventually(lambda: server.counters["watch_overflow"] == 1)
    await names.set("shop", connect=["tcp://a:1"])
    assert (await change).connect == ("tcp://a:1",)
    await seen.aclose()


async def test_nam_02_a_lease_lives_as_long_as_its_block(stack: AsyncExitStack, server: NameServer) -> None:
    names = await asking(stack, server.identity)
    async with names.lease("shop", bind=["tcp://*:1"], connect=["tcp://a:1"], ttl=1.2):
        await eventually(lambda: server.counters["set"] >= 8)
        assert (await names.get("shop")).connect == ("tcp://a:1",)
    assert (await names.get("shop")).connect == ()
    with pytest.raises(ZeroDivisionError):
        async with names.lease("shop", connect=["tcp://a:1"]):
            _ = 1 // 0
    assert (await names.get("shop")).connect == ()


@pytest.mark.parametrize("end", [core.Context.term, core.Context.destroy])
async def test_blocks_of_names_whose_context_ends_are_left_without_an_error(
    stack: AsyncExitStack, server: NameServer, end: Callable[[core.Context], None]
) -> None:
    context = await stack.enter_async_context(core.Context())
    names = await stack.enter_async_context(Names([server.identity], environment="test", timeout=100, context=context))
    await names.set("shop", connect=["tcp://127.0.0.1:9"])
    target = (await stack.enter_async_context(core.Context())).socket(core.DEALER, linger=0)
    async with names.lease("bank", connect=["tcp://b:1"], ttl=0.03), names.follow(target, "shop"):
        changes = names.watch("shop")
        assert (await anext(changes)).connect == ("tcp://127.0.0.1:9",)
        waiting = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        end(context)
        with pytest.raises(freelance.ClientClosed):
            await waiting
        with pytest.raises(freelance.ClientClosed):
            await names.get("shop")
        await eventually(lambda: names.counters["lease_away"])


async def test_nam_06_a_record_at_one_server_of_a_pool_reaches_all(stack: AsyncExitStack, tmp_path: Path) -> None:
    one, two, three = await pool(stack, tmp_path)
    await (await asking(stack, one.identity)).set("shop", connect=["tcp://a:1"])
    for other in (two, three):
        seen_by = await asking(stack, other.identity)
        seen = seen_by.watch("shop")
        async for listing in seen:
            if listing.connect == ("tcp://a:1",):
                break
        await seen.aclose()
    names = await asking(stack, two.identity)
    await names.drop("shop", connect=["tcp://a:1"])
    await eventually(lambda: one.registry.catalog.listing("test", "shop", 0) == [])


async def test_nam_06_a_server_that_was_away_catches_up_before_it_answers(stack: AsyncExitStack, tmp_path: Path) -> None:
    ends = [f"ipc://{tmp_path / name}" for name in "ab"]
    one = await stack.enter_async_context(NameServer(ends[0], peers=[ends[1]], sync_s=0.05))
    for n in range(1200):
        one.put("test", f"shop-{n}", connect=["tcp://a:1"])
    two = await stack.enter_async_context(NameServer(ends[1], peers=[ends[0]], sync_s=0.05))
    names = await asking(stack, ends[1])
    assert len(await names.names()) == 1200
    await eventually(lambda: one.registry.catalog.state() == two.registry.catalog.state())


async def test_nam_06_a_server_asks_its_peers_before_it_says_that_there_is_no_such_name(stack: AsyncExitStack, server: NameServer) -> None:
    """The other one does not send it the change, and no comparison is due."""
    other = await stack.enter_async_context(NameServer(ANY, peers=[server.identity], sync_s=1000))
    names = await asking(stack, other.identity)
    assert await names.names() == []
    await (await asking(stack, server.identity)).set("shop", connect=["tcp://a:1"])
    assert (await names.get("shop")).connect == ("tcp://a:1",)
    assert await names.names() == ["shop"]
    assert (await names.get("bank")).connect == ()


async def test_nam_06_a_change_is_answered_when_peers_have_it_and_one_that_does_not_answer_is_waited_for_once(
    stack: AsyncExitStack,
) -> None:
    asked, may_answer = list[bytes](), asyncio.Event()

    async def peer(body: list[bytes]) -> list[bytes]:
        asked.append(body[0])
        if body[0] == b"STATE":
            return [b"200", bytes(32)]
        if body[0] == b"MERGE":
            await may_answer.wait()
        return [b"200"]

    slow = await stack.enter_async_context(freelance.Server(ANY, peer))
    server = await stack.enter_async_context(NameServer(ANY, peers=[slow.identity]))
    names = await asking(stack, server.identity)
    assert (await names.get("shop")).connect == ()
    change = asyncio.create_task(names.set("shop", connect=["tcp://a:1"]))
    await eventually(lambda: b"MERGE" in asked)
    assert not change.done()
    may_answer.set()
    await change
    may_answer.clear()
    await names.set("shop", connect=["tcp://b:1"])
    compared = asked.count(b"STATE")
    for number in range(20):
        await names.set("shop", connect=[f"tcp://c:{number + 1}"])
        assert (await names.get("bank")).connect == ()
    assert asked.count(b"STATE") < compared + 10


async def test_nam_06_a_new_server_asks_its_peers_which_may_not_have_noticed_it_yet(stack: AsyncExitStack) -> None:
    one = await stack.enter_async_context(NameServer(ANY))  # it tells no peer of its changes
    old = await asking(stack, one.identity)
    await old.set("shop", bind=["tcp://*:5555"])
    two = await stack.enter_async_context(NameServer(ANY, peers=[one.identity], sync_s=1000.0))
    new = await asking(stack, two.identity)
    assert (await new.get("shop")).bind == ("tcp://*:5555",)
    await old.set("shop", connect=["ipc://shop"])
    assert (await new.get("shop")).connect == ("ipc://shop",)


async def test_nam_06_however_many_clients_ask_for_what_is_unknown_a_peer_is_asked_once_at_a_time(stack: AsyncExitStack) -> None:
    running = most = asked = 0

    async def peer(body: list[bytes]) -> list[bytes]:
        nonlocal running, most, asked
        if body[0] == b"STATE":
            running, asked = running + 1, asked + 1
            most = max(most, running)
            await asyncio.sleep(0.01)  # it takes a while
            running -= 1
            return [b"200", bytes(32)]
        return [b"200"]

    slow = await stack.enter_async_context(freelance.Server(ANY, peer))
    server = await stack.enter_async_context(NameServer(ANY, peers=[slow.identity]))
    names = await asking(stack, server.identity)
    assert (await names.get("shop")).connect == ()
    before = asked
    listings = await asyncio.gather(*(names.get(f"shop{number}") for number in range(200)))
    assert {listing.connect for listing in listings} == {()}
    assert asked > before
    assert most <= 2  # with the comparison that comes now and then


async def test_nam_06_clients_go_on_when_a_server_of_the_pool_dies(stack: AsyncExitStack, tmp_path: Path) -> None:
    ends = [f"ipc://{tmp_path / name}" for name in "ab"]
    two = await stack.enter_async_context(NameServer(ends[1], peers=[ends[0]], sync_s=0.05))
    async with NameServer(ends[0], peers=[ends[1]], sync_s=0.05) as one:
        names = await asking(stack, *ends)
        await names.set("shop", connect=["tcp://a:1"])
        await eventually(lambda: one.registry.catalog.state() == two.registry.catalog.state())
    assert (await names.get("shop")).connect == ("tcp://a:1",)


async def test_nam_07_core_connects_to_a_name(stack: AsyncExitStack, server: NameServer) -> None:
    names = await asking(stack, server.identity)
    context = await stack.enter_async_context(core.Context(resolver=names.resolve))
    dealer = context.socket(core.DEALER, linger=0, reconnect_ivl=5, rcvtimeo=60_000)
    dealer.connect("name://shop")
    await dealer.send(b"hello")
    await eventually(lambda: names.counters["looked_up"] > 1)
    first = context.socket(core.ROUTER, linger=0, rcvtimeo=60_000)
    first.bind(ANY)
    await names.set("shop", connect=[first.last_endpoint])
    assert (await first.recv_multipart())[1:] == [b"hello"]
    second = context.socket(core.ROUTER, linger=0, rcvtimeo=60_000)
    second.bind(ANY)
    await names.set("shop", connect=[second.last_endpoint])
    await names.drop("shop", connect=[first.last_endpoint])
    watch = Watch(dealer)
    first.close()
    await watch.lost()
    await dealer.send(b"again")
    assert (await second.recv_multipart())[1:] == [b"again"], "where the name leads to now"


async def test_nam_07_mdp_clients_and_workers_connect_to_a_name(stack: AsyncExitStack, server: NameServer) -> None:
    names = await asking(stack, server.identity)
    broker = await stack.enter_async_context(mdp.Broker())
    await names.set("broker", connect=[broker.bind(ANY)])
    context = await stack.enter_async_context(core.Context(resolver=names.resolve))

    async def echo(request: mdp.Request) -> list[bytes]:
        return request.body

    await stack.enter_async_context(mdp.Worker("name://broker", "echo", handler=echo, context=context))
    client = await stack.enter_async_context(mdp.Client("name://broker", context=context, timeout=100))
    assert await client.request("echo", b"x") == [b"x"]


async def test_nam_07_freelance_clients_connect_to_a_name(stack: AsyncExitStack, server: NameServer) -> None:
    names = await asking(stack, server.identity)
    shop = await stack.enter_async_context(freelance.Server(ANY, lambda body: body))
    await names.set("shop", connect=[shop.identity])
    context = await stack.enter_async_context(core.Context(resolver=names.resolve))
    client = await stack.enter_async_context(freelance.Client(["name://shop"], context=context, timeout=100))
    assert await client.request(b"x") == [b"x"]


async def test_resolve_rotates_and_uses_the_old_listing_when_no_server_answers(stack: AsyncExitStack) -> None:
    async with NameServer(ANY) as server:
        names = await stack.enter_async_context(Names([server.identity], environment="test", timeout=1.5))
        server.put("test", "shop", connect=["tcp://a:1", "tcp://b:1"])
        assert [await names.resolve("shop") for _ in range(4)] == ["tcp://a:1", "tcp://b:1"] * 2
        assert names.counters["looked_up"] == 1
        await names.set("brief", connect=["tcp://a:1"], ttl=1.0)
        assert await names.resolve("brief") == "tcp://a:1"
    await eventually(lambda: asyncio.get_running_loop().time() >= names._known["brief"].fresh_until)
    assert await names.resolve("brief") == "tcp://a:1"
    assert names.counters["stale"] == 1
    with pytest.raises(core.EndpointNotFound):
        await names.resolve("never")


async def test_sockets_that_reconnect_together_wait_for_silent_name_servers_together(
    stack: AsyncExitStack, server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = await asking(stack, server.identity)
    asked = 0

    async def silent(name: str) -> freelance.Listing:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        raise freelance.NoServer(after_s=0.01, attempts=1)

    monkeypatch.setattr(names, "get", silent)
    found = await asyncio.gather(*(names.resolve("shop") for _ in range(100)), return_exceptions=True)
    assert {type(one) for one in found} == {core.EndpointNotFound}
    assert asked <= 2
    assert names.counters["unresolved"] == 100
