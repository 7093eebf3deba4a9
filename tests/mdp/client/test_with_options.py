"""`with_options`: a client whose requests have other options, with the connection of the first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator  # noqa: TC003  # annotations of services are needed at run time
from typing import TYPE_CHECKING, Any

import pytest

import mdp
import mdp.testing
from tests.scenes.mdp_handlers import echo

if TYPE_CHECKING:
    from mdp.request import Request


async def options(request: Request) -> list[bytes]:
    headers = ",".join(f"{name}={value}" for name, value in request.headers.items())
    left_s = 0.0 if request.expires_at is None else request.left_s(asyncio.get_running_loop().time())
    return [request.key or b"", str(request.once).encode(), headers.encode(), b"" if not left_s else b"%d" % left_s]


@mdp.service("key")
async def key(request: mdp.Request, text: str) -> str:
    return text + (request.key or b"").decode()


@mdp.service("keys")
async def keys(times: int, *, request: mdp.Request) -> AsyncIterator[str]:
    for _ in range(times):
        yield (request.key or b"").decode()


async def test_requests_have_the_options_of_the_view() -> None:
    async with mdp.testing.broker(services={"options": options}) as local:
        client = local.client
        view = client.with_options(key="order-17", once=True, deadline=1000.5, headers={"a": "1", "b": "2"})
        assert await view.request("options") == [b"order-17", b"True", b"a=1,b=2", b"1000"]
        assert await view.request("options") == [b"order-17", b"True", b"a=1,b=2", b"1000"]
        assert await client.request("options") == [b"", b"False", b"", b""]


async def test_a_request_may_set_its_own() -> None:
    async with mdp.testing.broker(services={"options": options}) as local:
        view = local.client.with_options(key="order-17", once=True, deadline=1000.5, headers={"a": "1", "b": "2"})
        own = await view.request("options", key="order-18", once=False, deadline=2000.5, headers={"b": "3", "c": "4"})
        assert own == [b"order-18", b"False", b"a=1,b=3,c=4", b"2000"]
        assert await view.request("options", key="order-19") == [b"order-19", b"True", b"a=1,b=2", b"1000"]
        again = view.with_options(once=False, headers={"d": "5"})
        assert await again.request("options", key="order-20") == [b"order-20", b"False", b"a=1,b=2,d=5", b"1000"]


async def test_timeouts_and_attempts_too() -> None:
    async with mdp.testing.broker() as local:
        await local.client.mmi("protocol")  # there is a connection
        view = local.client.with_options(timeout=0.01, attempts=2, wait=True)
        with pytest.raises(mdp.Timeout) as caught:
            await view.request("absent")
        assert caught.value.attempts == 2
        with pytest.raises(mdp.NoService):
            await view.request("absent", wait=False)
        with pytest.raises(mdp.NoService):
            await local.client.request("absent")


async def test_each_request_of_a_map_has_a_key_of_its_own() -> None:
    async with mdp.testing.broker(services={"options": options}) as local:
        view = local.client.with_options(key="job")
        outcomes = [outcome.reply async for outcome in view.map("options", [b"x"] * 3)]
        assert [reply[0] for reply in outcomes if reply] == [b"job-0", b"job-1", b"job-2"]
        own = [outcome.reply async for outcome in view.map("options", [b"x"] * 2, key=lambda index: f"mine-{index}")]
        assert [reply[0] for reply in own if reply] == [b"mine-0", b"mine-1"]


async def test_streams_calls_and_stubs() -> None:
    async with mdp.testing.broker(key, keys) as local:
        view = local.client.with_options(key="order-17")
        assert await view.call("key", "of ", result=str) == "of order-17"
        assert [value async for value in view.call_stream("keys", 2, result=str)] == ["order-17", "order-17"]
        assert await view.stub(key)("of ") == "of order-17"
        other = view.stub(key, options={"key": "order-18"})
        assert await other("at ") == "at order-18"


async def test_a_window_has_the_options_without_the_key() -> None:
    ended = asyncio.Event()
    async with mdp.testing.broker(services={"options": options}) as local:
        view = local.client.with_options(key="order-17", headers={"a": "1"})
        window = view.open_window("options", ended.set)
        window.send([b"x"])
        await ended.wait()
        assert [outcome.reply for outcome in window.take()] == [[b"", b"False", b"a=1", b""]]


async def test_it_is_the_same_connection_and_the_same_end() -> None:
    async with mdp.testing.broker(services={"echo": echo}) as local:
        view = local.client.with_options(wait=True)
        assert await view.request("echo", b"x") == [b"x"]
        assert (view.connected, view.connections, local.client.connections) == (True, 1, 1)
        assert view.counters is local.client.counters
        await view.close()
        with pytest.raises(mdp.ClientClosed):
            local.client.request("echo", b"x")


@pytest.mark.parametrize(
    "wrong", [{"timeout": 0}, {"attempts": 0}, {"key": ""}, {"deadline": -1}, {"headers": {"": ""}}, {"headers": {"a": 1}}, {"dedline": 1}]
)
async def test_wrong_options_are_refused_at_once(wrong: dict[str, Any]) -> None:
    async with mdp.testing.broker() as local:
        with pytest.raises((TypeError, ValueError)):
            local.client.with_options(**wrong)


async def test_a_client_of_one_purpose_can_be_entered_as_such() -> None:
    async with (
        mdp.testing.broker(services={"echo": echo}) as local,
        mdp.Client(local.endpoint, context=local.context).with_options(wait=True) as client,
    ):
        assert await client.request("echo", b"x") == [b"x"]


async def test_many_requests_have_no_common_key() -> None:
    client = mdp.Client("tcp://127.0.0.1:1")
    with pytest.raises(TypeError, match="a key is of one request"):
        client.open_window("echo", lambda: None, key="k")  # type: ignore[call-arg]  # the mistake
    with pytest.raises(TypeError, match=r"^a request has no option colour; there are timeout, .*, progress$"):
        client.request("echo", b"", colour="red")  # type: ignore[call-arg]  # the mistake
    with pytest.raises(TypeError, match=r"^a request has no option dedline; did you mean deadline\?$"):
        client.with_options(dedline=1.0)  # type: ignore[call-arg]  # the mistake
    await client.close()
