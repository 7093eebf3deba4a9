"""ROUTER to REP: a message with a stack of addresses, which a REP keeps and returns.

Since sockets announce their types (ZMTP 3), a ROUTER and a REP refuse each other, in libzmq as well. So a DEALER called A stands between
them and forwards messages.
"""

from __future__ import annotations

import asyncio

import core
from examples.guide.zhelpers import dump, run


async def main() -> None:
    """Show the workload, and the reply with its addresses."""
    async with core.Context() as context:
        client = context.socket(core.ROUTER)
        client.bind("inproc://routing")
        known = asyncio.Event()
        client.set_receiver(None, on_peer=lambda name, joined: known.set())
        front = context.socket(core.DEALER, identity=b"A")
        front.connect("inproc://routing")
        back = context.socket(core.DEALER)
        back.bind("inproc://papa")
        relay = asyncio.ensure_future(core.proxy(front, back))
        papa = context.socket(core.REP)
        papa.connect("inproc://papa")

        await known.wait()  # the guide's program sleeps for a second
        await client.send_multipart([b"A", b"address 3", b"address 2", b"address 1", b"", b"This is the workload"])
        dump(await papa.recv_multipart())
        await papa.send(b"This is the reply")
        dump(await client.recv_multipart())

        relay.cancel()
        await asyncio.gather(relay, return_exceptions=True)


if __name__ == "__main__":
    run(main())
