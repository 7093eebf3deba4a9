"""core.decorators: coroutine functions get asynchronous contexts and sockets, other functions blocking ones."""

from __future__ import annotations

import pytest

import core
import core.blocking as blocking
from core.decorators import context, socket


@context()
@socket(core.PUSH)
@socket("pull", core.PULL, linger=0)
async def work(word: bytes, ctx: core.Context, push: core.Socket, pull: core.Socket) -> tuple[bytes, core.Context, core.Socket]:
    pull.bind("inproc://work")
    push.connect("inproc://work")
    await push.send(word)
    assert push.context is pull.context is ctx
    return await pull.recv(), ctx, push


async def test_a_coroutine_function() -> None:
    received, ctx, push = await work(b"word")  # type: ignore[call-arg]  # the decorators give the rest
    assert (received, ctx.closed, push.closed) == (b"word", True, True)
    assert isinstance(push, core.Socket)


def test_a_plain_function_and_the_shared_context() -> None:
    @socket(blocking.PUB, name="pub")
    def publish(number: int, pub: blocking.Socket) -> bool:
        return number == 1 and pub.context is blocking.Context.instance()

    assert publish(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="multiple values"):
        publish(1, pub=None)  # type: ignore[arg-type]
    blocking.Context.instance().term()


def test_a_context_under_another_name() -> None:
    @context(name="ctx", io_threads=5)
    @socket(blocking.PUB, context_name="ctx")
    def publish(pub: blocking.Socket, ctx: blocking.Context) -> bool:
        return pub.context is ctx and ctx.IO_THREADS == 5

    assert publish()  # type: ignore[call-arg]
