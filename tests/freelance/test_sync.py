"""`freelance.SyncClient` from threads; the server runs on a loop in its own thread."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

import pytest

import core
import freelance

if TYPE_CHECKING:
    from collections.abc import Iterator

    Model = Literal[1, 2, 3]

MODELS: tuple[Model, ...] = (1, 2, 3)
NOBODY = "tcp://127.0.0.1:9"  # the discard port: nothing listens there


class Town:
    """An echoing server for each model, on a thread."""

    def __init__(self) -> None:
        self.endpoints: dict[Model, str] = {}
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))
        self._thread.start()
        assert self._ready.wait(100)

    async def _serve(self) -> None:
        async with (
            freelance.Server("tcp://127.0.0.1:*", lambda body: body, model=1) as one,
            freelance.Server("tcp://127.0.0.1:*", lambda body: body, model=2) as two,
            freelance.Server("tcp://127.0.0.1:*", lambda body: body, model=3) as three,
        ):
            self.endpoints = {1: one.endpoint, 2: two.endpoint, 3: three.endpoint}
            self._ready.set()
            await self._over.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def town() -> Iterator[Town]:
    made = Town()
    yield made
    made.close()


@pytest.mark.parametrize("model", MODELS)
def test_requests_from_many_threads(town: Town, model: Model) -> None:
    with (
        freelance.SyncClient([NOBODY, town.endpoints[model]], model=model, timeout=100, try_timeout=2) as client,
        ThreadPoolExecutor(8) as threads,
    ):
        bodies = [b"%d" % n for n in range(50)]
        assert list(threads.map(client.request, bodies)) == [[body] for body in bodies]


def test_servers_change(town: Town) -> None:
    with freelance.SyncClient([NOBODY], timeout=100) as client:
        client.add_server(town.endpoints[3])
        assert client.request(b"x") == [b"x"]
        assert client.live == [town.endpoints[3]]
        client.remove_server(town.endpoints[3])
        with pytest.raises(core.EndpointNotFound):
            client.remove_server(town.endpoints[3])
        with pytest.raises(freelance.NoServer):
            client.request(b"x", timeout=0.05)
        assert client.counters["gave_up"] == 1


def test_a_cancelled_future_forgets_its_request() -> None:
    with freelance.SyncClient([NOBODY], outstanding_max=1) as client:
        first = client.submit(b"x")
        first.cancel()
        with pytest.raises(CancelledError):
            first.result()
        for _ in range(2):  # two event-loop iterations: the task is cancelled, the task ends
            assert client.live == []
        with pytest.raises(freelance.NoServer):
            client.request(b"y", timeout=0.05)


def test_close_fails_what_is_open_and_may_be_called_twice() -> None:
    client = freelance.SyncClient([NOBODY])
    open_one = client.submit(b"x")
    assert client.live == []  # a call after it has been handed over, so the request has been made
    client.close()
    client.close()
    with pytest.raises(freelance.ClientClosed):
        open_one.result()
    with pytest.raises(freelance.ClientClosed):
        client.request(b"x")


def test_what_cannot_be() -> None:
    with pytest.raises(ValueError):
        freelance.SyncClient([])
    with pytest.raises(core.InvalidEndpoint):
        freelance.SyncClient(["tcp://a"])
    assert not [thread for thread in threading.enumerate() if thread.name == "freelance-client"]


def test_a_forked_copy_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with freelance.SyncClient([NOBODY]) as client:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            client.close()
            with pytest.raises(RuntimeError, match="fork"):
                client.request(b"x")
        with pytest.raises(freelance.NoServer):
            client.request(b"x", timeout=0.05)
