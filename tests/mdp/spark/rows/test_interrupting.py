"""Abandoned jobs are interrupted by threads of `SparkWorker`, in any state of its loop; no Java."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import msgpack
import pyarrow as pa
import pytest

import mdp.testing
from mdp.errors import HandlerError
from mdp.spark import SparkLimits, SparkWorker
from tests.scenes.fault_injection import sabotaged
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "mdp spark interrupt"
TABLE = pa.table({"a": [1]})


class Job:
    """A session and its jobs, which run until they are interrupted; `deaf` ones until they are released."""

    def __init__(self, deaf: bool = False) -> None:
        self.began, self.interrupted, self.free = threading.Semaphore(0), threading.Semaphore(0), threading.Event()
        self.tags: set[str] = set()
        self.deaf = deaf

    def newSession(self) -> Job:
        return self

    def addTag(self, tag: str) -> None:
        assert tag

    removeTag = addTag

    def sql(self, query: str, args: object) -> Job:
        return self

    def interruptTag(self, tag: str) -> None:
        self.tags.add(tag)
        self.interrupted.release()
        if not self.deaf:
            self.free.set()

    def limit(self, rows: int) -> Job:
        return self

    def toArrow(self) -> Any:
        self.began.release()
        self.free.wait()
        return TABLE


def run(session: Any, frames: Sequence[bytes]) -> Any:
    return session


def interrupters() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


async def given_up(job: Any, services: Sequence[str] = ("run",), **options: Any) -> None:
    """Ask each service once, and leave when as many jobs run as may."""
    async with mdp.testing.broker() as local:
        functions = dict.fromkeys(services, run)
        async with SparkWorker(job, local.endpoint, sql=None, functions=functions, context=local.context, drain_s=0, **options):
            asked = [asyncio.ensure_future(local.client.request(service, wait=True, timeout=60)) for service in services]
            for _ in services[:2]:
                await asyncio.to_thread(job.began.acquire)
            for one in asked:
                one.cancel()
            await asyncio.wait(asked)


def test_interrupting_ends_with_the_job_though_the_loop_has_ended() -> None:
    job = Job(deaf=True)
    asyncio.run(given_up(job))
    assert job.interrupted.acquire()
    threads = interrupters()
    assert len(threads) == 1
    job.free.set()
    threads[0].join()


@pytest.mark.faults
async def test_a_job_is_interrupted_though_the_thread_that_does_it_failed() -> None:
    job = Job()
    with sabotaged(NAME) as supervisor:
        await given_up(job)
        await eventually(lambda: not interrupters())
    assert (len(job.tags), supervisor.restarts) == (1, {NAME: 1})


async def test_jobs_are_interrupted_though_they_have_every_thread_and_what_waits_does_not_begin() -> None:
    job = Job(deaf=True)
    await given_up(job, ("one", "two", "three"), limits=SparkLimits(concurrency=1))
    while len(job.tags) < 2:
        await asyncio.to_thread(job.interrupted.acquire)
    job.free.set()
    await eventually(lambda: not interrupters())
    assert not job.began.acquire(blocking=False)


class Hung(Job):
    """A session whose Java process answers nothing while a new session is asked for, until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.wakes = threading.Event()
        self.sessions = 0
        self.asked_by: set[threading.Thread] = set()

    def newSession(self) -> Job:
        self.asked_by.add(threading.current_thread())
        if threading.current_thread() is not threading.main_thread():
            self.began.release()
            self.wakes.wait()
        self.sessions += 1
        return self


async def test_a_java_process_that_hangs_does_not_hold_up_the_heartbeats() -> None:
    """SPW-06: a request ends at its time, and what begins afterwards is interrupted."""
    job = Hung()
    async with mdp.testing.broker() as local:
        limits = SparkLimits(run_s=0.1)
        async with SparkWorker(job, local.endpoint, sql=None, functions={"run": run}, limits=limits, context=local.context):  # type: ignore[arg-type]
            with pytest.raises(HandlerError, match="TIME_LIMIT"):
                await local.client.request("run", wait=True, timeout=60)
            assert threading.main_thread() not in job.asked_by
            assert job.tags == set()
            job.wakes.set()
            await eventually(lambda: not interrupters())
    assert (job.sessions, len(job.tags)) == (1, 1)


async def test_requests_of_one_name_that_come_together_have_one_session() -> None:
    job = Hung()
    options = msgpack.packb({"session": "mine"})
    async with mdp.testing.broker() as local:
        async with SparkWorker(job, local.endpoint, context=local.context) as worker:  # type: ignore[arg-type]
            asked = [asyncio.ensure_future(local.client.request("spark.sql", b"q", options, wait=True, timeout=60)) for _ in range(2)]
            await asyncio.to_thread(job.began.acquire)
            job.wakes.set()
            job.free.set()
            await asyncio.gather(*asked)
            assert (job.sessions, list(worker.sessions)) == (1, ["mine"])


async def test_the_session_of_a_request_that_runs_is_not_idle() -> None:
    """It was dropped when another request came later than `session_idle_s`, and its client lost its views."""
    job = Job(deaf=True)
    async with mdp.testing.broker() as local:
        limits = SparkLimits(session_idle_s=1e-9)
        async with SparkWorker(job, local.endpoint, limits=limits, context=local.context) as worker:  # type: ignore[arg-type]
            asked = []
            for name in ("mine", "other"):
                options = msgpack.packb({"session": name})
                asked.append(asyncio.ensure_future(local.client.request("spark.sql", b"q", options, wait=True, timeout=60)))
                await asyncio.to_thread(job.began.acquire)
            assert list(worker.sessions) == ["mine", "other"]
            job.free.set()
            await asyncio.gather(*asked)


class Done(Job):
    """A session whose jobs have this result at once."""

    def __init__(self, table: pa.Table) -> None:
        super().__init__()
        self.table = table

    def toArrow(self) -> Any:
        return self.table


async def parts_of(table: pa.Table, **options: str) -> list[list[bytes]]:
    async with mdp.testing.broker() as local:
        async with SparkWorker(Done(table), local.endpoint, context=local.context):  # type: ignore[arg-type]
            asked = local.client.stream("spark.sql", b"q", msgpack.packb(options), wait=True, timeout=60)
            return [part async for part in asked]


@pytest.mark.parametrize("kind", ["arrow", "msgpack"])
async def test_large_rows_are_few_in_a_part(kind: str) -> None:
    """Ten thousand of them, as of small ones, are more than a broker passes on."""
    parts = await parts_of(pa.table({"a": [bytes(2**20)] * 11}), format=kind)
    assert max(len(part[0]) for part in parts if part[0]) < 5 * 2**20
    assert sum(len(part[0]) for part in parts) > 11 * 2**20


async def test_two_columns_of_one_name_are_no_map() -> None:
    """One of them was left out of the reply."""
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(HandlerError, match="DUPLICATE_COLUMNS: a"):
        await parts_of(table, format="msgpack")
    (part,) = await parts_of(table, format="arrow")
    assert pa.ipc.open_stream(part[0]).read_all().column_names == ["a", "a"]
