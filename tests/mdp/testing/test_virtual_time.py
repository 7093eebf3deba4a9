"""mdp.testing: a loop that never sleeps, and takes the same course each time."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import pytest

import mdp
import mdp.testing
from core.runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Callable


def loud(request: mdp.Request) -> bytes:
    return request.body[0].upper()


def test_an_hour_passes_while_a_broker_serves() -> None:
    async def main() -> float:
        clock = asyncio.get_running_loop().time
        begun = clock()
        async with mdp.testing.broker(services={"loud": loud}) as local:
            await asyncio.sleep(3600)
            assert await local.client.request("loud", b"x") == [b"X"]
            with pytest.raises(mdp.NoService):
                await local.client.request("missing", b"x")
            assert local.broker.stats["workers"] == 1, "heartbeats were sent meanwhile"
        return clock() - begun

    real = time.monotonic()
    assert 3600 <= mdp.testing.run(main()) < 3602
    assert time.monotonic() - real < 1800, "it did not sleep"


def test_time_stands_still_while_a_plain_function_runs_and_none_is_lost() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with mdp.testing.broker(services={"loud": loud}) as local:
            begun = loop.time()
            replies = await asyncio.gather(*(local.client.request("loud", b"%d" % number) for number in range(50)))
            assert replies == [[b"%d" % number] for number in range(50)]
            assert await asyncio.to_thread(threading.get_ident) != threading.get_ident()
            assert loop.time() - begun < 1.0

    mdp.testing.run(main())


def test_time_stands_still_while_a_pool_works() -> None:
    """As the reader of a journal does."""

    async def main() -> None:
        pool = runtime.current().pool(1, "works")
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def work() -> None:
            time.sleep(0.05)
            loop.call_soon_threadsafe(done.set)

        for _ in range(2):
            pool.submit(work)
            await asyncio.sleep(60)
            assert done.is_set()
            done.clear()
        pool.shutdown()
        with pytest.raises(RuntimeError):
            pool.submit(work)
        await asyncio.sleep(60)

    real = time.monotonic()
    mdp.testing.run(main())
    assert time.monotonic() - real < 60, "it slept"


def test_time_goes_on_after_a_thread_has_taken_several_jobs_at_once() -> None:
    """As the writer of a journal does."""

    async def main() -> None:
        jobs = runtime.current().queue()
        taken = asyncio.Event()
        loop = asyncio.get_running_loop()

        def work() -> None:
            assert [jobs.get(), jobs.get_nowait(), jobs.get_nowait()] == [1, 2, 3]
            loop.call_soon_threadsafe(taken.set)
            assert jobs.get() is None

        for number in (1, 2, 3):
            jobs.put(number)
        thread = runtime.current().thread("works", work)
        await taken.wait()
        await asyncio.sleep(60)
        jobs.put(None)
        thread.join()

    real = time.monotonic()
    mdp.testing.run(main())
    assert time.monotonic() - real < 60, "it slept"


def test_a_plain_function_that_waits_for_its_cancellation_gets_it() -> None:
    seen = threading.Event()

    def waits(request: mdp.Request) -> bytes:
        while not request.cancelled:
            time.sleep(0.001)
        seen.set()
        return b""

    async def main() -> None:
        async with mdp.testing.broker(services={"waits": waits}) as local:
            with pytest.raises(mdp.DeadlineExceeded):
                await local.client.request("waits", b"x", deadline=0.5)
            assert await asyncio.to_thread(seen.wait, 60)

    mdp.testing.run(main())


def test_the_same_seed_takes_the_same_course() -> None:
    async def main() -> list[object]:
        clock = asyncio.get_running_loop().time
        course: list[object] = [runtime.current().random_bytes(8), runtime.current().chance().random(), runtime.current().wall_ns()]

        async def slow(request: mdp.Request) -> bytes:
            await asyncio.sleep(3.0)
            return b"slow"

        async with mdp.testing.broker(services={"slow": slow}) as local:
            first = local.client.request("slow", b"x", timeout=30.0)
            await asyncio.sleep(0.1)
            await local.lose_worker("slow")
            await local.add_worker("slow", slow)
            course += [await first, clock()]
        return course

    assert mdp.testing.run(main(), seed=7) == mdp.testing.run(main(), seed=7)
    assert mdp.testing.run(main(), seed=8)[:2] != mdp.testing.run(main(), seed=7)[:2]
    assert runtime.current() is runtime.SYSTEM


def test_a_test_that_waits_for_what_never_comes_ends() -> None:
    async def waits_with_a_broker() -> None:
        async with mdp.testing.broker():
            await asyncio.Event().wait()

    async def waits_alone() -> None:
        await asyncio.Event().wait()

    with pytest.raises(mdp.testing.VirtualTimeout, match=r"not ended within 60 s of virtual time"):
        mdp.testing.run(waits_with_a_broker(), limit_s=60)
    with pytest.raises(mdp.testing.VirtualTimeout, match="nothing can cause"):
        mdp.testing.run(waits_alone())


@pytest.mark.parametrize("factory", [mdp.testing.VirtualLoop, lambda: mdp.testing.VirtualLoop(seed=3)])
def test_the_loop_is_a_factory_for_frameworks(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> float:
        await asyncio.sleep(1000)
        return runtime.current().monotonic() - asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(main()) == 0.0
        assert runner.run(main()) == 0.0
    assert runtime.current() is runtime.SYSTEM


def test_sockets_of_the_system_work_in_real_time() -> None:
    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello\n"
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()

    mdp.testing.run(main())
