"""Systems that a user could choose instead: request-reply in an open loop, and durable acceptance."""

from __future__ import annotations

import sys
from functools import partial

from benchmarks.open_loop import SHARES
from benchmarks.process import Program, free_endpoint
from benchmarks.servers import Server, absent
from benchmarks.work import Conditions, Figures, Row, Variant, Work
from benchmarks.works.mdp import OUR_BROKER, OUR_CREDIT_WORKER

__all__ = ["WORKS"]

SPANS = 1 + len(SHARES) * 4
"""Measured spans of an open loop: the capacity, and each load, which takes longer where it cannot be reached."""
STORED_BYTES = 256
WANTED_MS = {25: 2.0, 50: 4.0, 75: 10.0}
"""Longest p99 at a part of the capacity, on an idle machine of two CPUs."""
OURS, NATS, GRPC = "MDP/0.3 with credit", "NATS with nats-py", "gRPC aio, no broker"
STORED, STREAM, DISK = "Titanic", "Redis stream, appendfsync always", "one fdatasync for each"


def open_ours(conditions: Conditions) -> Figures:
    """Broker, one worker, one client."""
    options = conditions.options(free_endpoint())
    with Program(*OUR_BROKER, options) as broker, Program(*OUR_CREDIT_WORKER, options) as worker:
        client = Program("benchmarks.ours.mdp_peers", "open", options)
        return conditions.figures([broker, worker], client, hub="broker_us", spans=SPANS)


def open_nats(conditions: Conditions) -> Figures:
    """A NATS server, one responder, one client."""
    options = conditions.options(free_endpoint().replace("tcp://", "nats://"))
    port = options.endpoint.rpartition(":")[2]
    with (
        Server(("nats-server", "--addr", "127.0.0.1", "--port", port), int(port), conditions.cpu) as server,
        Program("benchmarks.peers.nats_peers", "respond", options) as responder,
    ):
        client = Program("benchmarks.peers.nats_peers", "ask", options)
        return conditions.figures([server, responder], client, hub="broker_us", spans=SPANS)


def open_grpc(conditions: Conditions) -> Figures:
    """One server, one client."""
    options = conditions.options(free_endpoint())
    with Program("benchmarks.peers.grpc_peers", "serve", options) as server:
        return conditions.figures([server], Program("benchmarks.peers.grpc_peers", "ask", options), spans=SPANS)


def store_ours(conditions: Conditions) -> Figures:
    """Broker, store and client."""
    options = conditions.options(free_endpoint(), size=STORED_BYTES)
    command = (sys.executable, "-m", "titanic", "serve", "--broker", options.endpoint, "--store", "{folder}/store")
    with Program(*OUR_BROKER, options) as broker, Server(command, None, conditions.cpu) as store:
        return conditions.figures([store, broker], Program("benchmarks.ours.stored", "submit", options), hub="store_us")


def store_redis(conditions: Conditions) -> Figures:
    """A Redis server and one client."""
    options = conditions.options(free_endpoint(), size=STORED_BYTES)
    port = options.endpoint.rpartition(":")[2]
    always = ("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", "{folder}")
    with Server(("redis-server", "--bind", "127.0.0.1", "--port", port, *always), int(port), conditions.cpu) as server:
        return conditions.figures([server], Program("benchmarks.peers.redis_stream", "add", options), hub="store_us")


def store_plain(conditions: Conditions) -> Figures:
    """One program and its disk."""
    return conditions.figures([], Program("benchmarks.ours.stored", "sync-each", conditions.options("", size=STORED_BYTES)))


def open_rows() -> tuple[Row, ...]:
    """Capacity, then the latencies at each part of the own capacity."""
    found = [
        Row("request-reply, 1000 in flight, a task for each", OURS, NATS, None),
        Row("request-reply, 1000 in flight, a task for each", OURS, GRPC, None),
    ]
    for share in SHARES:
        for name, title in (("p50", "p50"), ("p99", "p99"), ("p999", "p99.9")):
            row = partial(Row, f"open loop at {share} % of the own capacity, {title}", OURS, target=None, figure=f"{name}_{share}")
            found += [row(peer=peer, lower=True, sides="free", unit=" ms") for peer in (NATS, GRPC)]
        if share in WANTED_MS:
            title = f"open loop at {share} % of the own capacity, p99 on idle CPUs"
            found.append(Row(title, OURS, None, WANTED_MS[share], f"p99_{share}", lower=True, sides="free", unit=" ms"))
    return tuple(found)


WORKS = (
    Work(
        "open-loop",
        (
            Variant(OURS, open_ours),
            Variant(NATS, open_nats, partial(absent, programs=("nats-server",), modules=("nats",))),
            Variant(GRPC, open_grpc, partial(absent, modules=("grpc",))),
        ),
        open_rows(),
    ),
    Work(
        "stored",
        (
            Variant(STORED, store_ours),
            Variant(STREAM, store_redis, partial(absent, programs=("redis-server",), modules=("redis",))),
            Variant(DISK, store_plain),
        ),
        (
            Row("accepted and on the disk, 256 B, 1000 in flight", STORED, DISK, 10.0, sides="free"),
            Row("accepted and on the disk, 256 B, 1000 in flight", STORED, STREAM, 1.0, sides="free"),
            Row("accepted and on the disk, CPU of the store", STORED, STREAM, None, "store_us", lower=True, unit=" µs"),
        ),
    ),
)
