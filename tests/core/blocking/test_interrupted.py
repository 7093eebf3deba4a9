"""An error that a signal handler raises within a blocking receive costs no message, also at the last moment (SOCK-13)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import core.blocking as zmq
from core.runtime.loop_thread import LoopThread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from concurrent.futures import Future


class Alarm(Exception):
    """Raised by the handler."""


class Interrupted:
    """A result that has come; a signal arrives before its thread has it."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def result(self) -> Any:
        self._future.result()
        raise Alarm

    def cancel(self) -> bool:
        return self._future.cancel()


@pytest.fixture
def pair() -> Iterator[tuple[zmq.Socket, zmq.Socket]]:
    with zmq.Context() as context, context.socket(zmq.PUSH) as push, context.socket(zmq.PULL) as pull:
        pull.rcvtimeo = 100_000
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        push.connect(f"tcp://127.0.0.1:{port}")
        yield push, pull


def interrupted(receive: Callable[[], object]) -> None:
    start, thread = LoopThread.start, threading.get_ident()

    def begin(loop: LoopThread, work: Coroutine[Any, Any, Any], **options: Any) -> Any:
        future = start(loop, work, **options)
        return Interrupted(future) if threading.get_ident() == thread else future

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Alarm):
        patch.setattr(LoopThread, "start", begin)
        receive()


RECEIVES: dict[str, Callable[[zmq.Socket], object]] = {
    "recv": lambda pull: pull.recv(),
    "frame": lambda pull: pull.recv(copy=False),
    "multipart": lambda pull: pull.recv_multipart(),
    "frames": lambda pull: pull.recv_multipart(copy=False),
    "string": lambda pull: pull.recv_string(),
    "into": lambda pull: pull.recv_into(bytearray(10)),
    "serialized": lambda pull: pull.recv_serialized(list),
}


@pytest.mark.parametrize("there", [True, False], ids=["the message is there", "the message comes later"])
@pytest.mark.parametrize("name", RECEIVES)
def test_a_receive_that_is_interrupted_at_the_last_moment_loses_nothing(
    name: str, there: bool, pair: tuple[zmq.Socket, zmq.Socket]
) -> None:
    push, pull = pair
    for n in range(3):
        message = [b"%d" % n, b"rest"]
        sender = threading.Timer(0 if there else 0.05, push.send_multipart, [message])
        sender.start()
        if there:
            assert pull.poll(100_000)
        interrupted(lambda: RECEIVES[name](pull))
        assert pull.recv_multipart() == message
        sender.join()


def test_other_receives_of_the_same_thread_keep_what_they_have(pair: tuple[zmq.Socket, zmq.Socket]) -> None:
    push, pull = pair
    for n in range(9):
        push.send(b"%d" % n)
    had = [pull.recv() for _ in range(3)]
    interrupted(pull.recv)
    interrupted(pull.recv)
    assert had + [pull.recv() for _ in range(6)] == [b"%d" % n for n in range(9)]


def test_the_state_of_a_reply_socket_is_that_before_the_call() -> None:
    with zmq.Context() as context, context.socket(zmq.REQ) as asks, context.socket(zmq.REP) as answers:
        answers.bind("inproc://a")
        asks.connect("inproc://a")
        asks.send(b"question")
        interrupted(answers.recv)
        assert answers.recv() == b"question"
        with pytest.raises(zmq.ZMQError) as refused:
            answers.recv()
        assert refused.value.errno == zmq.EFSM
        answers.send(b"answer")
        interrupted(asks.recv)
        assert asks.recv() == b"answer"
