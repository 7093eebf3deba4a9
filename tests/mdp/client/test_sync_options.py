"""`with_options` and `stub` of the synchronous client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator  # annotations of services are needed at run time
from typing import TYPE_CHECKING, assert_type

import pytest

import mdp
import mdp.testing
from tests.mdp.client import test_with_options as services

if TYPE_CHECKING:
    from collections.abc import Callable


@mdp.service("letters")
async def letters(text: str) -> AsyncIterator[str]:
    for letter in text:
        yield letter


@mdp.service("twice")
def twice(number: int, times: int = 2) -> int:
    return number * times


async def in_a_thread(program: Callable[[mdp.SyncClient], None]) -> None:
    """Run a program with a client, beside a broker with services."""

    def run(endpoint: str) -> None:
        with mdp.SyncClient(endpoint, timeout=100) as client:
            program(client)

    handlers = (services.key, services.keys, letters, twice)
    async with mdp.testing.broker(*handlers, services={"options": services.options}, transport="tcp") as local:
        await asyncio.to_thread(run, local.endpoint)


async def test_everything_has_the_options_of_the_view() -> None:
    def program(client: mdp.SyncClient) -> None:
        view = client.with_options(key="order-17", headers={"a": "1"})
        assert view.request("options", headers={"b": "2"}) == [b"order-17", b"False", b"a=1,b=2", b""]
        assert view.submit("options", key="order-18").result() == [b"order-18", b"False", b"a=1", b""]
        assert view.call("key", "of ", result=str) == "of order-17"
        assert [*view.call_stream("keys", 2, result=str)] == ["order-17", "order-17"]
        assert [*view.stream("options", key="order-19", once=True)] == [[b"order-19", b"True", b"a=1", b""]]
        assert client.request("options") == [b"", b"False", b"", b""]

    await in_a_thread(program)


async def test_each_request_of_a_map_has_a_key_of_its_own() -> None:
    def program(client: mdp.SyncClient) -> None:
        outcomes = [*client.with_options(key="job").map("options", [b"x"] * 200)]
        assert [outcome.reply[0] for outcome in outcomes if outcome.reply] == [b"job-%d" % n for n in range(200)]

    await in_a_thread(program)


async def test_a_stub_is_a_plain_function() -> None:
    def program(client: mdp.SyncClient) -> None:
        value = client.stub(twice)
        assert_type(value(4), int)
        assert (value(4), value(4, times=3)) == (8, 12)
        text = client.stub(services.key, options={"key": "order-18"})
        assert_type(text("of "), str)
        assert text("of ") == "of order-18"
        values = client.stub(letters)
        assert_type(values("ab"), Generator[str, None, None])
        assert [*values("ab")] == ["a", "b"]
        assert client.stub(services).key("") == ""
        with pytest.raises(mdp.BadArguments):
            value("four")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="no function of arguments"):
            client.stub(services.options)

    await in_a_thread(program)
