"""Prototype of the local and cloud flows: clients and workers in this process, and tasks sent to peers at random.

python -m examples.guide.peering2 DC1 DC2      # my name, my peers' names; the other way round in a second terminal
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import deque

import core

CLIENTS, WORKERS = 10, 3
READY = b"\x01"


async def client(context: core.Context, name: str, requests: int | None) -> None:
    """Ask again and again, and print the replies."""
    async with context.socket(core.REQ, linger=0) as socket:
        socket.connect(f"ipc://{name}-localfe.ipc")
        while requests is None or requests > 0:
            await socket.send(b"HELLO")
            print(f"Client: {(await socket.recv()).decode()}", flush=True)
            await asyncio.sleep(0 if requests else 1)
            requests = None if requests is None else requests - 1


async def worker(context: core.Context, name: str) -> None:
    """Answer OK to everything."""
    async with context.socket(core.REQ, linger=0) as socket:
        socket.connect(f"ipc://{name}-localbe.ipc")
        await socket.send(READY)
        while True:
            *envelope, body = await socket.recv_multipart()
            print(f"Worker: {body.decode()}", flush=True)
            await socket.send_multipart([*envelope, b"OK"])


async def broker(context: core.Context, name: str, peers: list[str]) -> None:
    """Route tasks to idle workers, sometimes to a peer; replies go back to the task's sender."""
    identity = name.encode()
    localfe, localbe = context.socket(core.ROUTER, linger=0), context.socket(core.ROUTER, linger=0)
    cloudfe = context.socket(core.ROUTER, linger=0, identity=identity)
    cloudbe = context.socket(core.ROUTER, linger=0, identity=identity)
    with localfe, localbe, cloudfe, cloudbe:
        localfe.bind(f"ipc://{name}-localfe.ipc")
        localbe.bind(f"ipc://{name}-localbe.ipc")
        cloudfe.bind(f"ipc://{name}-cloud.ipc")
        for peer in peers:
            cloudbe.connect(f"ipc://{peer}-cloud.ipc")
        met: set[bytes] = set()  # a ROUTER drops what it cannot send, so only connected peers are asked
        cloudbe.set_receiver(None, on_peer=lambda peer, joined: met.add(peer) if joined else met.discard(peer))
        idle: deque[bytes] = deque()
        poller = core.Poller()
        for socket in (localbe, cloudbe, localfe, cloudfe):
            poller.register(socket, core.POLLIN)
        while True:
            ready = dict(await poller.poll())
            reply = None
            if localbe in ready:
                address, _, *reply = await localbe.recv_multipart()
                idle.append(address)
                reply = None if reply == [READY] else reply
            elif cloudbe in ready:
                reply = (await cloudbe.recv_multipart())[1:]
            if reply is not None:
                back = cloudfe if reply[0].decode(errors="replace") in peers else localfe
                await back.send_multipart(reply)
            while idle and (cloudfe.readable() or localfe.readable()):
                theirs = cloudfe.readable()
                task = await (cloudfe if theirs else localfe).recv_multipart()
                if not theirs and met and random.randrange(5) == 0:
                    await cloudbe.send_multipart([random.choice(sorted(met)), *task])
                else:
                    await localbe.send_multipart([idle.popleft(), b"", *task])
            if not idle:
                await asyncio.sleep(0.001)  # tasks wait in the sockets until a worker is idle


async def main(name: str, peers: list[str], requests: int | None = None) -> None:
    """Run a broker with clients and workers until the clients are done."""
    async with core.Context() as context:
        running = [asyncio.create_task(broker(context, name, peers))]
        running += [asyncio.create_task(worker(context, name)) for _ in range(WORKERS)]
        try:
            await asyncio.gather(*(client(context, name, requests) for _ in range(CLIENTS)))
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("syntax: peering2.py me {you}…")
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
