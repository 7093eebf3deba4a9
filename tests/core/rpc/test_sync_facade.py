"""core.rpc.sync_facade: entering, leaving, and iterators that are left early."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from core.errors import ClientClosed
from core.rpc.sync_facade import SyncFacade

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator


class Client:
    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault
        self.thread: threading.Thread | None = None
        self.left = 0
        self.ended: list[str] = []
        self.waits = threading.Event()

    async def __aenter__(self) -> Client:
        self.thread = threading.current_thread()
        if self.fault is not None:
            raise self.fault
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.left += 1

    async def slow(self) -> AsyncGenerator[int, None]:
        """Yield one value, and take some time to end."""
        try:
            yield 0
            self.waits.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            self.ended.append("slow")

    async def parts(self) -> AsyncGenerator[int, None]:
        try:
            for n in range(3):
                yield n
        finally:
            self.ended.append("parts")


class Facade(SyncFacade[Client]):
    def __init__(self, client: Client) -> None:
        super().__init__(client, "test-client", ClientClosed)

    def where(self) -> threading.Thread:
        return self._call(threading.current_thread)

    def slow(self) -> Generator[int, None, None]:
        return self._iterate(self._client.slow())

    def parts(self) -> Generator[int, None, None]:
        return self._iterate(self._client.parts())


def test_calls_run_on_the_thread_of_the_client() -> None:
    client = Client()
    with Facade(client) as facade:
        assert facade.where() is client.thread is not threading.current_thread()
        assert client.thread is not None
        assert client.thread.name == "test-client"
    assert client.left == 1
    assert not client.thread.is_alive()
    facade.close()
    assert client.left == 1
    with pytest.raises(ClientClosed):
        facade.where()


def test_a_client_that_cannot_be_entered_leaves_no_thread() -> None:
    client = Client(OSError("no"))
    with pytest.raises(OSError, match="no"):
        Facade(client)
    assert client.thread is not None
    assert not client.thread.is_alive()


def test_an_iterator_ends_where_it_is_left() -> None:
    client = Client()
    with Facade(client) as facade:
        assert list(facade.parts()) == [0, 1, 2]
        assert client.ended == ["parts"]
        with closing(facade.parts()) as parts:
            assert next(parts) == 0
        assert client.ended == ["parts"] * 2
        late = facade.parts()
        assert next(late) == 0
    with pytest.raises(ClientClosed):
        next(late)


def test_an_iterator_that_is_interrupted_while_it_waits_ends_with_that(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()

    def interrupted(done: Future[Any]) -> None:
        client.waits.wait()
        monkeypatch.undo()
        raise KeyboardInterrupt  # as by Ctrl-C, which a signal in a test may miss

    with Facade(client) as facade:
        parts = facade.slow()
        assert next(parts) == 0
        monkeypatch.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(parts)
        assert client.ended == ["slow"]
