"""A ROUTER names its peers: by an id of its own, or by the one they announce."""

from __future__ import annotations

import core
from examples.guide.zhelpers import dump, run


async def main() -> None:
    """Show two requests as a ROUTER sees them."""
    async with core.Context() as context:
        sink = context.socket(core.ROUTER)
        sink.bind("inproc://example")

        anonymous = context.socket(core.REQ)
        anonymous.connect("inproc://example")
        await anonymous.send(b"XREP uses a generated UUID")
        dump(await sink.recv_multipart())

        identified = context.socket(core.REQ, identity=b"Hello")
        identified.connect("inproc://example")
        await identified.send(b"XREP socket uses REQ's socket identity")
        dump(await sink.recv_multipart())


if __name__ == "__main__":
    run(main())
