"""Pirate patterns: clients that retry, queues that distribute requests over workers, workers that reconnect.

    async with pirate.Queue("tcp://*:5555", "tcp://*:5556") as queue:
        await queue.serve_forever()

    async with pirate.Worker("tcp://127.0.0.1:5556", handler=lambda body: body) as worker:
        await worker.serve_forever()

    async with pirate.Client("tcp://127.0.0.1:5555") as client:
        reply = await client.request(b"hello")

Queue and worker are Paranoid (PPP, RFC 6) unless both are `simple`. The client is the Lazy Pirate and needs no queue:
any REP server will do. `AsyncServer` is for DEALER clients with many requests in flight. `specs/pirate.md` has the rules.
"""

from majordomo_toolkit import __version__
from pirate import errors
from pirate.async_server import AsyncServer, Conversation
from pirate.client import Client
from pirate.errors import *  # noqa: F403
from pirate.fault_injection import Mishaps
from pirate.queue_server import Queue
from pirate.worker import Worker

__all__ = ["AsyncServer", "Client", "Conversation", "Mishaps", "Queue", "Worker", "__version__"]
__all__ += errors.__all__  # a type checker takes what is not named here for private
