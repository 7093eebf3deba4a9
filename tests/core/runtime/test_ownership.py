"""A socket belongs to one process, thread and event loop.

Use from another one is refused, and the owner's goes on.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import core
from tests.scenes.forked_child import in_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENDPOINTS = ["tcp://127.0.0.1:*", "inproc://owners"]
ANYWHERE = [*ENDPOINTS, "ipc://*"] if hasattr(socket, "AF_UNIX") else ENDPOINTS
VERBS: dict[str, Callable[[core.Socket], object]] = {
    "send": lambda sock: sock.send(b"x"),
    "send_multipart": lambda sock: sock.send_multipart([b"x"]),
    "send_many": lambda sock: sock.send_many([[b"x"]]),
    "recv": lambda sock: sock.recv(),
    "recv_multipart": lambda sock: sock.recv_multipart(),
    "recv_many": lambda sock: sock.recv_many(),
    "poll": lambda sock: sock.poll(0),
    "bind": lambda sock: sock.bind("tcp://127.0.0.1:*"),
    "connect": lambda sock: sock.connect("tcp://127.0.0.1:9"),
    "a socket": lambda sock: sock.context.socket(core.DEALER),
}


async def pair(context: core.Context, endpoint: str) -> tuple[core.Socket, core.Socket]:
    one, two = context.socket(core.PAIR), context.socket(core.PAIR)
    one.bind(endpoint)
    two.connect(one.last_endpoint)
    await two.send(b"hello")
    assert await one.recv() == b"hello"
    return one, two


def refusals(socket: core.Socket) -> str:
    """Return the verbs that are not refused."""
    went = []
    for name, verb in VERBS.items():
        try:
            verb(socket)
        except core.WrongOwner as error:
            if str(os.getppid()) not in str(error):
                went.append(f"{name}: {error}")
        else:
            went.append(name)
    socket.close()
    socket.context.destroy()
    return ", ".join(went) or "all refused"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_p7_a_forked_child_sends_nothing_on_its_parents_connection(endpoint: str) -> None:
    async with core.Context() as context:
        one, two = await pair(context, endpoint)
        assert in_child(lambda: refusals(two)) == "all refused"
        await two.send(b"of the parent")
        assert await one.recv() == b"of the parent"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
async def test_p7_a_child_makes_a_context_of_its_own() -> None:
    async def ask(endpoint: str) -> str:
        async with core.Context() as own:
            push = own.socket(core.PUSH)
            push.connect(endpoint)
            await push.send(b"of the child")
        return "sent"

    async with core.Context() as context:
        pull = context.socket(core.PULL)
        pull.bind("tcp://127.0.0.1:*")
        endpoint = pull.last_endpoint

        def work() -> str:
            asyncio._set_running_loop(None)  # the parent's runs here too, as far as the child knows
            return asyncio.new_event_loop().run_until_complete(ask(endpoint))

        said = await asyncio.get_running_loop().run_in_executor(None, in_child, work)
        assert said == "sent"
        assert await pull.recv() == b"of the child"


ON_A_SOCKET: dict[str, Callable[[core.Socket], object]] = {name: verb for name, verb in VERBS.items() if name != "a socket"} | {
    "send, piecewise": lambda sock: sock.send(b"x", core.SNDMORE),
    "send_string": lambda sock: sock.send_string("x"),
    "send_octets": lambda sock: sock.send_octets(b"", [b"\x00\x01x"]),
    "recv, framed": lambda sock: sock.recv(copy=False),
    "recv_string": lambda sock: sock.recv_string(),
    "recv, at once": lambda sock: sock.recv(core.NOBLOCK),
    "unbind": lambda sock: sock.unbind("tcp://127.0.0.1:9"),
    "set_receiver": lambda sock: sock.set_receiver(None),
}
# What the owner has done before, and what is queued for the socket.
BEFORE = {"little": 0, "much": 500}


async def settle() -> None:
    """End the loop iteration of the burst."""
    for _ in range(3):
        await asyncio.sleep(0)


@contextmanager
def named(verb: str) -> Iterator[None]:
    """Say with an error which verb it was."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"the verb: {verb}")
        raise


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("endpoint", ANYWHERE)
async def test_another_thread_without_a_loop_is_refused(endpoint: str, before: str) -> None:
    for verb in ON_A_SOCKET:
        with named(verb):
            await check_another_thread(endpoint, verb, BEFORE[before])


async def check_another_thread(endpoint: str, verb: str, count: int) -> None:
    async with core.Context() as context:
        one, two = await pair(context, endpoint)
        for _ in range(count):
            one.send(b"queued")
            two.send(b"queued")
        for _ in range(count // 2):
            assert await two.recv() == b"queued"
        await settle()
        with pytest.raises(core.WrongOwner, match="another thread"):
            await asyncio.to_thread(ON_A_SOCKET[verb], two)
        for _ in range(count - count // 2):
            assert await two.recv() == b"queued"
        await two.send(b"of the owner")
        assert [await one.recv() for _ in range(count + 1)] == [b"queued"] * count + [b"of the owner"]


async def test_a_thread_is_refused_while_somebody_waits() -> None:
    async with core.Context() as context:
        one, two = await pair(context, "inproc://owners")
        waiting = two.recv_multipart()
        for verb in ("recv", "recv_multipart", "recv_many"):
            with pytest.raises(core.WrongOwner, match="another thread"):
                await asyncio.to_thread(VERBS[verb], two)
        await one.send(b"for who waits")
        assert await waiting == [b"for who waits"]


@pytest.mark.parametrize("endpoint", ANYWHERE)
async def test_another_thread_neither_closes_nor_sets_options(endpoint: str) -> None:
    """A socket was closed by half, and no more use to its owner."""
    async with core.Context() as context:
        one, two = await pair(context, endpoint)
        for act in (
            two.close,
            lambda: two.setsockopt(core.SNDHWM, 5),
            lambda: setattr(two, "sndhwm", 5),
            two.get_monitor_socket,
            context.destroy,
        ):
            with pytest.raises(core.WrongOwner, match="another thread"):
                await asyncio.to_thread(act)
        assert two.sndhwm != 5
        await two.send(b"of the owner")
        assert await one.recv() == b"of the owner"


@pytest.mark.parametrize("endpoint", ANYWHERE)
async def test_another_loop_is_refused(endpoint: str) -> None:
    for verb in ON_A_SOCKET:
        with named(verb):
            await check_another_loop(endpoint, verb)


async def check_another_loop(endpoint: str, verb: str) -> None:
    async with core.Context() as context:
        one, two = await pair(context, endpoint)
        await settle()
        raised: list[BaseException] = []

        async def use() -> None:
            ON_A_SOCKET[verb](two)

        def elsewhere() -> None:
            try:
                asyncio.run(use())
            except core.WrongOwner as error:
                raised.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        await asyncio.to_thread(thread.join)
        assert len(raised) == 1
        await one.send(b"still here")
        assert await two.recv() == b"still here"


def test_one_context_after_another_loop_was_closed() -> None:
    context = core.Context()

    async def once() -> bytes:
        one, two = await pair(context, "tcp://127.0.0.1:*")
        await one.send(b"x")
        got = await two.recv()
        for end in (one, two):
            end.close()
            await end.wait_closed()
        return got

    assert asyncio.run(once()) == b"x"
    assert asyncio.run(once()) == b"x"


async def test_a_context_that_another_thread_ends_wakes_what_waits_on_the_loop() -> None:
    async with core.Context() as context:
        socket = context.socket(core.PULL)
        socket.bind("tcp://127.0.0.1:*")
        ending = threading.Timer(0.05, context.term)  # when the loop is asleep
        loop = asyncio.get_running_loop()
        began = loop.time()
        ending.start()
        with pytest.raises(core.ContextTerminated):
            await asyncio.wait_for(socket.recv(), 60.0)
        assert loop.time() - began < 50.0  # nothing else woke it
        ending.join()


async def test_a_context_whose_end_another_thread_is_refused_goes_on() -> None:
    async with core.Context() as context:
        push, pull = context.socket(core.PUSH), context.socket(core.PULL)
        pull.bind("tcp://127.0.0.1:*")
        push.connect(pull.last_endpoint)
        with pytest.raises(core.WrongOwner):
            await asyncio.to_thread(context.destroy)
        assert not context.closed
        await push.send(b"x")
        assert await pull.recv() == b"x"
        context.socket(core.PULL).close()
