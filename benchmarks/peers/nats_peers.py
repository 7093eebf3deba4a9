"""Request-reply over NATS with nats-py: a server of the system, a responder and a client, as its documentation shows them."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from benchmarks.open_loop import measure
from benchmarks.program import Options, body_of, main, ready, report, run_on_loop

TIMEOUT_S = 60.0


def respond(options: Options) -> None:
    """Answer each message of the subject with its body."""

    async def serve() -> None:
        client = await import_module("nats").connect(options.endpoint)

        async def echo(message: Any) -> None:
            await message.respond(message.data)

        await client.subscribe("echo", cb=echo)
        await client.flush()
        ready()
        await asyncio.Event().wait()

    run_on_loop(serve())


def ask(options: Options) -> None:
    """Ask in a closed loop, and at parts of the rate that this reaches."""

    async def run() -> None:
        client = await import_module("nats").connect(options.endpoint)
        body = body_of(options.size)
        assert (await client.request("echo", body, timeout=TIMEOUT_S)).data == body

        async def once() -> None:
            reply = await client.request("echo", body, timeout=TIMEOUT_S)
            assert reply.data == body

        ready()
        report(await measure(once, options))

    run_on_loop(run())


if __name__ == "__main__":
    main({"respond": respond, "ask": ask})
