"""`titanic serve --bstar`: two processes, killed, suspended and both down, under a steady client; each request is answered exactly once.

`make soak` goes on until so many were killed as `SOAK_KILLS` says (500 with each `--mirror-away`); `SOAK_SEED` says which and when.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import bstar
import mdp
import titanic
from bstar.machine.wire import RequestKind
from bstar.operator import order

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from tests.scenes.programs import Program, Programs

HEARTBEAT_MS = 400
ROLES = ("primary", "backup")
KILLS_SOAK = int(os.environ.get("SOAK_KILLS", "500"))
T = TypeVar("T")


def arguments(n: int, broker: str, *more: str) -> tuple[str, ...]:
    return (
        "titanic", "serve", "--broker", broker, "--store", f"store{n}", "--segment-bytes", "65536",
        "--bstar", ROLES[n], "--bstar-local", f"ipc://state{n}", "--bstar-remote", f"ipc://state{1 - n}",
        "--bstar-control", f"ipc://control{n}", "--bstar-store", f"ballot{n}", "--bstar-heartbeat-ms", str(HEARTBEAT_MS),
        "--mirror", f"ipc://mirror{1 - n}", "--mirror-bind", f"ipc://mirror{n}", *more,
    )  # fmt: skip


class Scene:
    """A witness and two Titanics in processes of their own, and a broker, a worker and a steady client here.

    Attributes:
        answers: by the body of a request, how often it was answered with what.
        killed: how many processes were.
    """

    def __init__(self, programs: Programs, broker: mdp.Broker, endpoint: str, more: tuple[str, ...]) -> None:
        self.programs = programs
        self.broker = broker
        self.endpoint = endpoint
        self.more = more
        self.running: list[Program | None] = [None, None]
        self.answers: dict[bytes, list[bytes]] = {}
        self.asked = 0
        self.killed = 0
        self.stopping = False

    async def start(self, n: int) -> None:
        program = self.running[n] = self.programs.start(*arguments(n, self.endpoint, *self.more))
        await asyncio.to_thread(program.said, "titanic is one of two")
        Thread(target=_read_on, args=(program,), daemon=True).start()

    def kill(self, n: int) -> None:
        program, self.running[n] = self.running[n], None
        if program is not None:
            self.killed += 1
            program.kill()

    async def status(self, n: int) -> dict[str, Any]:
        try:
            return await order(f"ipc://{self.programs.folder}/control{n}", RequestKind.STATUS, 2.0)
        except TimeoutError:
            return {"service": {"part": "no answer"}}

    async def settled(self) -> int:
        """Return the serving half, once its mirror is in step and may take over."""
        while True:
            both = [(await self.status(n))["service"] for n in (0, 1)]
            for n in (0, 1):
                if both[n].get("mirror") == "in step" and both[n].get("state") == "serving" and both[1 - n].get("may_take_over_s"):
                    return n

    async def ask(self) -> None:
        """Submit, wait, close, without end: a steady client."""
        async with titanic.Client(self.endpoint, timeout=2.0, attempts=100) as client:
            while not self.stopping:
                self.asked += 1
                body = b"%d" % self.asked
                ticket = await _until_taken(partial(client.submit, "echo", body, key=body.decode()))
                self.answers.setdefault(body, []).extend(await ticket.result(200))
                await _until_taken(ticket.close)

    def judge(self) -> None:
        assert len(self.answers) == self.asked
        assert all(given == [body] for body, given in self.answers.items())


async def _until_taken(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again while a store without its mirror refuses."""
    while True:
        try:
            return await ask()
        except titanic.Unavailable:
            await asyncio.sleep(0.05)


def _read_on(program: Program) -> None:
    """Read the log of a program, so that its pipe never blocks."""
    assert program.process.stderr is not None
    with suppress(ValueError):  # closed at its end
        for _ in program.process.stderr:
            pass


@asynccontextmanager
async def scene(programs: Programs, *more: str) -> AsyncIterator[Scene]:
    async def echo(request: mdp.Request) -> list[bytes]:
        return list(request.body)

    async with mdp.Broker() as broker:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        programs.start("bstar", "witness", "--bind", "ipc://witness", "--heartbeat-ms", str(HEARTBEAT_MS)).said("witness runs")
        async with mdp.Worker(endpoint, "echo", handler=echo):
            stage = Scene(programs, broker, endpoint, ("--bstar-witness", "ipc://witness", *more))
            for n in (0, 1):
                await stage.start(n)
            await stage.settled()
            asking = [asyncio.ensure_future(stage.ask()) for _ in range(3)]
            try:
                yield stage
                stage.stopping = True
                await asyncio.gather(*asking)
                stage.judge()
            finally:
                for one in asking:
                    one.cancel()
                await asyncio.gather(*asking, return_exceptions=True)


async def answered_more(stage: Scene, count: int = 10) -> None:
    """Wait until so many requests more were answered."""
    before = len(stage.answers)
    while len(stage.answers) < before + count:
        await asyncio.sleep(0.01)


async def answered_or_waits(stage: Scene, n: int) -> None:
    """Wait until requests were answered, or until this one says that it does nothing without the other.

    It was late, or is strict.
    """
    before = len(stage.answers)
    while len(stage.answers) < before + 10:
        service = (await stage.status(n))["service"]
        if service["part"] == "asks the other half" or service.get("state", "").startswith("the mirror is"):
            return


async def act(stage: Scene, name: str, random: Random) -> None:
    """Do one thing to the two, and wait until requests are answered again."""
    leader = await stage.settled()
    await answered_more(stage, random.randrange(1, 20))
    program = stage.running[leader]
    assert program is not None
    if name == "kill the active one":
        stage.kill(leader)
        await answered_or_waits(stage, 1 - leader)
        await stage.start(leader)
    elif name == "kill the mirror":
        stage.kill(1 - leader)
        await answered_or_waits(stage, leader)
        await stage.start(1 - leader)
    elif name == "suspend the active one":
        program.signal(signal.SIGSTOP)
        await answered_or_waits(stage, 1 - leader)
        program.signal(signal.SIGCONT)
    elif name == "hand over":
        with suppress(bstar.NotActive, TimeoutError):
            await order(f"ipc://{stage.programs.folder}/control{leader}", RequestKind.SWITCHOVER, 20.0)
    else:
        both = [leader, 1 - leader]
        for n in both if random.random() < 0.5 else both[::-1]:
            stage.kill(n)
        for n in both if random.random() < 0.5 else both[::-1]:
            await stage.start(n)
    await answered_more(stage)


ACTS = ("kill the active one", "suspend the active one", "both down", "kill the mirror", "hand over")


async def play(programs: Programs, away: str, acts: Sequence[str], random: Random) -> None:
    async with scene(programs, "--mirror-away", away, "--mirror-window", "3") as stage:
        for name in acts:
            await act(stage, name, random)


@pytest.mark.long
@pytest.mark.timeout(400)  # processes are started again and again, on a machine that may be busy
def test_each_request_is_answered_once_whatever_happens_to_the_two(programs: Programs) -> None:
    """F1, F4, BEY-08, BST-44: kill -9, SIGSTOP, both down, a switchover; the rest continues alone, and nothing accepted is lost."""
    asyncio.run(play(programs, "go-on", ACTS, Random(1)))


@pytest.mark.soak
@pytest.mark.parametrize("away", ["go-on", "refuse"])
def test_many_of_the_two_are_killed(programs: Programs, away: str) -> None:
    seed = int(os.environ.get("SOAK_SEED", str(time.time_ns())))
    print(f"\nSOAK_SEED={seed}")  # noqa: T201
    random = Random(seed)

    async def until_so_many_are() -> None:
        acts = 0
        async with scene(programs, "--mirror-away", away, "--mirror-window", "3") as stage:
            while stage.killed < KILLS_SOAK:
                await act(stage, random.choice(ACTS), random)
                acts += 1
        print(f"{away}: {acts} acts, {stage.killed} killed, {stage.asked} requests answered")  # noqa: T201

    asyncio.run(until_so_many_are())


@pytest.mark.parametrize(
    ("more", "warned"),
    [
        (("--mirror-away", "go-on"), True),
        (("--mirror-away", "go-on", "--bstar-witness", "ipc://witness"), False),
        (("--mirror-away", "refuse"), False),
    ],
)
def test_what_two_without_a_witness_can_lose_is_said_at_the_start(programs: Programs, more: tuple[str, ...], warned: bool) -> None:
    program = programs.start(*arguments(0, "ipc://broker", *more))
    said = program.said("200 means"), program.said("titanic is one of two" if not warned else "without --bstar-witness")
    assert ("lower ballot acknowledged alone is lost" in said[1]) == warned
    assert program.stop().code == 0


def test_a_window_that_ends_before_a_fail_over_is_said_at_the_start(programs: Programs) -> None:
    for window_s, warned in ((3 * HEARTBEAT_MS / 1000, True), (4 * HEARTBEAT_MS / 1000, False)):
        program = programs.start(*arguments(0, "ipc://broker", "--mirror-away", "go-on", "--mirror-window", f"{window_s}"))
        program.said("titanic is one of two")
        assert any("not longer than a fail-over takes" in line for line in program.read) == warned
        assert program.stop().code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--bstar", "primary", "--bstar-local", "ipc://a", "--bstar-remote", "ipc://b"), "--mirror-bind"),
        (("--mirror-bind", "ipc://a"), "--mirror-bind"),
        (("--bstar", "primary", "--bstar-local", "ipc://a"), "--bstar-remote"),
    ],
)
def test_half_a_pair_is_2(programs: Programs, options: tuple[str, ...], words: str) -> None:
    ended = programs.run("titanic", "serve", "--store", "s", *options)
    assert (ended.code, words in ended.err) == (2, True)
