"""Pending receives: order of frames, messages put back by a cancel, errors of the caller's functions (SOCK-13, SOCK-14)."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import core

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ENDPOINTS = ["tcp://127.0.0.1:*", "inproc://receivers"]


@asynccontextmanager
async def pushed(endpoint: str) -> AsyncIterator[tuple[core.Socket, core.Socket]]:
    async with core.Context() as context, asyncio.timeout(100):
        pull, push = context.socket(core.PULL), context.socket(core.PUSH)
        pull.bind(endpoint)
        push.connect(pull.last_endpoint)
        yield pull, push


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("copy", [True, False], ids=["bytes", "Frame"])
async def test_sock_14_frames_of_one_message_go_to_waiting_receivers_in_their_order(endpoint: str, copy: bool) -> None:
    async with pushed(endpoint) as (pull, push):
        waiting = [asyncio.ensure_future(pull.recv(copy=copy)) for _ in range(5)]
        await asyncio.sleep(0)
        await push.send_multipart([b"a1", b"a2"])
        await push.send_multipart([b"b1", b"b2", b"b3"])
        assert [bytes(frame) for frame in await asyncio.gather(*waiting)] == [b"a1", b"a2", b"b1", b"b2", b"b3"]
        assert not pull.rcvmore


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("victims", list(itertools.combinations(range(4), 2)))
async def test_sock_13_a_frame_whose_receiver_is_cancelled_is_the_next_ones(endpoint: str, victims: tuple[int, ...]) -> None:
    async with pushed(endpoint) as (pull, push):
        waiting: list[Any] = [pull.recv() for _ in range(4)]
        for victim in victims:  # cancelled when their frames have been handed to them, and before they could take them
            waiting[-1].add_done_callback(lambda _, one=waiting[victim]: one.cancel())
        await push.send_multipart([b"1", b"2"])
        await push.send_multipart([b"3", b"4"])
        await asyncio.wait(waiting)
        got = {number: future.result() for number, future in enumerate(waiting) if not future.cancelled()}
        assert set(range(4)) - set(got) == set(victims)
        rest = [await pull.recv() for _ in victims]
        assert sorted([*got.values(), *rest]) == [b"1", b"2", b"3", b"4"]


async def test_receives_keep_their_order_whether_something_waits_for_them_or_not() -> None:
    async with pushed("inproc://receivers") as (pull, push):
        waits: list[Any] = [pull.recv(), pull.recv()]
        waits[0].add_done_callback(lambda _: None)
        await push.send(b"1")
        await push.send(b"2")
        assert waits[1].cancel()
        assert [await waits[0], await pull.recv()] == [b"1", b"2"]


@pytest.mark.parametrize("verb", ["recv", "recv_multipart", "recv_many", "recv_string"])
async def test_sock_13_a_message_whose_result_was_taken_is_not_received_again(verb: str) -> None:
    async with pushed("tcp://127.0.0.1:*") as (pull, push):
        pending: Any = getattr(pull, verb)()
        await push.send(b"1")
        await asyncio.wait([pending])
        assert pending.result() in (b"1", [b"1"], [[b"1"]], "1")
        assert not pending.cancel()
        assert not pending.cancelled()
        await push.send(b"2")
        assert await pull.recv() == b"2"


@pytest.mark.parametrize("verb", ["recv", "recv_multipart", "recv_many", "recv_string"])
async def test_sock_13_a_message_that_went_back_has_no_result(verb: str) -> None:
    async with pushed("tcp://127.0.0.1:*") as (pull, push):
        pending: Any = getattr(pull, verb)()
        await push.send(b"1")
        await asyncio.wait([pending])
        assert pending.cancel()
        assert pending.cancelled()
        for look in (pending.result, pending.exception):
            with pytest.raises(asyncio.CancelledError):
                look()
        assert await pull.recv() == b"1"


class OfTheCaller(Exception):
    """Error of the caller's function."""


class Panic(BaseException):
    """As extension modules raise it."""


ERRORS = [OfTheCaller(), KeyError("k"), ZeroDivisionError(), AssertionError(), StopIteration(), Panic(), asyncio.CancelledError()]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("waits", [True, False], ids=["waits", "is there"])
async def test_an_error_of_the_callers_function_is_the_callers(error: BaseException, waits: bool) -> None:
    def fail(_: list[bytes]) -> object:
        raise error

    async with pushed("tcp://127.0.0.1:*") as (pull, push):

        async def receive() -> None:
            try:
                await pull.recv_serialized(fail)
            except StopIteration:
                raise RuntimeError("of an iterator") from None

        if not waits:
            await push.send(b"1")
            assert await pull.poll()
        task = asyncio.ensure_future(receive())
        if waits:
            await asyncio.sleep(0)
            await push.send(b"1")
        with pytest.raises(RuntimeError if isinstance(error, StopIteration) else type(error)):
            await task
        await push.send(b"2")
        assert await pull.recv() == b"2"


async def test_rep_02_a_receive_that_waits_gets_the_next_request_after_the_answer() -> None:
    async with core.Context() as context:
        rep, dealer = context.socket(core.REP, linger=0), context.socket(core.DEALER, linger=0)
        rep.bind("inproc://receivers")
        dealer.connect("inproc://receivers")
        first, second = rep.recv(), rep.recv()
        for number in (b"1", b"2"):
            await dealer.send_multipart([b"", number])
        assert (await first, second.done()) == (b"1", False)
        await rep.send(b"answer")
        assert await second == b"2"


async def test_an_interrupt_in_a_function_of_the_program_ends_the_program() -> None:
    def interrupt(_: list[bytes]) -> object:
        raise KeyboardInterrupt

    async with pushed("inproc://receivers") as (pull, push):
        pull.recv_serialized(interrupt)
        with pytest.raises(KeyboardInterrupt):
            push.send(b"x")


async def test_a_poll_ends_when_its_socket_is_closed() -> None:
    async with core.Context() as context:
        pull = context.socket(core.PULL)
        pull.bind("tcp://127.0.0.1:*")
        poller = core.Poller()
        poller.register(pull, core.POLLIN)
        polls = [asyncio.ensure_future(pull.poll()), asyncio.ensure_future(poller.poll())]
        await asyncio.sleep(0)
        pull.close()
        for poll in polls:
            with pytest.raises(core.SocketClosed) as refused:
                await poll
            assert refused.value.errno == core.ENOTSOCK
