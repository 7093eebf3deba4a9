"""freelance.server: what it counts, logs and leaves unanswered."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import pytest

import core
import freelance
from tests.scenes.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

ANY = "tcp://127.0.0.1:*"


def answer(body: list[bytes]) -> Any:
    """Answer each body as it asks to be answered."""
    if body[0] == b"raise":
        raise ValueError("this body")
    if body[0] == b"later":
        return asyncio.sleep(0, None if body[1:] else b"later")
    if body[0] == b"number":
        return 5
    return None if body[0] == b"none" else [b"echo", *body]


@asynccontextmanager
async def asked(
    model: Literal[1, 2, 3], handler: Callable[[list[bytes]], Any] = answer, **options: Any
) -> AsyncIterator[tuple[freelance.Server, core.Socket]]:
    async with (
        asyncio.timeout(PATIENCE_S),
        freelance.Server(ANY, handler, model=model, **options) as server,
        core.Context() as context,
    ):
        dealer = context.socket(core.DEALER, linger=0)
        dealer.connect(server.endpoint)
        yield server, dealer


async def test_model_3_what_comes_in_one_read_is_answered_and_counted_each_for_itself(caplog: pytest.LogCaptureFixture) -> None:
    """FLP-02, FLP-03: a malformed request hides none after it."""
    requests = [[b"no request"], [b"PING"], [b"7", b"one", b"two"], [b"8", b"none"], [b"9", b"raise"], [b"10", b"number"], [b"11", b""]]
    async with asked(3) as (server, dealer):
        await dealer.send_many(requests)
        assert [await dealer.recv_multipart() for _ in range(3)] == [[b"PONG"], [b"7", b"echo", b"one", b"two"], [b"11", b"echo", b""]]
        assert server.counters == {"request_malformed": 1, "ping": 1, "accepted": 5, "unanswered": 1, "handler_failed": 2, "answered": 2}
    logged = [record for record in caplog.records if record.name == "freelance.server"]
    assert [record.getMessage() for record in logged] == ["handler failed"] * 2
    assert [type(record.exc_info[1]) for record in logged if record.exc_info] == [ValueError, TypeError]


def faulty(body: list[bytes]) -> Any:
    """Answer as programs do by mistake."""
    match body[0]:
        case b"cancelled":
            raise asyncio.CancelledError  # that of a future it asked for a result
        case b"text":
            return ["text"]
        case b"lazy":
            return (b"%d" % (1 // number) for number in (1, 0))
        case b"later":
            return cancels_itself()
    return body


async def cancels_itself() -> None:
    raise asyncio.CancelledError


async def test_whatever_a_handler_raises_or_returns_is_its_failure_and_harms_no_other_request() -> None:
    async with asked(3, faulty) as (server, dealer):
        bad = [b"cancelled", b"text", b"lazy", b"later"]
        await dealer.send_many([[b"1", b"first"], *([b"2", body] for body in bad), [b"3", b"last"]])
        assert [await dealer.recv_multipart() for _ in range(2)] == [[b"1", b"first"], [b"3", b"last"]]
        await eventually(lambda: server.counters["handler_failed"] == len(bad))
        assert server.counters == {"accepted": 6, "answered": 2, "handler_failed": len(bad)}


async def test_model_1_has_bodies_of_any_number_of_frames() -> None:
    """FRL-02."""
    async with asked(1) as (server, dealer):
        await dealer.send_many([[b"", b"one"], [b""], [b"no delimiter"], [b"id", b"", b"one", b"two"], [b"", b""]])
        answers = [[b"", b"echo", b"one"], [b"id", b"", b"echo", b"one", b"two"], [b"", b"echo", b""]]
        assert [await dealer.recv_multipart() for _ in range(3)] == answers
        assert server.counters == {"request_malformed": 2, "accepted": 3, "answered": 3}


async def test_model_2_has_a_sequence_and_one_frame() -> None:
    """FRL-04."""
    async with asked(2) as (server, dealer):
        await dealer.send_many([[b"", b"1"], [b"", b"2", b"one", b"two"], [b"", b"3", b"one"]])
        assert await dealer.recv_multipart() == [b"", b"3", b"echo", b"one"]
        assert server.counters == {"request_malformed": 2, "accepted": 1, "answered": 1}


async def test_replies_that_come_later_are_counted_like_others() -> None:
    async with asked(3) as (server, dealer):
        await dealer.send_many([[b"1", b"later", b"nothing"], [b"2", b"later"]])
        assert await dealer.recv_multipart() == [b"2", b"later"]
        await eventually(lambda: server.counters["unanswered"])
        assert server.counters == {"accepted": 2, "answered": 1, "unanswered": 1}


async def test_beyond_the_running_requests_and_while_it_drains_a_server_accepts_none() -> None:
    release = asyncio.Event()

    async def wait(body: list[bytes]) -> bytes:
        await release.wait()
        return b"done"

    async with asked(3, wait, running_max=1) as (server, dealer):
        await dealer.send_many([[b"1", b""], [b"2", b""]])
        await eventually(lambda: server.counters["running_overflow"])
        assert not server.draining
        assert not await server.drain(0.0)
        assert server.draining
        await dealer.send(b"3")
        await dealer.send_multipart([b"3", b""])
        await eventually(lambda: server.counters["request_draining"])
        release.set()
        assert await dealer.recv_multipart() == [b"1", b"done"]
        assert server.counters == {"accepted": 1, "running_overflow": 1, "request_malformed": 1, "request_draining": 1, "answered": 1}
        assert await server.drain(PATIENCE_S)


async def test_handlers_that_run_when_the_server_ends_are_cancelled_and_it_drains_for_ever() -> None:
    async with asked(3, lambda _: asyncio.sleep(PATIENCE_S)) as (server, dealer):
        await dealer.send_multipart([b"1", b""])
        await eventually(lambda: server.counters["accepted"])
    assert server.counters["cancelled"] == 1
    assert server.draining


async def test_a_server_that_could_not_listen_may_be_entered_again() -> None:
    async with core.Context() as context:
        other = context.socket(core.ROUTER)
        other.bind(ANY)
        server = freelance.Server(other.last_endpoint, lambda _: b"here")
        with pytest.raises(core.AddressInUse):
            await server.__aenter__()
        assert not server.draining
        with pytest.raises(RuntimeError):
            _ = server.endpoint
        other.close()
        await other.wait_closed()
        async with server:
            dealer = context.socket(core.DEALER, linger=0)
            dealer.connect(server.endpoint)
            await dealer.send_multipart([b"1", b""])
            assert await dealer.recv_multipart() == [b"1", b"here"]


async def test_a_server_whose_context_the_program_ends_says_so_and_drops_replies(caplog: pytest.LogCaptureFixture) -> None:
    asked_for, release = asyncio.Event(), asyncio.Event()

    async def wait(body: list[bytes]) -> list[bytes]:
        asked_for.set()
        await release.wait()
        return body

    async with core.Context() as context, asked(3, wait, context=context) as (server, dealer):
        await dealer.send_multipart([b"1", b"x"])
        await asked_for.wait()
        context.term()
        with pytest.raises(core.ContextTerminated):
            await server.serve_forever()
        release.set()
        assert await server.drain(PATIENCE_S)
    assert not caplog.records
