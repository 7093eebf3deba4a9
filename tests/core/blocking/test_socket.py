"""core.blocking.socket: what blocking sockets do that `tests/interop/test_drop_in_blocking.py` does not show."""

from __future__ import annotations

import asyncio
import copy
import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

import core
import core.blocking as zmq
from tests.scenes.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pair() -> Iterator[tuple[zmq.Socket, zmq.Socket]]:
    with zmq.Context() as context, context.socket(zmq.PAIR) as a, context.socket(zmq.PAIR) as b:
        a.bind("inproc://pair")
        b.connect("inproc://pair")
        yield a, b


def test_any_thread_may_call(pair: tuple[zmq.Socket, zmq.Socket]) -> None:
    a, b = pair
    threads = [threading.Thread(target=a.send, args=(b"x",)) for _ in range(10)]
    for thread in threads:
        thread.start()
    assert [b.recv() for _ in threads] == [b"x"] * 10
    for thread in threads:
        thread.join(PATIENCE_S)


def test_a_wait_that_is_over_loses_nothing(pair: tuple[zmq.Socket, zmq.Socket]) -> None:
    a, b = pair
    b.rcvtimeo = 5
    with pytest.raises(zmq.Again):
        b.recv()
    with pytest.raises(zmq.Again):
        b.recv_multipart(zmq.NOBLOCK)
    a.send_multipart([b"1", b"2"])
    b.rcvtimeo = -1
    assert b.recv_multipart() == [b"1", b"2"]


def test_options_are_attributes_and_other_names_are_refused(pair: tuple[zmq.Socket, zmq.Socket]) -> None:
    a, _ = pair
    a.sndhwm = 5
    assert (a.SNDHWM, a.get_hwm(), a.mechanism, a.socket_type, a.closed) == (5, 5, zmq.NULL, zmq.PAIR, False)
    a.set_hwm(9)
    a.setsockopt_string(zmq.IDENTITY, "me")
    assert (a.hwm, a.rcvhwm, a.identity, a.getsockopt_string(zmq.IDENTITY)) == (9, 9, b"me", "me")
    for name in ("no_such", "set_receiver", "_private"):
        with pytest.raises(AttributeError):
            getattr(a, name)
    with pytest.raises(AttributeError):
        a.no_such = 1  # type: ignore[attr-defined]  # a mistake
    with pytest.raises(zmq.OperationNotSupported):
        setattr(a, "subscribe", "topic")  # noqa: B010 - as old programs do
    assert {"send", "IDENTITY", "linger"} <= set(dir(a))
    assert repr(a) == "<core.blocking.Socket PAIR>"


class Named(zmq.Socket):
    """A socket of a program's own."""

    label = ""

    def __init__(self, *arguments: Any, label: str = "", **options: Any) -> None:
        self.label = label
        super().__init__(*arguments, **options)


def test_a_program_may_derive_its_own_socket() -> None:
    with zmq.Context() as context:
        with context.socket(zmq.PUB, Named, label="mine", linger=3) as socket:
            assert isinstance(socket, Named)
            assert (socket.label, socket.linger) == ("mine", 3)
        with Named(context, zmq.SUB, label="direct") as direct:
            assert direct.label == "direct"
        with pytest.raises(zmq.ZMQError):
            context.socket(-1)


def test_a_forgotten_socket_is_closed_with_a_warning() -> None:
    context = zmq.Context()
    circle: list[Any] = [context.socket(zmq.PUB)]
    circle.append(circle)  # only a collection finds it
    del circle
    with pytest.warns(ResourceWarning, match="not closed"):
        gc.collect()
    context.term()  # does not wait for it


def test_a_socket_that_is_collected_as_a_call_begins_does_not_keep_that_from_going_on(
    pair: tuple[zmq.Socket, zmq.Socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection may run at any allocation; it waited for a lock that its own thread had."""
    a, b = pair
    begin = asyncio.run_coroutine_threadsafe

    def collect_and_begin(coroutine: Any, loop: asyncio.AbstractEventLoop) -> Any:
        gc.collect()
        return begin(coroutine, loop)

    circle: list[Any] = [a.context.socket(zmq.PUB)]
    circle.append(circle)
    del circle
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", collect_and_begin)
    with pytest.warns(ResourceWarning, match="not closed"):
        a.send(b"x")
    assert b.recv() == b"x"


def test_topics_and_endpoints() -> None:
    with zmq.Context() as context, context.socket(zmq.XPUB) as pub, context.socket(zmq.SUB) as sub:
        pub.bind("tcp://127.0.0.1:*")
        with sub.connect(pub.last_endpoint.encode()) as scope:
            assert "connect=" in repr(scope)
            sub.subscribe(b"a")
            assert pub.recv() == b"\1a"
            sub.unsubscribe("a")
            assert pub.recv() == b"\0a"
        with pytest.raises(zmq.EndpointNotFound):
            sub.disconnect(pub.last_endpoint)
        endpoint = pub.last_endpoint
        pub.unbind(endpoint)
        with pytest.raises(zmq.EndpointNotFound):
            pub.unbind(endpoint)


def test_a_copy_is_the_same_socket_and_closes_nothing_when_it_is_collected(pair: tuple[zmq.Socket, zmq.Socket]) -> None:
    a, b = pair
    for second in (copy.copy(a), copy.deepcopy(a), zmq.Socket(a), zmq.Socket.shadow(a.underlying), zmq.Socket.shadow(copy.copy(a))):
        assert second is not a
        assert (second.underlying, second.context, second.socket_type) == (a.underlying, a.context, zmq.PAIR)
        second.sndhwm = 7
        second.send(b"x")
        assert (a.sndhwm, copy.copy(b).recv()) == (7, b"x")
        with second.get_monitor_socket() as monitor:
            assert a.get_monitor_socket() is monitor
            second.disable_monitor()
        del second
        gc.collect()
        assert not a.closed
    assert b.underlying != a.underlying


def test_closing_a_copy_closes_the_socket_and_its_context_can_end() -> None:
    context = zmq.Context()
    a = context.socket(zmq.PUB)
    second = copy.copy(a)
    second.close()
    assert a.closed
    with pytest.raises(zmq.ZMQError) as refused:
        a.send(b"x")
    assert refused.value.errno == zmq.ENOTSOCK
    context.term()
    assert context.closed


async def test_what_runs_on_another_event_loop_is_no_copy() -> None:
    async with core.Context() as context:
        ours = context.socket(core.PUB)
        assert copy.copy(ours) is copy.deepcopy(ours) is core.Socket.shadow(ours) is ours.underlying is ours
        with pytest.raises(zmq.ZMQError, match="event loop"):
            zmq.Socket.shadow(ours)
    for kind in (zmq.Socket, core.Socket):
        with pytest.raises(TypeError, match="not a"):
            kind.shadow(0x7F00)  # type: ignore[arg-type]


def test_a_function_that_runs_on_the_event_loop_is_refused_what_would_wait_for_it(pair: tuple[zmq.Socket, zmq.Socket]) -> None:
    a, b = pair
    a.send(b"x")
    for call in (b.recv, lambda: b.send(b"y"), lambda: b.poll(0), lambda: b.linger):
        a.send(b"x")
        with pytest.raises(zmq.WrongOwner, match="wait for itself"):
            b.recv_serialized(lambda _, call=call: call())  # type: ignore[misc]
    a.send_serialized(b"z", lambda text: [text, *b.recv_multipart()])
    assert b.recv_multipart() == [b"z", b"x"]
