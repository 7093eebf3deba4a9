"""Single brokers with workers of every kind and clients of every dialect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator  # noqa: TC003  # likewise
from typing import TYPE_CHECKING, Any

import mdp
from mdp.request import Request  # noqa: TC001  # annotations of services are needed at run time
from tests.sim.cluster.faults import CLOCK, NETWORK, PROCESS
from tests.sim.cluster.scenario import scenario
from tests.sim.cluster.scenarios.promises import answers, watch_broker, watch_brokers
from tests.sim.cluster.threads import blocked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.sim.cluster.history import Operation
    from tests.sim.cluster.process import Body, Process
    from tests.sim.cluster.scenario import Play

PORT = 5555
HEARTBEAT_MS = 1000
ATTEMPTS, TIMEOUT_S = 3, 3.0
BOUND_S = ATTEMPTS * TIMEOUT_S + 1.0
MODES = ("plain", "plain", "once", "key", "deadline", "wait")
WAITING_MAX = 20  # open requests of one client; a broken broker must not fill the memory


def endpoint(play: Play, host: str) -> str:
    return f"tcp://{play.ip(host)}:{PORT}"


def broker(play: Play, **options: Any) -> Body:
    """Return the body of a single broker."""

    async def body(process: Process) -> None:
        async with mdp.Broker(heartbeat_ms=HEARTBEAT_MS, **options) as served:
            served.bind(f"tcp://{process.host.ip}:{PORT}")
            watch_broker(process, served)
            await play.forever(process)

    return body


def echo(play: Play, process: Process) -> Any:
    """Return a handler that notes its executions; a request is its number."""

    async def handle(request: Request) -> bytes:
        operation = play.history.run(int(request.body[0]), process.name)
        await asyncio.sleep(play.random.expovariate(20.0))
        return reply_of(operation)

    return handle


def echo_thread(play: Play, process: Process) -> Any:
    """Return the same as a plain function, for threads."""

    def handle(request: Request) -> bytes:
        operation = play.history.run(int(request.body[0]), process.name)
        blocked("sleeps").block(0.01 + 0.1 * play.random.random())
        return reply_of(operation)

    return handle


def echo_parts(play: Play, process: Process) -> Any:
    """Return the same as a generator, whose last part is the reply."""

    async def handle(request: Request) -> AsyncIterator[bytes]:
        operation = play.history.run(int(request.body[0]), process.name)
        for _ in range(3):
            await asyncio.sleep(0.01)
        yield reply_of(operation)

    return handle


def reply_of(operation: Operation) -> bytes:
    """Return the reply of the present execution."""
    return (operation.key or operation.id) + b" %d.%d" % (operation.number, len(operation.runs))


HANDLERS = {"coroutine": echo, "thread": echo_thread, "parts": echo_parts}


def worker(play: Play, brokers: str | Sequence[str], service: str = "echo", kind: str = "coroutine", **options: Any) -> Body:
    """Return the body of a worker."""

    async def body(process: Process) -> None:
        handler = HANDLERS[kind](play, process)
        async with mdp.Worker(brokers, service, handler=handler, heartbeat_ms=HEARTBEAT_MS, drain_s=2.0, **options):
            await play.forever(process)

    return body


def client(
    play: Play,
    brokers: str | Sequence[str],
    *,
    service: str = "echo",
    dialect: str = "auto",
    every_s: float = 1.0,
    timeout_s: float = TIMEOUT_S,
    attempts: int = ATTEMPTS,
    modes: Sequence[str] = MODES,
) -> Body:
    """Return the body of a client that asks again and again, in every mode its dialect has."""
    modes = ("plain",) if dialect != "auto" else modes
    bound_s = attempts * timeout_s + 1.0

    async def body(process: Process) -> None:
        life = process.life
        asking: set[asyncio.Task[None]] = set()
        async with mdp.Client(brokers, timeout=timeout_s, attempts=attempts, dialect=dialect, heartbeat_ms=HEARTBEAT_MS) as asked:
            process.things["asked"] = asked, asking
            ending = asyncio.ensure_future(play.forever(process))
            while not ending.done():
                if len(asking) < WAITING_MAX and not play.stopping:
                    mode = play.random.choice(modes)
                    number = play.random.randrange(len(play.history.operations) // 4 + 1) if mode == "key" else 0
                    key = f"{service}-{number}".encode() if mode == "key" else b""  # a key belongs to a service
                    operation = play.history.begin(process.name, life, mode, bound_s, key)
                    task = asyncio.ensure_future(_ask(play, asked, service, operation))
                    asking.add(task)
                    task.add_done_callback(asking.discard)
                await asyncio.wait([ending], timeout=play.random.expovariate(1 / every_s))
            if asking:
                await asyncio.wait(asking)

    return body


async def _ask(play: Play, asked: mdp.Client, service: str, operation: Operation) -> None:
    options: dict[str, Any] = {}
    if operation.mode == "once":
        options["once"] = True
    elif operation.mode == "key":
        options["key"] = operation.key
    elif operation.mode == "deadline":
        options["deadline"] = 2.0
    elif operation.mode == "wait":
        options["wait"] = True
    try:
        reply = await asked.request(service, b"%d" % operation.body, **options)
    except mdp.RequestError as error:
        play.history.settle(operation, None, type(error).__name__)
    else:
        play.history.settle(operation, b"".join(reply))


def app_worker(play: Play, brokers: str | Sequence[str], kinds: Mapping[str, str]) -> Body:
    """Return the body of an app: several services, each with a kind of handler, on one connection."""

    async def body(process: Process) -> None:
        app = mdp.App()
        for name, kind in kinds.items():
            app.service(name)(HANDLERS[kind](play, process))
        async with app.serve(brokers, heartbeat_ms=HEARTBEAT_MS, drain_s=2.0):
            await play.forever(process)

    return body


@scenario(kinds=PROCESS + NETWORK + CLOCK, minutes=10.0)
def one_broker(play: Play) -> None:
    """One broker, four workers of three kinds, three clients of two dialects; everything may crash, and every link may fail."""
    there = endpoint(play, "broker")
    play.add("broker", broker(play))
    for number, kind in enumerate(("coroutine", "coroutine", "thread", "parts")):
        play.add(f"worker-{number}", worker(play, there, kind=kind), f"host-{number % 2}")
    for number, dialect in enumerate(("auto", "auto", "0.1")):
        play.add(f"client-{number}", client(play, there, dialect=dialect), f"desk-{number}")
    watch_brokers(play, workers=4)
    answers(play, "client-0", "client-1", "client-2")
    play.finals.append(lambda: play.history.check_answers({"plain": 0.5}))


@scenario(kinds=PROCESS + NETWORK + CLOCK, minutes=10.0)
def shared_connections(play: Play) -> None:
    """One broker, three apps of three services, each on one connection, and a client of each service; everything may crash."""
    there = endpoint(play, "broker")
    play.add("broker", broker(play))
    kinds = {"first": "coroutine", "second": "thread", "third": "parts"}
    for number in range(3):
        play.add(f"app-{number}", app_worker(play, there, kinds), f"host-{number}")
    for service in kinds:
        play.add(f"client-{service}", client(play, there, service=service), f"desk-{service}")
    watch_brokers(play, workers=9)
    answers(play, *(f"client-{service}" for service in kinds))
    play.finals.append(lambda: play.history.check_answers({"plain": 0.5}))
