"""Everyday behaviour beside sending and receiving, the same on libzmq and on `core`."""

from __future__ import annotations

import errno
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import zmq
import zmq.asyncio

import core
from tests.interop.relaxed_req import error_of_the_next_receive, error_with_libzmq
from tests.scenes.raw_octets import WirePeer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


@pytest.fixture(params=["core", "libzmq"])
async def library(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Any, Any]]:
    """Return a library and a context of it."""
    if request.param == "core":
        async with core.Context() as context:
            yield core, context
    else:
        theirs = zmq.asyncio.Context()
        yield zmq, theirs
        theirs.destroy(linger=0)


AFTER_THE_END: dict[str, Callable[[Any, Any], Any]] = {
    "send": lambda socket, _: socket.send(b"x"),
    "recv": lambda socket, _: socket.recv(),
    "send_multipart": lambda socket, _: socket.send_multipart([b"x"]),
    "recv_multipart": lambda socket, _: socket.recv_multipart(),
    "bind": lambda socket, _: socket.bind("tcp://127.0.0.1:*"),
    "connect": lambda socket, _: socket.connect("tcp://127.0.0.1:9"),
    "unbind": lambda socket, _: socket.unbind("tcp://127.0.0.1:9"),
    "getsockopt": lambda socket, library: socket.getsockopt(library.LINGER),
    "setsockopt": lambda socket, library: socket.setsockopt(library.LINGER, 1),
    "an option": lambda socket, _: socket.linger,
    "EVENTS": lambda socket, library: socket.getsockopt(library.EVENTS),
    "last_endpoint": lambda socket, _: socket.LAST_ENDPOINT,
    "subscribe": lambda socket, _: socket.subscribe(b"x"),
    "a monitor": lambda socket, _: socket.get_monitor_socket(),
}


@pytest.mark.parametrize("kind", ["DEALER", "SUB", "PUB"])
@pytest.mark.parametrize("verb", AFTER_THE_END)
async def test_a_closed_socket_is_no_socket(library: tuple[Any, Any], kind: str, verb: str) -> None:
    module, context = library
    socket = context.socket(getattr(module, kind))
    socket.close()
    with pytest.raises(module.ZMQError) as refused:
        await AFTER_THE_END[verb](socket, module)
    assert refused.value.errno == errno.ENOTSOCK


async def test_a_misspelt_option_is_refused(library: tuple[Any, Any]) -> None:
    module, context = library
    socket = context.socket(module.DEALER)
    for owner in (socket, context):
        with pytest.raises(AttributeError):
            owner.lingre = 1
    with pytest.raises(AttributeError):
        _ = socket.lingre
    socket.close()


async def test_defaults_of_a_context_are_inherited(library: tuple[Any, Any]) -> None:
    module, context = library
    context.linger = 5
    context.RCVHWM = 7
    socket = context.socket(module.DEALER)
    assert (socket.linger, socket.rcvhwm) == (5, 7)
    assert context.linger == 5
    with pytest.raises(AttributeError):
        _ = context.sndhwm
    socket.close()


@pytest.mark.parametrize("wrong", [5, "text", None, 1.5, [b"x"]], ids=repr)
async def test_what_is_no_frame_is_a_type_error_at_the_call(library: tuple[Any, Any], wrong: object) -> None:
    module, context = library
    pull, push, alone = context.socket(module.PULL), context.socket(module.PUSH), context.socket(module.DEALER)
    port = pull.bind_to_random_port("tcp://127.0.0.1")
    push.connect(f"tcp://127.0.0.1:{port}")
    await push.send(b"first")
    assert await pull.recv() == b"first"
    for socket in (push, alone):
        with pytest.raises(TypeError):
            await socket.send(wrong)
        with pytest.raises(TypeError):
            await socket.send_multipart([b"one", wrong])
    await push.send(b"last")
    assert await pull.recv() == b"last"
    for socket in (pull, push, alone):
        socket.close()


async def test_the_monitor_socket_is_one(library: tuple[Any, Any]) -> None:
    module, context = library
    socket = context.socket(module.DEALER)
    first = socket.get_monitor_socket()
    assert socket.get_monitor_socket() is first
    socket.disable_monitor()
    for one in (first, socket):
        one.close()


async def test_after_the_end_of_a_monitor_another_one_is_made() -> None:
    async with core.Context() as context:
        socket = context.socket(core.DEALER)
        first = socket.get_monitor_socket()
        socket.disable_monitor()
        assert socket.get_monitor_socket() is not first


async def test_the_folder_of_a_temporary_ipc_endpoint_may_be_gone(tmp_path: Path) -> None:
    async with core.Context() as context:
        socket = context.socket(core.PULL)
        socket.bind("ipc://*")
        shutil.rmtree(socket.last_endpoint.removeprefix("ipc://").rpartition("/")[0])
        socket.close()
        await socket.wait_closed()
        assert socket.closed


async def test_a_flood_of_pings_is_answered_by_as_many_pongs_as_libzmq_sends_at_least() -> None:
    """ZMTP-62: a peer that sends twenty PINGs at once gets twenty PONGs."""
    async with core.Context() as context:
        pull = context.socket(core.PULL)
        pull.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(pull.last_endpoint) as peer:
            await peer.shake(b"PUSH")
            ping = b"\x04\x07\x04PING\x00\x00"
            await peer.send(ping * 20)
            assert await peer.receive(20 * 7) == b"\x04\x05\x04PONG" * 20


async def test_a_relaxed_req_whose_send_fails_has_forgotten_the_request_before() -> None:
    async with core.Context() as context:
        ours = await error_of_the_next_receive(core, context)
    assert ours == await error_with_libzmq() == "EFSM"
