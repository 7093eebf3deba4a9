"""`mdp.SyncClient` from threads; broker and workers run on a loop in a thread of their own, as another process would."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator  # noqa: TC003  # annotations of services are needed at run time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

import core
from mdp.broker.broker import Broker
from mdp.client.sync import SyncClient
from mdp.errors import BadArguments, ClientClosed, HandlerError, NoService, Unreachable
from mdp.worker.handler import service
from mdp.worker.worker import Worker
from tests.scenes.forked_child import in_child
from tests.scenes.mdp_handlers import NO_LISTENER, echo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdp.request import Request


async def fail(request: Request) -> bytes:
    raise ValueError


async def count(request: Request) -> AsyncIterator[bytes]:
    for n in range(int(request.body[0])):
        yield b"%d" % n


@service("letters")
async def letters(text: str) -> AsyncIterator[str]:
    for letter in text:
        yield letter


class Town:
    """A broker with workers on a thread."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.begun = threading.Event()
        self.cancelled = threading.Event()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))
        self._thread.start()
        assert self._ready.wait(100)

    async def _serve(self) -> None:
        async def forever(request: Request) -> bytes:
            self.begun.set()
            try:
                await asyncio.sleep(3600)
            finally:
                self.cancelled.set()
            return b""

        async with AsyncExitStack() as stack:
            broker = await stack.enter_async_context(Broker(start_hold_ms=0))
            self.endpoint = broker.bind("tcp://127.0.0.1:*")
            for handler in (echo, fail, count, forever, letters):
                await stack.enter_async_context(Worker(self.endpoint, handler.__name__, handler=handler, drain_s=0))
            while len(broker.machine.directory.workers) < 5:
                await asyncio.sleep(0.001)
            self._ready.set()
            await self._over.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def town() -> Iterator[Town]:
    made = Town()
    yield made
    made.close()


@pytest.fixture
def client(town: Town) -> Iterator[SyncClient]:
    with SyncClient(town.endpoint, timeout=100) as made:
        yield made


def test_a_request_and_its_reply(client: SyncClient) -> None:
    assert client.request("echo", b"a", b"") == [b"a", b""]
    assert client.connected
    assert client.counters.replied == 1


def test_errors_are_raised_where_the_call_is(client: SyncClient) -> None:
    with pytest.raises(NoService):
        client.request("nobody", b"x")
    with pytest.raises(HandlerError):
        client.request("fail", b"x")
    with pytest.raises(TypeError):
        client.request("echo", "text")  # type: ignore[arg-type]
    with pytest.raises(core.LocalProtocolError):
        client.request("", b"x")


def test_no_broker_is_unreachable() -> None:
    with SyncClient(NO_LISTENER, timeout=0.02, attempts=2) as client, pytest.raises(Unreachable):
        client.request("echo", b"x")


def test_threads_share_one_client(client: SyncClient) -> None:
    def ask(n: int) -> list[bytes]:
        return [client.request("echo", b"%d-%d" % (n, k))[0] for k in range(50)]

    with ThreadPoolExecutor(16) as pool:
        replies = [*pool.map(ask, range(16))]
    assert replies == [[b"%d-%d" % (n, k) for k in range(50)] for n in range(16)]


def test_many_requests_in_flight_from_one_thread(client: SyncClient) -> None:
    futures = [client.submit("echo", b"%d" % n) for n in range(1000)]
    assert [future.result(100) for future in futures] == [[b"%d" % n] for n in range(1000)]


def test_a_callback_of_a_future_is_refused_what_would_wait_for_itself(town: Town) -> None:
    """It runs in the thread of the client, which gets no reply while it waits."""
    said: Future[list[str]] = Future()
    with SyncClient(town.endpoint, timeout=100) as client:

        def calls(_: Future[list[bytes]]) -> None:
            found = []
            for waits in (client.close, lambda: client.request("echo", b"y"), lambda: [*client.map("echo", [b"y"])]):
                try:
                    waits()
                except core.WrongOwner as error:
                    found.append(str(error))
            said.set_result(found)

        client.submit("echo", b"x").add_done_callback(calls)
        assert ["would wait for itself" in text for text in said.result(timeout=100.0)] == [True] * 3
        assert client.request("echo", b"z") == [b"z"]


def test_cancelling_the_future_cancels_the_request(town: Town, client: SyncClient) -> None:
    future = client.submit("forever", b"x")
    assert town.begun.wait(100)  # a request no handler was called for is dropped without one
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result(100)
    assert town.cancelled.wait(100)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)  # of SystemExit, which ends a thread in silence elsewhere
def test_no_call_waits_for_ever_when_the_loop_has_ended(town: Town, client: SyncClient) -> None:
    """A callback of the user, called in the loop's thread, may end that."""

    def leave(_: object) -> None:
        raise SystemExit

    waiting = client.submit("forever", b"x", timeout=3600)
    assert town.begun.wait(100)
    client.submit("echo", b"x").add_done_callback(leave)
    with pytest.raises(ClientClosed):
        waiting.result()
    with pytest.raises(ClientClosed):
        client.request("echo", b"x")


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000])
@pytest.mark.parametrize("window", [1, 5, 256])
def test_map_yields_outcomes_in_order(client: SyncClient, size: int, window: int) -> None:
    outcomes = [*client.map("echo", (b"%d" % n for n in range(size)), window=window)]
    assert [outcome.index for outcome in outcomes] == [*range(size)]
    assert [outcome.reply for outcome in outcomes] == [[b"%d" % n] for n in range(size)]


def test_map_reads_no_further_than_its_window(client: SyncClient) -> None:
    read = yielded = peak = 0

    def bodies() -> Iterator[bytes]:
        nonlocal read
        for _ in range(500):
            read += 1
            yield b"x"

    for _ in client.map("echo", bodies(), window=40):
        peak = max(peak, read - yielded)
        yielded += 1
    assert (yielded, read) == (500, 500)
    assert peak <= 40


def test_map_reads_its_iterable_in_the_thread_of_the_caller(client: SyncClient) -> None:
    threads = set()

    def bodies() -> Iterator[bytes]:
        for _ in range(100):
            threads.add(threading.current_thread())
            yield b"x"

    assert sum(1 for _ in client.map("echo", bodies())) == 100
    assert threads == {threading.current_thread()}


def test_map_has_errors_as_outcomes_and_keys_by_index(client: SyncClient) -> None:
    keys: list[int] = []

    def key(index: int) -> str:
        keys.append(index)
        return f"row-{index}"

    outcomes = [*client.map("fail", [b"x"] * 70, key=key, window=100)]
    assert all(isinstance(outcome.error, HandlerError) for outcome in outcomes)
    assert keys == [*range(70)]
    with pytest.raises(ValueError, match="window"):
        next(client.map("echo", [b"x"], window=0))


def test_leaving_map_early_cancels_what_is_in_flight(town: Town, client: SyncClient) -> None:
    town.cancelled.clear()
    first = next(iter(client.map("echo", [b"x"] * 100)))
    assert first.reply == [b"x"]
    outcomes = client.map("forever", [b"x"] * 10, window=10, timeout=2.0, attempts=1)
    assert next(outcomes).error is not None
    outcomes.close()
    assert town.cancelled.wait(100)


def test_a_stream_part_by_part(client: SyncClient) -> None:
    assert [*client.stream("count", b"5")] == [[b"%d" % n] for n in range(5)]
    parts = client.stream("count", b"500")
    assert next(parts) == [b"0"]
    parts.close()
    with pytest.raises(HandlerError):
        next(client.stream("fail", b"x"))


def test_a_typed_stream_value_by_value(town: Town, client: SyncClient) -> None:
    values = client.call_stream("letters", "abc", result=str)
    assert next(values) == "a"
    assert [*values] == ["b", "c"]
    assert [*client.call_stream("letters", "")] == []
    values = client.call_stream("letters", "abc" * 1000, result=str)
    assert next(values) == "a"
    values.close()
    with pytest.raises(BadArguments):
        next(client.call_stream("letters", 7))


def test_mmi(client: SyncClient) -> None:
    assert client.mmi("service", "echo") == "200"
    assert client.mmi("service", "nobody") == "404"


def test_closing_fails_what_is_open_in_every_thread(town: Town) -> None:
    client = SyncClient(town.endpoint, timeout=60)
    futures = [client.submit("forever", b"x") for _ in range(5)]
    client.close()
    client.close()
    for future in futures:
        with pytest.raises(ClientClosed):
            future.result(100)
    for call in (client.request, client.submit):
        with pytest.raises(ClientClosed):
            call("echo", b"x")
    with pytest.raises(ClientClosed):
        client.mmi("service", "echo")
    with pytest.raises(ClientClosed):
        next(client.map("echo", [b"x"]))


def test_closing_while_other_threads_ask_leaves_none_of_them_waiting(town: Town) -> None:
    for _ in range(20):
        client = SyncClient(town.endpoint, timeout=60)
        ended: list[Any] = []

        def ask(client: SyncClient = client, ended: list[Any] = ended) -> None:
            try:
                while True:
                    client.request("echo", b"x")
            except ClientClosed as error:
                ended.append(error)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        while not client.connected:
            pass
        client.close()
        for thread in threads:
            thread.join(100)
        assert len(ended) == 4


def test_wrong_arguments_leave_no_thread_behind(town: Town) -> None:
    before = threading.active_count()
    with pytest.raises(core.ZMQError):
        SyncClient("nonsense")
    with pytest.raises(core.ZMQError):
        SyncClient(town.endpoint, socket_options={"no_such_option": 1})
    gc.collect()
    assert threading.active_count() == before


async def test_a_running_loop_is_not_affected(town: Town) -> None:
    """A notebook's: asked for in pyzmq #236, #1443, jupyter/notebook #4312."""
    with SyncClient(town.endpoint) as client:
        assert client.request("echo", b"x") == [b"x"]
    await asyncio.sleep(0)


def test_a_client_of_the_parent_process_says_so_in_the_child(client: SyncClient) -> None:
    """Fault P7: after a fork there is no thread to answer."""

    def ask() -> str:
        try:
            client.request("echo", b"x")
        except RuntimeError as error:
            client.close()
            return str(error)
        return "an answer"

    assert "after the fork" in in_child(ask)
    assert client.request("echo", b"x") == [b"x"]


def test_a_program_that_forgets_to_close_ends(town: Town) -> None:
    program = f"import mdp.client.sync; print(mdp.client.sync.SyncClient({town.endpoint!r}).request('echo', b'x'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("[b'x']\n", "", 0)
