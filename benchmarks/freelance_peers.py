"""Freelance on pyzmq: the same echo servers and the same clients, competently written.

``asyncio`` is zmq.asyncio on uvloop with any number of requests outstanding; ``blocking`` is the guide's client, one request at a time.
Both keep sequence numbers, take the first answer, ping servers that are silent (model 3) and give a request up after its time.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import zmq
import zmq.asyncio

from benchmarks.freelance_ours import DEAD, endpoints_of
from benchmarks.program import Meter, Options, body_of, main, ready, report, run_on_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PING_S = 2.0
DEAD_S = 6.0
TIMEOUT_S = 30.0


def serve(options: Options, model: int) -> None:
    """Serve ROUTERs in one thread: PONG for PING, everything else is echoed."""
    context = zmq.Context()
    poller = zmq.Poller()
    for endpoint in endpoints_of(options):
        router = context.socket(zmq.ROUTER)
        if model == 3:
            router.identity = endpoint.encode()
        router.bind(endpoint)
        poller.register(router, zmq.POLLIN)
    ready()
    while True:
        for router, _ in poller.poll():
            try:
                while True:
                    message = router.recv_multipart(zmq.NOBLOCK)
                    if model == 3 and message[1:] == [b"PING"]:
                        message[1] = b"PONG"
                    router.send_multipart(message)
            except zmq.Again:
                continue


class Asker:
    """Model 2 (a DEALER for each server) or 3 (a ROUTER for all) on zmq.asyncio."""

    def __init__(self, endpoints: list[str], model: int) -> None:
        self.context = zmq.asyncio.Context()
        self.number = 0
        self.open: dict[bytes, asyncio.Future[list[bytes]]] = {}
        self.heard: dict[bytes, float] = {}
        self.names = [endpoint.encode() for endpoint in endpoints]
        self.loop = asyncio.get_running_loop()
        if model == 3:
            self.router = self.context.socket(zmq.ROUTER)
            for endpoint in endpoints:
                self.router.connect(endpoint)
            self.tasks = [asyncio.create_task(self.listen_routed()), asyncio.create_task(self.ping())]
            self.request = self.request_routed
            return
        self.dealers = [self.context.socket(zmq.DEALER) for _ in endpoints]
        for dealer, endpoint in zip(self.dealers, endpoints, strict=True):
            dealer.immediate = 1
            dealer.connect(endpoint)
        self.tasks = [asyncio.create_task(self.listen(dealer)) for dealer in self.dealers]
        self.request = self.request_all

    async def listen(self, dealer: zmq.asyncio.Socket) -> None:
        while True:
            _, sequence, *body = await dealer.recv_multipart()
            self.settle(sequence, body)

    async def listen_routed(self) -> None:
        while True:
            name, *frames = await self.router.recv_multipart()
            self.heard[name] = self.loop.time()
            if len(frames) > 1:
                self.settle(frames[0], frames[1:])

    def settle(self, sequence: bytes, body: list[bytes]) -> None:
        future = self.open.pop(sequence, None)
        if future is not None and not future.done():
            future.set_result(body)

    async def ping(self) -> None:
        while True:
            now = self.loop.time()
            for name in self.names:
                if now - self.heard.get(name, 0.0) >= PING_S:
                    await self.router.send_multipart([name, b"PING"])
            await asyncio.sleep(PING_S if self.heard else 0.01)

    def begin(self) -> tuple[bytes, asyncio.Future[list[bytes]]]:
        self.number += 1
        sequence = b"%d" % self.number
        future = self.open[sequence] = self.loop.create_future()
        return sequence, future

    async def request_all(self, body: bytes) -> list[bytes]:
        sequence, future = self.begin()
        sent = 0
        while not sent:
            for dealer in self.dealers:
                try:
                    await dealer.send_multipart([b"", sequence, body], zmq.NOBLOCK)
                    sent += 1
                except zmq.Again:
                    continue  # not connected
            if not sent:
                await asyncio.sleep(0.001)
        async with asyncio.timeout(TIMEOUT_S):
            return await future

    async def request_routed(self, body: bytes) -> list[bytes]:
        while not (live := [name for name in self.names if self.loop.time() - self.heard.get(name, 0.0) < DEAD_S]):
            await asyncio.sleep(0.001)
        sequence, future = self.begin()
        await self.router.send_multipart([live[0], sequence, body])
        async with asyncio.timeout(TIMEOUT_S):
            return await future


async def keep_asking(options: Options, request: Callable[[bytes], Awaitable[list[bytes]]]) -> None:
    body = body_of(options.size)
    ready()
    await request(body)
    meter = Meter(options)

    async def one_after_another() -> None:
        going = True
        while going:
            before = time.perf_counter()
            await request(body)
            if meter.measuring:
                meter.trips.append(time.perf_counter() - before)
            going = meter.add(1)

    async with asyncio.TaskGroup() as group:
        for _ in range(options.window):
            group.create_task(one_after_another())
    report(meter.figures())


def ask(options: Options, model: int) -> None:
    """Keep `window` requests in flight, each in a task of its own."""

    async def run() -> None:
        asker = Asker([DEAD] * (options.count == 1) + endpoints_of(options), model)
        await keep_asking(options, asker.request)

    run_on_loop(run())


def ask_blocking(options: Options, model: int) -> None:
    """One request at a time, without an event loop."""
    endpoints = [DEAD] * (options.count == 1) + endpoints_of(options)
    names = [endpoint.encode() for endpoint in endpoints]
    context = zmq.Context()
    sockets = [context.socket(zmq.ROUTER if model == 3 else zmq.DEALER) for _ in (endpoints if model == 2 else [None])]
    poller = zmq.Poller()
    for socket in sockets:
        socket.immediate = 1
        poller.register(socket, zmq.POLLIN)
    for number, endpoint in enumerate(endpoints):
        sockets[number if model == 2 else 0].connect(endpoint)
    heard: dict[bytes, float] = {}
    while model == 3 and not heard:
        for name in names:
            sockets[0].send_multipart([name, b"PING"])
        if sockets[0].poll(10):
            heard[sockets[0].recv_multipart()[0]] = time.perf_counter()
    body = body_of(options.size)
    ready()
    meter = Meter(options)
    number, going = 0, True
    while going:
        before = time.perf_counter()
        number += 1
        sequence = b"%d" % number
        if model == 3:
            live = next(name for name in names if before - heard.get(name, -DEAD_S) < DEAD_S)
            sockets[0].send_multipart([live, sequence, body])
        else:
            sent = 0
            while not sent:
                for socket in sockets:
                    try:
                        socket.send_multipart([b"", sequence, body], zmq.NOBLOCK)
                        sent += 1
                    except zmq.Again:
                        continue
        answered = False
        while not answered:
            for socket, _ in poller.poll(int(TIMEOUT_S * 1000)):
                frames = socket.recv_multipart()
                if model == 3:
                    heard[frames[0]] = time.perf_counter()
                answered = answered or frames[1] == sequence
        if meter.measuring:
            meter.trips.append(time.perf_counter() - before)
        going = meter.add(1)
    report(meter.figures())


if __name__ == "__main__":
    main(
        {
            "serve-2": lambda options: serve(options, 2),
            "serve-3": lambda options: serve(options, 3),
            "ask-2": lambda options: ask(options, 2),
            "ask-3": lambda options: ask(options, 3),
            "ask-blocking-2": lambda options: ask_blocking(options, 2),
            "ask-blocking-3": lambda options: ask_blocking(options, 3),
        }
    )
