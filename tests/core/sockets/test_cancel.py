"""Cancelling a send or a receive at every point: nothing is lost or doubled, order is kept (SOCK-13).

Numbered messages are exchanged while the tasks that send and receive are cancelled at random, after any number of loop iterations and in
the very iteration in which they complete. A cancelled receive has taken no message; a send cancelled while it waits has sent none.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING

import pytest

import core

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from core.sockets.results.futures import Awaitable as Sending

    Sent = Sending[None]

COUNT = 120
PAIRS = [(core.PUSH, core.PULL), (core.DEALER, core.DEALER), (core.PAIR, core.PAIR), (core.DEALER, core.ROUTER)]


async def receive(operation: Callable[[], Awaitable[object]], done: list[object]) -> None:
    """Receive once, and note the result in the same step.

    A cancelled task has noted nothing that it did not get.
    """
    done.append(await operation())


async def send(operation: Callable[[], Sent], made: list[Sent]) -> None:
    """One send; its awaitable is kept, because it tells whether the message was sent."""
    made.append(operation())
    await made[-1]


async def at_any_point(chance: random.Random, step: Callable[[], Coroutine[object, object, None]]) -> None:
    """Run a step in its own task and cancel it after some loop iterations, unless it is done."""
    task = asyncio.ensure_future(step())
    for _ in range(chance.randrange(5)):
        await asyncio.sleep(0)
    if chance.random() < 0.7:
        task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def send_all(socket: core.Socket, chance: random.Random, shape: str) -> None:
    """Send the numbers in order; repeat a send that was cancelled while it waited.

    A task can be cancelled in the iteration in which its send is completed: then the task is cancelled, and the message is sent.
    """
    for number in range(COUNT):
        frames = [b"%d" % number, b"x" * chance.choice((0, 10, 1000))]
        operation = partial(socket.send_many, [frames]) if shape == "many" else partial(socket.send_multipart, frames)
        made: list[Sent] = []
        while not (made and made[-1].done() and not made[-1].cancelled()):
            await at_any_point(chance, partial(send, operation, made))


async def receive_all(socket: core.Socket, chance: random.Random, shape: str) -> list[int]:
    """Receive until every number has come."""
    got: list[int] = []
    while len(got) < COUNT:
        done: list[object] = []
        operation = socket.recv_many if shape == "many" else socket.recv_multipart
        await at_any_point(chance, partial(receive, operation, done))
        for result in done:
            messages = result if shape == "many" else [result]
            assert isinstance(messages, list)
            got += [int(message[-2]) for message in messages]
    return got


@pytest.mark.parametrize("shape", ["one", "many"])
@pytest.mark.parametrize("transport", ["tcp", "inproc"])
@pytest.mark.parametrize(("sends", "receives"), PAIRS, ids=lambda kind: core.SocketType(kind).name)
async def test_sock_13_nothing_is_lost_and_nothing_comes_twice(sends: int, receives: int, transport: str, shape: str) -> None:
    """The queues are two messages long, so that sends wait as well as receives, with two tasks of each kind."""
    chance = random.Random(f"{sends} {receives} {transport} {shape}")
    async with core.Context() as context, asyncio.timeout(100):
        receiver = context.socket(receives, rcvhwm=2, linger=0)
        receiver.bind("tcp://127.0.0.1:*" if transport == "tcp" else "inproc://cancel")
        sender = context.socket(sends, sndhwm=2, linger=0)
        sender.connect(receiver.last_endpoint)
        async with asyncio.TaskGroup() as group:
            group.create_task(send_all(sender, chance, shape))
            got = group.create_task(receive_all(receiver, chance, shape))
        assert got.result() == list(range(COUNT))
        with pytest.raises(core.Again):
            receiver.recv(core.NOBLOCK)


async def test_sock_13_req_and_rep_keep_their_step_when_either_is_cancelled() -> None:
    """A request or an answer that was cancelled is tried again; every request is answered once, with its own answer."""
    chance = random.Random(13)
    async with core.Context() as context, asyncio.timeout(100):
        rep, req = context.socket(core.REP, linger=0), context.socket(core.REQ, linger=0)
        rep.bind("tcp://127.0.0.1:*")
        req.connect(rep.last_endpoint)

        async def answer() -> None:
            for number in range(COUNT):
                asked: list[object] = []
                while not asked:
                    await at_any_point(chance, partial(receive, rep.recv, asked))
                assert asked == [b"%d" % number]
                await rep.send(b"re %d" % number)

        async with asyncio.TaskGroup() as group:
            group.create_task(answer())
            for number in range(COUNT):
                await req.send(b"%d" % number)
                got: list[object] = []
                while not got:
                    await at_any_point(chance, partial(receive, req.recv, got))
                assert got == [b"re %d" % number]


@pytest.mark.parametrize("receives", [core.PULL, core.ROUTER], ids=lambda kind: core.SocketType(kind).name)
async def test_sock_13_a_batch_whose_receiver_was_cancelled_is_received_again_whole(receives: int) -> None:
    """A cancelled `recv_many` puts all its messages back, to the head of the queue and in order."""
    async with core.Context() as context, asyncio.timeout(100):
        receiver, sender = context.socket(receives, linger=0), context.socket(core.PUSH if receives == core.PULL else core.DEALER, linger=0)
        receiver.bind("tcp://127.0.0.1:*")
        sender.connect(receiver.last_endpoint)
        got: list[int] = []
        for first in range(0, 100, 5):
            pending = receiver.recv_many()
            assert not pending.done()
            tasks: list[asyncio.Future[object]] = []
            pending.add_done_callback(lambda _, tasks=tasks: tasks[0].cancel())  # type: ignore[misc]  # before the task hears of it
            tasks.append(asyncio.ensure_future(result_of(pending)))
            await asyncio.sleep(0)
            await sender.send_many([[b"%d" % number] for number in range(first, first + 5)])
            await asyncio.wait(tasks)
            assert tasks[0].cancelled()
            while len(got) < first + 5:
                got += [int(message[-1]) for message in await receiver.recv_many()]
        assert got == list(range(100))


async def result_of(pending: Awaitable[object]) -> object:
    """A receive in its own task."""
    return await pending
