"""Middleware of clients: before, after, errors and streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import mdp
import mdp.testing
from tests.mdp.client import test_with_options as services
from tests.scenes.mdp_handlers import echo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mdp.client.middleware import ClientCall, ClientCallNext


async def count(request: mdp.Request) -> AsyncIterator[bytes]:
    for n in range(int(request.body[0])):
        yield b"%d" % n


async def refuse(request: mdp.Request) -> bytes:
    raise mdp.HandlerError(code="NOTHING_LEFT", text="nothing is left")


async def tenant(call: ClientCall, call_next: ClientCallNext) -> Any:
    call.headers["tenant"] = "zh"
    return await call_next(call)


async def test_it_is_called_in_its_order_and_sees_reply_and_error() -> None:
    seen: list[str] = []
    async with mdp.testing.broker(services={"echo": echo, "refuse": refuse}) as local:
        client = local.client

        @client.middleware
        async def outer(call: ClientCall, call_next: ClientCallNext) -> Any:
            seen.append(f"> {call.service!s} {call.frames}")
            try:
                reply = await call_next(call)
            except mdp.HandlerError as error:
                seen.append(f"! {error.code}")
                raise
            seen.append(f"< {reply}")
            return [*reply, b"outer"]

        @client.middleware
        async def inner(call: ClientCall, call_next: ClientCallNext) -> Any:
            call.frames = (*call.frames, b"inner")
            return await call_next(call)

        assert await client.request("echo", b"a") == [b"a", b"inner", b"outer"]
        with pytest.raises(mdp.HandlerError, match="nothing is left"):
            await client.request("refuse", b"b")
    assert seen == ["> echo (b'a',)", "< [b'a', b'inner']", "> refuse (b'b',)", "! NOTHING_LEFT"]


async def test_what_it_changes_is_sent_with_every_kind_of_request() -> None:
    async with mdp.testing.broker(services.key, services.keys, services={"options": services.options}) as local:
        client = local.client
        client.middleware(tenant)

        @client.middleware
        async def keyed(call: ClientCall, call_next: ClientCallNext) -> Any:
            call.options["key"] = f"{call.service!s}-{call.options.get('key') or 'none'!s}"
            return await call_next(call)

        view = client.with_options(key="order-17", headers={"a": "1"})
        assert await view.request("options") == [b"options-order-17", b"False", b"a=1,tenant=zh", b""]
        assert [part async for part in view.stream("options", key="s")] == [[b"options-s", b"False", b"a=1,tenant=zh", b""]]
        assert await client.call("key", "of ", result=str) == "of key-none"
        assert [value async for value in client.call_stream("keys", 2, result=str)] == ["keys-none"] * 2
        assert await client.stub(services.key, options={"key": "stub"})("of ") == "of key-stub"
        outcomes = [outcome async for outcome in view.map("options", [b"x"] * 3, window=2)]
        assert [outcome.reply[0] for outcome in outcomes if outcome.reply] == [b"options-order-17-%d" % n for n in range(3)]
        assert [(outcome.index, outcome.error, outcome.attempts) for outcome in outcomes] == [(n, None, 1) for n in range(3)]
        assert all(outcome.latency_s >= 0 for outcome in outcomes)


async def test_the_parts_of_a_stream_go_through_it() -> None:
    ended: list[str] = []
    async with mdp.testing.broker(services={"count": count, "echo": echo}) as local:

        @local.client.middleware
        async def louder(call: ClientCall, call_next: ClientCallNext) -> Any:
            reply = await call_next(call)
            if not call.streaming:
                return reply

            async def parts() -> AsyncIterator[list[bytes]]:
                try:
                    async for part in reply:
                        yield [*part, b"!"]
                finally:
                    ended.append("ended")

            return parts()

        assert [part async for part in local.client.stream("count", b"2")] == [[b"0", b"!"], [b"1", b"!"]]
        assert await local.client.request("echo", b"a") == [b"a"]
        stream = local.client.stream("count", b"1000")
        assert await anext(stream) == [b"0", b"!"]
        await stream.aclose()
    assert ended == ["ended", "ended"]


async def test_errors_of_a_map_are_outcomes_and_the_window_holds() -> None:
    open_now = most = 0
    async with mdp.testing.broker(services={"echo": echo, "refuse": refuse}) as local:

        @local.client.middleware
        async def counting(call: ClientCall, call_next: ClientCallNext) -> Any:
            nonlocal open_now, most
            open_now += 1
            most = max(most, open_now)
            try:
                return await call_next(call)
            finally:
                open_now -= 1

        outcomes = [outcome async for outcome in local.client.map("refuse", [b"x"] * 20, window=4)]
        assert [type(outcome.error) for outcome in outcomes] == [mdp.HandlerError] * 20
        assert 1 <= most <= 4
        iterator = local.client.map("echo", [b"x"] * 20, window=4)
        await anext(iterator)
        await iterator.aclose()
        with pytest.raises(ValueError, match="window of 0"):
            await anext(local.client.map("echo", [b"x"], window=0))
    assert open_now == 0


async def test_a_cancelled_request_is_cancelled_within() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def forever(request: mdp.Request) -> bytes:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()
        return b""

    async with mdp.testing.broker(services={"forever": forever}) as local:
        local.client.middleware(tenant)
        reply = local.client.request("forever", timeout=100)
        await begun.wait()
        reply.cancel()
        await ended.wait()
        assert local.client.counters.cancelled == 1


async def test_wrong_arguments_are_errors_all_the_same() -> None:
    async with mdp.testing.broker(services={"echo": echo}) as local:
        local.client.middleware(tenant)
        with pytest.raises(ValueError, match="deadline"):
            await local.client.request("echo", deadline=-1)
        with pytest.raises(TypeError):
            await local.client.request("echo", "text")  # type: ignore[arg-type]


async def test_the_synchronous_client_has_it() -> None:
    def program(endpoint: str) -> None:
        with mdp.SyncClient(endpoint, timeout=100) as client:
            client.middleware(tenant)
            assert client.request("options", headers={"a": "1"}) == [b"", b"False", b"a=1,tenant=zh", b""]
            assert [outcome.reply for outcome in client.map("options", [b""])] == [[b"", b"False", b"tenant=zh", b""]]

    async with mdp.testing.broker(services={"options": services.options}, transport="tcp") as local:
        await asyncio.to_thread(program, local.endpoint)
