"""Headers of requests: seen by handlers, bounded, and refused where a dialect has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import mdp
import mdp.testing
from mdp.client.calls import Call, PendingRequest
from mdp.client.pending import RequesterLimits
from mdp.client.requester_01 import LockstepRequester, OpenConnection
from mdp.wire.options import HEADERS_BYTES_MAX, HEADERS_MAX
from tests.scenes.mdp_handlers import echo

if TYPE_CHECKING:
    from mdp.request import Request

LOCALE = {"locale": "de-CH", "tenant": "Zürich"}


async def shown(request: Request) -> list[bytes]:
    return [f"{name}={value}".encode() for name, value in request.headers.items()] or [b"none"]


async def parts(request: Request) -> Any:
    for name in request.headers:
        yield name.encode()


async def test_a_handler_sees_the_headers() -> None:
    """HDR-01."""
    async with mdp.testing.broker(services={"shown": shown}) as local:
        client = local.client
        assert await client.request("shown", headers=LOCALE) == [b"locale=de-CH", "tenant=Zürich".encode()]
        assert await client.request("shown", headers={}) == await client.request("shown") == [b"none"]
        assert await client.request("shown", headers={"a": ""}, key="order-17", deadline=60, wait=True) == [b"a="]


async def test_streams_maps_and_windows_have_headers_too() -> None:
    async with mdp.testing.broker(services={"shown": shown, "parts": parts}) as local:
        client = local.client
        assert [part async for part in client.stream("parts", headers=LOCALE)] == [[b"locale"], [b"tenant"]]
        outcomes = [outcome async for outcome in client.map("shown", [b"", b""], key=str, headers={"a": "b"})]
        assert [outcome.reply for outcome in outcomes] == [[b"a=b"], [b"a=b"]]


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({str(n): "" for n in range(HEADERS_MAX + 1)}, ValueError),
        ({"a": "ü" * (HEADERS_BYTES_MAX // 2)}, ValueError),
        ({"": "a"}, ValueError),
        ({"a": "\ud800"}, ValueError),
        ({"a": b"b"}, TypeError),
        ({1: "b"}, TypeError),
    ],
)
async def test_other_headers_are_refused_by_the_client(headers: Any, error: type[Exception]) -> None:
    async with mdp.testing.broker(services={"echo": echo}) as local:
        with pytest.raises(error):
            local.client.request("echo", b"x", headers=headers)
        assert local.client.counters.sent == 0


async def test_as_many_headers_as_are_allowed_arrive() -> None:
    many = {f"{n:02}": "x" * (HEADERS_BYTES_MAX // HEADERS_MAX - 2) for n in range(HEADERS_MAX)}
    async with mdp.testing.broker(services={"shown": shown}) as local:
        assert len(await local.client.request("shown", headers=many)) == HEADERS_MAX


@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
async def test_an_older_dialect_is_sent_nothing(dialect: str) -> None:
    """HDR-01."""
    async with mdp.testing.broker(services={"echo": echo}) as local:
        client = await local.add_client(dialect=dialect)
        waited = client.request("echo", b"x", headers=LOCALE)  # the connection is not up yet
        with pytest.raises(mdp.NotSupported, match=f"MDP/{dialect} has no headers"):
            await waited
        with pytest.raises(mdp.NotSupported):  # it is up now
            await client.request("echo", b"x", headers=LOCALE)
        [outcome] = [outcome async for outcome in client.map("echo", [b"x"], headers=LOCALE)]
        assert isinstance(outcome.error, mdp.NotSupported)
        assert (client.counters.unsupported, client.counters.sent, client.counters.too_large) == (3, 0, 0)
        assert await client.request("echo", b"x") == [b"x"]


def test_a_refused_request_leaves_its_connection_to_the_next() -> None:
    machine: LockstepRequester[PendingRequest] = LockstepRequester("0.1", RequesterLimits(connections_max=1))
    refused = PendingRequest(Call("echo", timeout_s=1, attempts=1, headers=LOCALE), (b"x",))
    sent = PendingRequest(Call("echo", timeout_s=1, attempts=1), (b"y",))
    machine.submit(refused, 0.0)
    machine.submit(sent, 0.0)
    [order] = machine.take_orders()
    assert isinstance(order, OpenConnection)
    machine.joined(order.number)
    assert machine.tick(0.0) == [refused]
    assert isinstance(refused.error, mdp.NotSupported)
    assert len(machine.take_outgoing()) == 1
    assert machine.in_flight == 1
