"""Priorities, rates and retries from a program's side: options of workers and of requests."""

from __future__ import annotations

import asyncio

import pytest

import mdp
import mdp.testing


async def test_a_handler_that_fails_twice_answers_at_the_third_attempt() -> None:
    """POL-03."""
    failures = 2

    @mdp.service("flaky", retry=mdp.Retry(attempts=3, base_s=0.01))
    async def flaky(request: mdp.Request) -> bytes:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise OSError("the database is away")
        return b"done"

    async with mdp.testing.broker(flaky) as local:
        assert await local.client.request("flaky", timeout=60) == [b"done"]
        assert local.broker.stats["retried"] == 2


async def test_an_error_with_a_code_is_final() -> None:
    """POL-03."""
    calls = 0

    @mdp.service("shop", retry=mdp.Retry(attempts=3, base_s=0.01))
    async def shop(request: mdp.Request) -> bytes:
        nonlocal calls
        calls += 1
        raise mdp.HandlerError(code="SOLD_OUT")

    async with mdp.testing.broker(shop) as local:
        with pytest.raises(mdp.HandlerError):
            await local.client.request("shop", timeout=60)
    assert calls == 1


async def test_the_highest_priority_of_what_waits_is_handled_first() -> None:
    """POL-01."""
    order: list[bytes] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handle(request: mdp.Request) -> bytes:
        begun.set()
        await go_on.wait()
        order.append(request.body[0])
        return b""

    async with mdp.testing.broker() as local:
        await local.add_worker("handle", handle, concurrency=1, credit=1)
        client = local.client
        replies = [client.request("handle", b"first", timeout=60)]
        await begun.wait()
        view = client.with_options(priority="low", timeout=60)
        replies += [view.request("handle", b"low"), view.request("handle", b"high", priority="high")]
        replies += [client.request("handle", b"normal", timeout=60)]
        await client.mmi("protocol")  # so all have arrived
        go_on.set()
        await asyncio.gather(*replies)
    assert order == [b"first", b"high", b"normal", b"low"]


async def test_a_rate_holds_for_all_workers_of_a_service() -> None:
    """POL-02."""
    calls = 0

    async def handle(request: mdp.Request) -> bytes:
        nonlocal calls
        calls += 1
        return b""

    async with mdp.testing.broker() as local:
        for _ in range(2):
            await local.add_worker("handle", handle, rate=mdp.Rate(0.001, burst=5))
        outcomes = [outcome async for outcome in local.client.map("handle", [b""] * 5, timeout=60)]
        assert [outcome.error for outcome in outcomes] == [None] * 5
        waiting = local.client.request("handle", timeout=60)
        await local.client.mmi("protocol")
        assert calls == 5
        assert local.broker.stats["queued"] == 1
        waiting.cancel()


@pytest.mark.parametrize("wrong", ["urgent", "", 1])
async def test_other_priorities_are_refused(wrong: object) -> None:
    async with mdp.testing.broker() as local:
        with pytest.raises(ValueError, match="priority"):
            local.client.request("handle", priority=wrong)  # type: ignore[arg-type]


async def test_the_error_of_a_request_that_waited_for_its_rate_says_so() -> None:
    """POL-05."""

    @mdp.service("mail", rate=mdp.Rate(0.01, burst=2))
    async def mail(request: mdp.Request) -> bytes:
        return b"sent"

    async with mdp.testing.broker(mail) as local:
        for _ in range(2):
            await local.client.request("mail", timeout=60)
        waits = [local.client.request("mail", timeout=60) for _ in range(2)]
        with pytest.raises(mdp.Timeout) as caught:
            await local.client.request("mail", timeout=0.5, attempts=1)
        with pytest.raises(mdp.DeadlineExceeded, match=r"0\.01 requests a second with a burst of 2"):
            await local.client.request("mail", deadline=0.5)
        for request in waits:
            request.cancel()
    text = str(caught.value)
    assert "held back by the rate of this service, 0.01 requests a second with a burst of 2; 3 requests waited" in text
    assert "in 1 attempt (TIMEOUT)" in text
