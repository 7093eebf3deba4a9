"""core.blocking.context: life of blocking contexts, their defaults, and the loop thread they share."""

from __future__ import annotations

import copy
import gc
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

import core
import core.blocking as zmq
from core.blocking import shared_loop
from core.blocking.shared_loop import LOOP
from core.runtime.loop_thread import LoopThread
from tests.scenes.forked_child import in_child
from tests.scenes.waiting import PATIENCE_S


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "core blocking sockets"]


def test_the_loop_thread_ends_with_the_last_context() -> None:
    with zmq.Context(), zmq.Context():
        assert len(loop_threads()) == 1
    assert loop_threads() == []
    with zmq.Context() as context:  # and begins again
        context.socket(zmq.PUB).close()
    assert loop_threads() == []


def test_term_waits_until_the_sockets_are_closed_and_ends_their_calls() -> None:
    context = zmq.Context()
    socket = context.socket(zmq.PULL)
    ended = threading.Thread(target=context.term)
    ended.start()
    with pytest.raises(zmq.ContextTerminated):
        socket.recv()
    assert ended.is_alive()
    socket.close()
    ended.join(PATIENCE_S)
    assert not ended.is_alive()
    assert context.closed
    context.term()  # nothing happens the second time


def test_messages_are_sent_before_term_returns() -> None:
    with zmq.Context() as receiving:
        pull = receiving.socket(zmq.PULL)
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        with zmq.Context() as sending, sending.socket(zmq.PUSH) as push:
            push.connect(f"tcp://127.0.0.1:{port}")
            for number in range(100):
                push.send(b"%d" % number)
        assert [pull.recv() for _ in range(100)] == [b"%d" % number for number in range(100)]
        pull.close()


def test_a_block_closes_what_is_open_and_says_so() -> None:
    with pytest.warns(ResourceWarning, match="left open"), zmq.Context() as context:
        socket = context.socket(zmq.PUB)
    assert socket.closed
    with pytest.raises(zmq.ContextTerminated):
        context.socket(zmq.PUB)
    with pytest.raises(zmq.SocketClosed):
        socket.send(b"x")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_forgotten_context_ends_by_itself() -> None:
    context = zmq.Context()
    context.socket(zmq.PUB)
    del context
    gc.collect()
    assert loop_threads() == []


def test_the_instance_is_one_for_a_process_until_it_is_closed() -> None:
    first = zmq.Context.instance()
    assert zmq.Context.instance(3) is first
    first.term()
    second = zmq.Context.instance(3)
    assert (second is first, second.IO_THREADS) == (False, 3)
    second.term()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_gets_an_instance_of_its_own_and_no_use_of_its_parents() -> None:
    context = zmq.Context.instance()
    socket = context.socket(zmq.PULL)

    def receive() -> str:
        said = ""
        try:
            socket.recv(zmq.NOBLOCK)
        except core.WrongOwner:
            said = "refused "
        own = zmq.Context.instance()
        with own.socket(zmq.PAIR) as a, own.socket(zmq.PAIR) as b:
            a.bind("inproc://child")
            b.connect("inproc://child")
            a.send(b"own")
            said += b.recv().decode()
        return said

    assert in_child(receive) == "refused own"
    socket.close()
    context.term()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_that_was_forked_while_another_thread_made_a_context_makes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, forked, parent = threading.Event(), threading.Event(), os.getpid()

    def loop_thread(*arguments: Any) -> LoopThread:
        if os.getpid() == parent:
            begun.set()
            forked.wait(PATIENCE_S)
        return LoopThread(*arguments)

    monkeypatch.setattr(shared_loop, "LoopThread", loop_thread)
    maker = threading.Thread(target=lambda: zmq.Context().term())
    maker.start()
    assert begun.wait(PATIENCE_S)

    def make() -> str:
        signal.alarm(int(PATIENCE_S))  # ends a child that waits for ever
        with zmq.Context() as own, own.socket(zmq.PULL) as socket:
            return repr(socket)

    assert in_child(make) == "<core.blocking.Socket PULL>"
    forked.set()
    maker.join()


def test_a_term_that_ctrl_c_interrupts_can_be_called_again() -> None:
    context = zmq.Context()
    socket = context.socket(zmq.PULL)
    main = threading.get_ident()

    def press() -> None:
        with pytest.raises(zmq.ContextTerminated):
            socket.recv()  # the term has begun
        signal.pthread_kill(main, signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        context.term()
    pressing.join()
    assert not context.closed
    socket.close()
    context.term()
    assert context.closed
    assert loop_threads() == []


LEFT = """
import threading
import core.blocking as zmq

context = zmq.Context()
there = threading.Barrier(4)

def leave(wait):
    socket = context.socket(zmq.PAIR)
    there.wait()
    while True:
        try:
            wait(socket)
        except zmq.ZMQError as error:
            print(error)

def polled(socket):
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.poll()

for wait in (lambda socket: socket.recv(), lambda socket: socket.send(b""), polled):
    threading.Thread(target=leave, args=(wait,), daemon=True).start()
there.wait()
for _ in range(100):  # calls are served by turns
    context.socket(zmq.PUB).close()
print("end")
"""


def test_threads_that_are_left_waiting_at_the_end_of_a_program_say_nothing() -> None:
    """As with libzmq: the process ends with them."""
    done = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [b"end"], b"")


def test_options_of_a_context() -> None:
    with pytest.raises(zmq.InvalidOption):
        zmq.Context(-1)
    with zmq.Context() as context:
        context.max_sockets = 1
        assert (context.MAX_SOCKETS, context.get(zmq.SOCKET_LIMIT), context.get(zmq.MAX_MSGSZ)) == (1, 65535, 64 * 2**20)
        with context.socket(zmq.PUB), pytest.raises(zmq.ZMQError, match="max_sockets"):
            context.socket(zmq.PUB)
        for option, value in ((zmq.MAX_SOCKETS, -1), (zmq.SOCKET_LIMIT, 1), (99, 1)):
            with pytest.raises(zmq.InvalidOption):
                context.set(option, value)
        context.rcvtimeo = 7
        assert context.RCVTIMEO == context.getsockopt(zmq.RCVTIMEO) == 7
        with pytest.raises(AttributeError):
            context.no_such_option = 1  # type: ignore[attr-defined]  # a mistake
        assert not hasattr(context, "scheduler")
        assert {"IO_THREADS", "max_sockets", "linger"} <= set(dir(context))
        assert "open socket" in repr(context)


def test_work_for_a_loop_that_has_ended_is_dropped() -> None:
    done: list[int] = []
    LOOP.end()
    LOOP.soon(lambda: done.append(1))
    assert (done, loop_threads()) == ([], [])


def test_a_copy_is_the_same_context_and_ends_nothing_when_it_is_collected() -> None:
    context = zmq.Context()
    second = zmq.Context.shadow(context.underlying)
    third = copy.deepcopy(second)
    assert third.underlying == copy.copy(context).underlying == zmq.Context(context).underlying == context
    sockets = [one.socket(zmq.PUB) for one in (context, second, third)]
    assert ("1 open socket" in repr(second), "3 open sockets" in repr(context)) == (True, True)
    second.linger = 3
    assert context.linger == 3
    del second
    gc.collect()
    assert not context.closed
    for socket in sockets:
        socket.close()
    context.term()
    with pytest.raises(zmq.ContextTerminated) as refused:
        third.socket(zmq.PUB)
    assert refused.value.errno == zmq.EFAULT
    third.term()  # nothing more to do


def test_the_end_of_a_copy_is_the_end_of_the_context() -> None:
    context = zmq.Context()
    context.socket(zmq.PUB).close()
    with copy.copy(context) as second, second.socket(zmq.PUB):
        pass
    assert (context.closed, second.closed) == (True, True)
    context.term()


async def test_what_runs_on_another_event_loop_is_no_copy() -> None:
    async with core.Context() as ours:
        assert copy.copy(ours) is copy.deepcopy(ours) is core.Context.shadow(ours) is ours.underlying is ours
        with pytest.raises(zmq.ZMQError, match="event loop"):
            zmq.Context.shadow(ours)
        with zmq.Context() as blocking, pytest.raises(zmq.ZMQError, match="event loop"):
            core.Context.shadow(blocking)  # type: ignore[arg-type]
    for kind in (zmq.Context, core.Context):
        with pytest.raises(TypeError, match="not a"):
            kind.shadow(0x7F00)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not a number"):
        core.Context(ours)  # type: ignore[arg-type]
