"""Programs of users: handlers that take their time and clean up, with callers that do not wait for them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import mdp
from tests.sim.cluster.faults import PROCESS
from tests.sim.cluster.scenario import scenario
from tests.sim.cluster.scenarios.majordomo import HEARTBEAT_MS, PORT, client, endpoint, reply_of
from tests.sim.cluster.scenarios.promises import LATE_S, SETTLED_S, answers, watch_broker, watch_brokers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mdp.request import Request
    from tests.sim.cluster.history import Operation
    from tests.sim.cluster.process import Body, Process
    from tests.sim.cluster.scenario import Play

LONGEST_S = 6.0  # a handler, three times the deadline
CLEAN_UP_S = 1.0
DRAIN_S = 0.2
CANCEL_S = 4.0
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
        if took_s > DRAIN_S + CANCEL_S + LATE_S and process.resumed_at < asked_at and process.host.stopped is None:
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
