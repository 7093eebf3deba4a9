"""Handlers that do not end when they are cancelled.

They are named and counted, and keep neither their worker nor its program.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mdp.wire.commands import WORKER_CANCEL_03, WORKER_FINAL_03
from mdp.worker.worker import Worker
from tests.scenes.mdp_scripted_broker import StandIn, give, token
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from mdp.client.client import Client
    from mdp.request import Request
    from tests.scenes.programs import Programs

LOG = "mdp.worker"


class Stubborn:
    """Handlers that go on until the test ends, whatever they meet.

    Args:
        ignored: what they ignore.
    """

    def __init__(self, ignored: type[BaseException]) -> None:
        self.end = asyncio.Event()
        self.thread_end = threading.Event()
        self.ignored = ignored

    async def coroutine(self, request: Request) -> bytes:
        while not self.end.is_set():
            try:
                await self.end.wait()
            except self.ignored:
                pass
        return b"late"

    async def generator(self, request: Request) -> AsyncIterator[bytes]:
        yield await self.coroutine(request)

    def thread(self, request: Request) -> bytes:
        self.thread_end.wait(60)
        return b"late"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what ignores everything complains at its end
@pytest.mark.parametrize("ignored", [asyncio.CancelledError, BaseException])
@pytest.mark.parametrize("kind", ["coroutine", "generator", "thread"])
async def test_a_worker_ends_though_its_handler_does_not(
    endpoint: str, client: Client, caplog: pytest.LogCaptureFixture, kind: str, ignored: type[BaseException]
) -> None:
    stubborn = Stubborn(ignored)
    handler: Any = getattr(stubborn, kind)
    with caplog.at_level(logging.WARNING, LOG):
        async with Worker(endpoint, "job", handler=handler, drain_s=0, cancel_s=0.05) as worker:
            replies = [client.request("job", b"x", wait=True) for _ in range(3)]
            await eventually(lambda: worker.running == 3)
    assert worker.runner_counters.left == 3
    assert f"Stubborn.{kind}" in caplog.text
    assert not [task for task in asyncio.all_tasks() if "runner" in task.get_name()], "the end of the loop would wait for them"
    stubborn.end.set()
    stubborn.thread_end.set()
    for reply in replies:
        reply.cancel()


async def test_a_cancelled_handler_may_clean_up_for_as_long_as_it_may(endpoint: str, client: Client) -> None:
    cleaned = asyncio.Event()

    async def handler(request: Request) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            cleaned.set()
        return b""

    async with Worker(endpoint, "job", handler=handler, drain_s=0, cancel_s=60) as worker:
        reply = client.request("job", b"x", wait=True)
        await eventually(lambda: worker.running)
    assert cleaned.is_set()
    assert worker.runner_counters.left == 0
    reply.cancel()


async def test_a_thread_sees_that_its_worker_ends(endpoint: str, client: Client) -> None:
    ended = threading.Event()

    def handler(request: Request) -> bytes:
        while not request.cancelled:
            ended.wait(0.001)
        ended.set()
        return b""

    async with Worker(endpoint, "job", handler=handler, drain_s=0, cancel_s=60) as worker:
        reply = client.request("job", b"x", wait=True)
        await eventually(lambda: worker.running)
    assert ended.is_set()
    assert worker.runner_counters.left == 0
    reply.cancel()


async def test_a_program_that_drained_does_not_drain_again_when_it_leaves(endpoint: str, client: Client) -> None:
    stubborn = Stubborn(asyncio.CancelledError)
    async with Worker(endpoint, "job", handler=stubborn.coroutine, drain_s=3600, cancel_s=0.01) as worker:
        reply = client.request("job", b"x", wait=True)
        await eventually(lambda: worker.running)
        assert not await worker.drain(0.01)
    reply.cancel()


async def test_a_worker_all_of_whose_handlers_ignore_their_cancellation_says_that_it_is_stuck(
    stand_in: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    stubborn = Stubborn(asyncio.CancelledError)
    options: dict[str, Any] = {"concurrency": 2, "cancel_s": 0.05}
    with caplog.at_level(logging.WARNING, LOG):
        async with Worker(stand_in.endpoint, "job", handler=stubborn.coroutine, **options) as worker:
            peer, _ = await stand_in.next()
            for number in range(2):
                give(stand_in, peer, number)
            await eventually(lambda: worker.running == 2)
            for number in range(2):
                stand_in.send(peer, WORKER_CANCEL_03 + token(number))
            await eventually(lambda: worker.runner_counters.overdue == 2)
            assert "Stubborn.coroutine goes on" in caplog.text
            await asyncio.sleep(0.1)
            assert worker.stuck == "", "nobody waits for anything"
            give(stand_in, peer, 2)
            await eventually(lambda: worker.stuck)
            assert worker.stuck.startswith("1 requests wait and nothing runs")
            stubborn.end.set()
            assert {(await stand_in.next())[1][0] for _ in range(3)} == {WORKER_FINAL_03 + token(n) for n in range(3)}
            assert worker.stuck == ""


async def test_a_worker_with_long_handlers_is_not_stuck(stand_in: StandIn) -> None:
    stubborn = Stubborn(asyncio.CancelledError)
    async with Worker(stand_in.endpoint, "job", handler=stubborn.coroutine, concurrency=1, cancel_s=0.01) as worker:
        peer, _ = await stand_in.next()
        give(stand_in, peer, 1)
        give(stand_in, peer, 2)
        await eventually(lambda: (worker.running, worker.waiting) == (1, 1))
        for _ in range(3):
            assert worker.stuck == ""
            await asyncio.sleep(0.02)
        stubborn.end.set()
        assert [(await stand_in.next())[1][0] for _ in range(2)] == [WORKER_FINAL_03 + token(n) for n in (1, 2)]


# ------------------------------------------------------------------------------------------------------------------------------- processes

PROGRAM = """
import asyncio, time
import mdp.testing

async def endless(request):
    begun.set()
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def everything(request):
    begun.set()
    while True:
        try:
            await asyncio.sleep(3600)
        except BaseException:
            pass

def thread(request):
    asyncio.run_coroutine_threadsafe(set_begun(), loop)
    time.sleep(3600)

async def set_begun():
    begun.set()

async def main():
    global begun, loop
    begun, loop = asyncio.Event(), asyncio.get_running_loop()
    async with mdp.testing.broker() as local:
        async with mdp.Worker(local.endpoint, "job", handler={handler}, context=local.context, drain_s=0, cancel_s=0.1):
            local.client.request("job", b"x", wait=True)
            await begun.wait()
    print("left")

asyncio.run(main())
"""


@pytest.mark.parametrize("handler", ["endless", "everything", "thread"])
def test_a_program_ends_though_a_handler_of_it_does_not(handler: str) -> None:
    """`everything`: at the end of the interpreter its coroutine would be torn down, survive that, and go round for ever."""
    program = PROGRAM.format(handler=handler)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr
    assert f"handler {handler} does not end 0.1 s after it was cancelled" in done.stderr


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_worker_that_is_cancelled_while_it_closes_leaves_nothing_the_loop_waits_for(endpoint: str, client: Client) -> None:
    stubborn = Stubborn(BaseException)
    async with Worker(endpoint, "job", handler=stubborn.coroutine, drain_s=0, cancel_s=60) as worker:
        reply = client.request("job", b"x", wait=True)
        await eventually(lambda: worker.running == 1)
        closing = asyncio.create_task(worker.__aexit__(None, None, None))
        await eventually(lambda: any(task.cancelling() for task in asyncio.all_tasks() if "runner" in task.get_name()))
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        assert not [task for task in asyncio.all_tasks() if "runner" in task.get_name()]
        stubborn.end.set()
    reply.cancel()


APP = """
import asyncio, logging, time
import mdp

@mdp.service("swallows")
async def swallows(request):
    logging.error("begun")
    while True:
        try:
            await asyncio.sleep(3600)
        except BaseException:
            pass

@mdp.service("sleeps")
def sleeps(request):
    logging.error("begun")
    time.sleep(3600)
"""
MORE = """
async def everything():
    logging.error("begun")
    while True:
        try:
            await asyncio.sleep(3600)
        except BaseException:
            pass

@mdp.service("starts")
async def starts(request):
    await asyncio.gather(everything(), everything())

@mdp.service("forgets")
async def forgets(request):
    forgotten.append(asyncio.create_task(everything()))
    return b""

@mdp.service("pools")
async def pools(request):
    logging.error("begun")
    await asyncio.to_thread(time.sleep, 3600)

forgotten = []
"""


@pytest.mark.parametrize(
    ("service", "left"), [("starts", "(everything)"), ("forgets", "(everything)"), ("pools", "a call in a thread of the loop's pool")]
)
async def test_a_worker_process_ends_though_what_its_handler_has_started_does_not(
    programs: Programs, tmp_path: Path, endpoint: str, client: Client, service: str, left: str
) -> None:
    (tmp_path / "app.py").write_text(APP + MORE)
    worker = programs.start("mdp", "worker", "--broker", endpoint, "--app", "app", "--drain-s", "0.1", "--cancel-s", "0.1")
    reply = client.request(service, b"x", wait=True)
    await asyncio.to_thread(worker.said, "begun")
    ended = await asyncio.to_thread(worker.stop)
    assert ended.code == 0
    assert "ending with tasks or threads that do not end" in ended.err
    assert left in ended.err
    reply.cancel()


async def test_handlers_of_all_services_of_a_process_end_within_one_timeout(
    programs: Programs, tmp_path: Path, endpoint: str, client: Client
) -> None:
    """Their worker is cut off from the drain, two seconds after it, when they take longer.

    Each of them would have four in turn.
    """
    services = [f"s{n}" for n in range(5)]
    handlers = "".join(
        f"""
@mdp.service("{name}")
async def {name}(request):
    logging.error("begun {name}")
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(1)
        logging.error("cleaned up {name}")
"""
        for name in services
    )
    (tmp_path / "app.py").write_text("import asyncio, logging\nimport mdp\n" + handlers)
    worker = programs.start("mdp", "worker", "--broker", endpoint, "--app", "app", "--drain-s", "0", "--cancel-s", "4")
    replies = []
    for name in services:
        replies.append(client.request(name, b"x", wait=True))
        await asyncio.to_thread(worker.said, f"begun {name}")
    ended = await asyncio.to_thread(worker.stop)
    assert ended.code == 0
    assert [name for name in services if f"cleaned up {name}" not in ended.err] == []
    for reply in replies:
        reply.cancel()


@pytest.mark.parametrize("service", ["swallows", "sleeps"])
async def test_a_worker_process_ends_though_its_handler_does_not(
    programs: Programs, tmp_path: Path, endpoint: str, client: Client, service: str
) -> None:
    (tmp_path / "app.py").write_text(APP)
    worker = programs.start("mdp", "worker", "--broker", endpoint, "--app", "app", "--drain-s", "0.1", "--cancel-s", "0.1")
    reply = client.request(service, b"x", wait=True)
    await asyncio.to_thread(worker.said, "begun")
    ended = await asyncio.to_thread(worker.stop)
    assert ended.code == 0
    assert f"handler {service} does not end" in ended.err
    reply.cancel()


STUCK_APP = """
import asyncio
import json
import mdp

@mdp.service("job", concurrency=2, heartbeat_ms=50, liveness=1000)
async def job(request):
    begun.append(True)
    while not going_on:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            pass
    return b"done"

@mdp.service("begun")
async def how_many(request):
    return b"%d" % len(begun)

@mdp.service("go-on")
async def go_on(request):
    going_on.append(True)
    return b""

begun = []
going_on = []
"""


async def test_a_stuck_worker_shows_in_readiness_metrics_and_in_what_the_broker_knows_until_it_gets_on(
    programs: Programs, tmp_path: Path, endpoint: str, client: Client
) -> None:
    (tmp_path / "app.py").write_text(STUCK_APP)
    worker = programs.start("mdp", "worker", "--broker", endpoint, "--app", "app", "--cancel-s", "0.2", "--http", "127.0.0.1:0")
    port = (await asyncio.to_thread(worker.said, "http serves")).strip().rpartition("port=")[2]

    async def get(path: str) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        text = (await reader.read()).decode()
        writer.close()
        return text

    async def says(path: str, words: str) -> None:
        async with asyncio.timeout(60):
            while words not in await get(path):
                await asyncio.sleep(0.05)

    async def broker_says(stuck: bool) -> None:
        async with asyncio.timeout(60):
            while [row["stuck"] for row in json.loads((await client.request("mmi.workers", b"job"))[1])] != [stuck]:
                await asyncio.sleep(0.05)

    late = [client.request("job", b"x", wait=True, timeout=60) for _ in range(2)]
    async with asyncio.timeout(60):
        while await client.request("begun", b"", wait=True) != [b"2"]:  # a request that is cancelled before runs no handler
            await asyncio.sleep(0.05)
    await broker_says(stuck=False)
    for one in late:
        one.cancel()
    held = client.request("job", b"x", timeout=60)
    await says("/readyz", "job is stuck: 1 requests wait and nothing runs")
    assert " 503 " in (await get("/readyz")).splitlines()[0]
    await says("/metrics", 'mdp_worker_stuck{service="job"} 1')
    await broker_says(stuck=True)
    assert await asyncio.to_thread(worker.said, "stuck: 1 requests wait")
    assert await client.request("go-on", b"x") == [b""]
    assert await held == [b"done"]
    await broker_says(stuck=False)
    await says("/readyz", "200 OK")
