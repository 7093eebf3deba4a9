"""Programs of users: handlers that take their time and clean up; apps with middleware, resources, streams and progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator  # noqa: TC003 - an app looks at the annotations of its functions
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import mdp
from mdp.request import Request  # noqa: TC001
from tests.sim.cluster.faults import CLOCK, NETWORK, PROCESS
from tests.sim.cluster.scenario import scenario
from tests.sim.cluster.scenarios.majordomo import HEARTBEAT_MS, PORT, WAITING_MAX, client, endpoint, reply_of
from tests.sim.cluster.scenarios.promises import LATE_S, SETTLED_S, answers, one_serves, watch_broker, watch_brokers
from tests.sim.cluster.scenarios.redundancy import HALVES
from tests.sim.cluster.scenarios.shards import SHARDS, front, shard
from tests.sim.cluster.scenarios.titanic_stores import WITNESS_PORT, paired_broker, witness
from tests.sim.cluster.threads import blocked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.sim.cluster.history import Operation
    from tests.sim.cluster.process import Body, Process
    from tests.sim.cluster.scenario import Play

LONGEST_S = 6.0  # a handler, three times the deadline
CLEAN_UP_S = 1.0
DRAIN_S = 0.2
CANCEL_S = 4.0
LINGER_S = 1.0  # of the last words of a worker
PATIENT_S = 25.0
OWN_CANCEL = 0.03  # share of the handlers that cancel their own task
STUBBORN = 0.01  # share of the handlers that ignore their cancellation for so long
STUBBORN_S = 90.0
PLACES = 3


async def _work(play: Play, process: Process, request: Request) -> bytes:
    """Take some time, and clean up whatever happens; the clean-up must not be disturbed."""
    operation = play.history.run(int(request.body[0]), process.name)
    if play.random.random() < STUBBORN and play.healed_at is None:
        await _ignore(process)
    cancelled = False
    own = play.random.random() < OWN_CANCEL and play.healed_at is None
    try:
        if own:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await asyncio.sleep(min(play.random.expovariate(1.0), LONGEST_S))
        return reply_of(operation)
    except asyncio.CancelledError:
        cancelled = not own  # else its worker may cancel it, too
        raise
    finally:
        try:
            await asyncio.sleep(CLEAN_UP_S)
        except asyncio.CancelledError:
            if cancelled:
                play.world.violated(f"{process.name}: the clean-up of request {operation.number} was cut short")
            raise


async def _ignore(process: Process) -> None:
    """Ignore every cancellation for a long time."""
    process.things["stubborn"] += 1
    loop = asyncio.get_running_loop()
    until = loop.time() + STUBBORN_S
    while loop.time() < until:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(until - loop.time())


def cleaning_worker(play: Play, brokers: str | Sequence[str], *, parts: bool = False) -> Body:
    """Return the body of a worker of such handlers, coroutines or generators."""

    async def body(process: Process) -> None:
        async def coroutine(request: Request) -> bytes:
            return await _work(play, process, request)

        async def generator(request: Request) -> AsyncIterator[bytes]:
            yield await _work(play, process, request)

        handler: Any = generator if parts else coroutine
        options: dict[str, Any] = {"concurrency": PLACES, "heartbeat_ms": HEARTBEAT_MS, "drain_s": DRAIN_S, "cancel_s": CANCEL_S}
        served = mdp.Worker(brokers, "echo", handler=handler, **options)
        process.things.update(worker=served, stubborn=0)
        async with served:
            await play.forever(process)
            asked_at = play.world.now
        took_s = play.world.now - asked_at
        if took_s > DRAIN_S + CANCEL_S + LINGER_S + LATE_S and process.resumed_at < asked_at and process.host.stopped is None:
            play.world.violated(f"{process.name} took {took_s:.1f} s to end")
        if served.runner_counters.left > process.things["stubborn"]:
            play.world.violated(f"{process.name} left {served.runner_counters.left} handlers that were cleaning up")

    return body


def draining_broker(play: Play) -> Body:
    """Return the body of a broker that drains for a moment, and then cancels all that is open."""

    async def body(process: Process) -> None:
        async with mdp.Broker(heartbeat_ms=HEARTBEAT_MS) as served:
            served.bind(f"tcp://{process.host.ip}:{PORT}")
            watch_broker(process, served)
            await play.forever(process)
            await served.drain(DRAIN_S)

    return body


def impatient_client(play: Play, brokers: str | Sequence[str]) -> Body:
    """Return the body of a client that gives up most of its requests, at any moment."""

    async def body(process: Process) -> None:
        async with mdp.Client(brokers, timeout=PATIENT_S, attempts=2, heartbeat_ms=HEARTBEAT_MS) as asked:
            ending = asyncio.ensure_future(play.forever(process))
            while not ending.done():
                if not play.stopping:
                    operation = play.history.begin(process.name, process.life, "given up", PATIENT_S)
                    await _give_up(play, asked, operation)
                await asyncio.wait([ending], timeout=play.random.expovariate(1.0))

    return body


async def _give_up(play: Play, asked: mdp.Client, operation: Operation) -> None:
    try:
        async with asyncio.timeout(min(play.random.expovariate(1.0), LONGEST_S)):
            reply = await asked.request("echo", b"%d" % operation.body)
    except TimeoutError:
        play.history.settle(operation, None, "GivenUp")
    except mdp.RequestError as error:
        play.history.settle(operation, None, type(error).__name__)
    else:
        play.history.settle(operation, b"".join(reply))


@scenario(kinds=(*PROCESS, "stop", "stop", "reset", "reset", "cut", "isolate", "black hole"), minutes=10.0, every_s=6.0)
def clean_ups(play: Play) -> None:
    """Handlers that clean up; deadlines, callers, lost connections and ends of programs cancel them, once each."""
    there = endpoint(play, "broker")
    play.add("broker", draining_broker(play))
    for number in range(3):
        play.add(f"worker-{number}", cleaning_worker(play, there, parts=number == 2))
    play.add("client-0", client(play, there, timeout_s=PATIENT_S, attempts=1, modes=("plain", "deadline", "deadline", "once")))
    play.add("client-1", impatient_client(play, there))
    watch_brokers(play, workers=3)
    answers(play, "client-0", all_of_them=False)
    play.calm.append(partial(_all_work, play))
    play.finals.append(lambda: play.history.check_answers({"plain": 0.3, "deadline": 0.15}))


def _all_work(play: Play) -> None:
    """Demand that handlers that were cancelled have left their places to others."""
    for process in play.world.processes.values():
        served = process.things.get("worker")
        if served is not None and served.stuck:
            play.world.violated(f"{process.name} is stuck: {served.stuck}")
    until = (play.healed_at or 0.0) + SETTLED_S
    late = [one for one in play.history.operations if one.mode == "plain" and one.begun > until and one.error]
    for one in late[:3]:
        play.world.violated(f"request {one.number} of {one.client} failed in a calm world, begun at {one.begun:.3f}: {one.error}")


# ---- apps: several services on one connection, with middleware, resources, streams and progress

PARTS = 5
APP_SERVICES = ("one", "many", "thread")
APP_TIMEOUT_S = 8.0


class Pool:
    """Something the handlers of an app share, open while any of them runs."""

    def __init__(self) -> None:
        self.is_open = True
        self.used = 0


def _answer(service: str, operation: Operation, part: int = 0) -> bytes:
    return b"%d %s.%d.%d" % (operation.number, service.encode(), part, len(operation.runs))


def _app(play: Play, process: Process) -> mdp.App:
    """Return an app of three services: a coroutine that reports its progress, a generator, and a plain function."""
    app = mdp.App()

    @app.lifespan
    async def pool(app: mdp.App) -> AsyncIterator[Pool]:
        held = process.things["pool"] = Pool()
        yield held
        held.is_open = False
        if held.used:
            play.world.violated(f"{process.name} closed its pool while {held.used} handlers used it")

    @app.middleware
    async def count(request: Request, call_next: Any) -> Any:
        held: Pool = process.things["pool"]
        if not held.is_open:
            play.world.violated(f"{process.name} runs a handler without its pool")
        held.used += 1
        try:
            return await call_next(request)
        finally:
            held.used -= 1

    @app.service("one", concurrency=2)
    async def one(request: Request) -> bytes:
        operation = play.history.run(int(request.body[0]), process.name)
        for step in range(PARTS):
            request.progress(step / PARTS, f"{operation.number} {len(operation.runs)}")
            await asyncio.sleep(play.random.expovariate(10.0))
        return _answer("one", operation)

    @app.service("many", concurrency=2)
    async def many(request: Request) -> AsyncIterator[bytes]:
        operation = play.history.run(int(request.body[0]), process.name)
        run = len(operation.runs)
        for part in range(PARTS):
            await asyncio.sleep(play.random.expovariate(10.0))
            yield b"%d many.%d.%d" % (operation.number, part, run)

    @app.service("thread", concurrency=2)
    def thread(request: Request) -> bytes:
        operation = play.history.run(int(request.body[0]), process.name)
        blocked("sleeps").block(0.2 * play.random.random())
        return _answer("thread", operation)

    return app


def app_worker(play: Play, brokers: str | Sequence[str]) -> Body:
    """Return the body of a program that serves an app, whose services share a connection."""

    async def body(process: Process) -> None:
        async with _app(play, process).serve(brokers, heartbeat_ms=HEARTBEAT_MS, drain_s=1.0, cancel_s=CANCEL_S) as workers:
            process.things["workers"] = workers
            await play.forever(process)

    return body


def app_client(play: Play, brokers: str | Sequence[str], *, every_s: float = 0.7) -> Body:
    """Return the body of a client that asks the services of an app, for replies, progress and parts."""

    async def body(process: Process) -> None:
        asking: set[asyncio.Task[None]] = set()
        async with mdp.Client(brokers, timeout=APP_TIMEOUT_S, attempts=3, heartbeat_ms=HEARTBEAT_MS) as asked:
            ending = asyncio.ensure_future(play.forever(process))
            while not ending.done():
                if len(asking) < WAITING_MAX and not play.stopping:
                    service = play.random.choice(APP_SERVICES)
                    operation = play.history.begin(process.name, process.life, service, 3 * APP_TIMEOUT_S + 1.0)
                    task = asyncio.ensure_future(_ask_app(play, asked, service, operation))
                    asking.add(task)
                    task.add_done_callback(asking.discard)
                await asyncio.wait([ending], timeout=play.random.expovariate(1 / every_s))
            if asking:
                await asyncio.wait(asking)

    return body


async def _ask_app(play: Play, asked: mdp.Client, service: str, operation: Operation) -> None:
    reports: list[mdp.Progress] = []
    parts: list[bytes] = []
    try:
        if service == "many":
            async for part in asked.stream(service, operation.id):
                parts += part
        else:
            parts = [b"".join(await asked.request(service, operation.id, progress=reports.append))]
    except mdp.RequestError as error:
        play.history.settle(operation, None, type(error).__name__)
    else:
        play.history.settle(operation, parts[-1] if parts else b"")
    _check_parts(play, service, operation, parts)
    _check_progress(play, operation, reports)


def _check_parts(play: Play, service: str, operation: Operation, parts: Sequence[bytes]) -> None:
    """Check that parts are of this service and one execution, in order, and all there after a good end."""
    names = [part.partition(b" ")[2].split(b".") for part in parts if part]
    whole = operation.result is not None and service == "many"
    runs = {run for _, _, run in names}
    order = [int(number) for _, number, _ in names]
    if (
        {name for name, _, _ in names} - {service.encode()}
        or len(runs) > 1
        or order != [*range(len(order))]
        or (whole and len(order) != PARTS)
    ):
        play.world.violated(f"request {operation.number} for {service} got {[*parts]} {operation.error}")


def _check_progress(play: Play, operation: Operation, reports: Sequence[mdp.Progress]) -> None:
    """Check that progress is of this request, and does not fall within one execution."""
    highest: dict[str, float] = {}
    for report in reports:
        number, _, run = report.text.partition(" ")
        if number != str(operation.number) or (report.done or 0.0) < highest.get(run, 0.0):
            play.world.violated(f"request {operation.number} got the progress {report}, after {highest}")
        highest[run] = report.done or 0.0


def _apps(play: Play, brokers: str | Sequence[str]) -> None:
    for number in range(2):
        play.add(f"app-{number}", app_worker(play, brokers))
    for number in range(2):
        play.add(f"client-{number}", app_client(play, brokers))
    watch_brokers(play, workers=2 * len(APP_SERVICES))
    answers(play, "client-0", "client-1")
    play.finals.append(lambda: play.history.check_answers(dict.fromkeys(APP_SERVICES, 0.4)))


@scenario(kinds=PROCESS + NETWORK + CLOCK, minutes=10.0)
def apps_of_pair(play: Play) -> None:
    """Apps whose services share a connection, at a pair of brokers that fail over."""
    brokers = [endpoint(play, host) for host in HALVES]
    play.add("witness", witness(play, WITNESS_PORT, "broker"))
    for n in (0, 1):
        play.add(HALVES[n], paired_broker(play, n, HALVES))
    one_serves(play, *HALVES)
    _apps(play, brokers)


@scenario(kinds=PROCESS + NETWORK + CLOCK, minutes=10.0)
def apps_of_shards(play: Play) -> None:
    """Apps whose services share a connection to each shard of a broker, which fail one by one."""
    play.add("front", front(play), "broker")
    for number in range(SHARDS):
        play.add(f"shard-{number}", shard(play, number), "broker")
    _apps(play, endpoint(play, "broker"))
