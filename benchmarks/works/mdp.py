"""Majordomo: client, broker and worker, one process each."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.process import Program, free_endpoint, free_path
from benchmarks.work import Conditions, Figures, Row, Variant, Work

if TYPE_CHECKING:
    from benchmarks.program import Options

__all__ = ["OUR_BROKER", "PEER_BROKER", "WORKS"]

OUR_BROKER = ("benchmarks.ours.mdp_peers", "broker")
PEER_BROKER = ("benchmarks.peers.mdp_broker", "serve")
OUR_STRICT_WORKER = ("benchmarks.ours.mdp_peers", "worker-strict")
OUR_CREDIT_WORKER = ("benchmarks.ours.mdp_peers", "worker-credit")
PEER_WORKER = ("benchmarks.peers.mdp_worker", "serve")
CREDIT_BROKER = ("benchmarks.peers.mdp_credit", "serve")
CREDIT_WORKER = ("benchmarks.peers.mdp_credit", "work")
BARE = "benchmarks.peers.bare"

Role = tuple[str, str]


def exchange(conditions: Conditions, options: Options, broker: Role, worker: Role, workers: int, client: Role) -> Figures:
    """Start broker, workers and client; return the client's figures and the broker's cost per request."""
    with ExitStack() as stack:
        servers = [stack.enter_context(Program(*broker, options))]
        servers += [stack.enter_context(Program(*worker, options)) for _ in range(workers)]
        return conditions.figures(servers, Program(*client, options), hub="broker_us")


def variant(name: str, broker: Role, worker: Role, client: Role, window: int, curve: bool = False, ipc: bool = False) -> Variant:
    """Return one set of client, broker and worker, over tcp or ipc."""

    def measure(conditions: Conditions) -> Figures:
        options = conditions.options(free_path() if ipc else free_endpoint(), window=window, curve=curve)
        return exchange(conditions, options, broker, worker, 1, client)

    return Variant(name, measure)


def ours(name: str, worker: Role, client: str, window: int, curve: bool = False, ipc: bool = False) -> Variant:
    """All three ours."""
    return variant(name, OUR_BROKER, worker, ("benchmarks.ours.mdp_peers", client), window, curve, ipc)


def peers(client: str, window: int, curve: bool = False, ipc: bool = False) -> Variant:
    """All three on blocking pyzmq."""
    return variant("pyzmq blocking", PEER_BROKER, PEER_WORKER, ("benchmarks.peers.mdp_client", client), window, curve, ipc)


WORKS = (
    Work(
        "mdp-one",
        (
            ours("MDP/0.1", OUR_STRICT_WORKER, "one", 1),
            peers("one", 1),
            variant("bare sockets", (BARE, "relay"), (BARE, "worker"), (BARE, "client"), 1),
            variant("bare uvloop", (BARE, "relay-on-loop"), (BARE, "worker-on-loop"), (BARE, "client-on-loop"), 1),
        ),
        (
            Row("MDP one at a time, 1 worker", "MDP/0.1", "pyzmq blocking", 3.0),
            Row("MDP one at a time, against no protocol", "MDP/0.1", "bare sockets", None),
            Row("MDP one at a time, against no protocol", "MDP/0.1", "bare uvloop", None),
            Row("no protocol at all, for comparison", "bare sockets", "pyzmq blocking", None),
            Row("no protocol at all, for comparison", "bare uvloop", "pyzmq blocking", None),
            Row("MDP one at a time, broker CPU", "MDP/0.1", "pyzmq blocking", None, "broker_us", lower=True, unit=" µs"),
        ),
    ),
    Work(
        "mdp-one-ipc",
        (ours("MDP/0.1", OUR_STRICT_WORKER, "one", 1, ipc=True), peers("one", 1, ipc=True)),
        (Row("MDP one at a time over ipc, 1 worker", "MDP/0.1", "pyzmq blocking", None),),
    ),
    Work(
        "mdp-strict",
        (
            ours("MDP/0.1", OUR_STRICT_WORKER, "pipelined", 1000),
            peers("pipelined", 1000),
            variant("only the broker ours", OUR_BROKER, PEER_WORKER, ("benchmarks.peers.mdp_client", "pipelined"), window=1000),
        ),
        (
            Row("MDP 1000 in flight, strict, 1 worker", "MDP/0.1", "pyzmq blocking", 3.5),
            Row("MDP strict, broker CPU", "MDP/0.1", "pyzmq blocking", None, "broker_us", lower=True, unit=" µs"),
            Row("MDP strict, broker replaced", "only the broker ours", "pyzmq blocking", None),
        ),
    ),
    Work(
        "mdp-credit",
        (
            ours("MDP/0.3 with credit", OUR_CREDIT_WORKER, "mapped", 1000),
            peers("pipelined", 1000),
            variant("pyzmq with credit", CREDIT_BROKER, CREDIT_WORKER, ("benchmarks.peers.mdp_client", "pipelined"), 1000),
        ),
        (
            Row("MDP 1000 in flight, both with credit, 1 worker", "MDP/0.3 with credit", "pyzmq with credit", None),
            Row("MDP both with credit, broker CPU", "MDP/0.3 with credit", "pyzmq with credit", None, "broker_us", lower=True, unit=" µs"),
            Row("MDP 1000 in flight, credit against none (two protocols), 1 worker", "MDP/0.3 with credit", "pyzmq blocking", 25.0),
            Row("MDP credit, two cores", "MDP/0.3 with credit", None, 200_000.0, sides="free"),
            Row(
                "MDP credit against none, broker CPU",
                "MDP/0.3 with credit",
                "pyzmq blocking",
                None,
                "broker_us",
                lower=True,
                unit=" µs",
            ),
        ),
    ),
    Work(
        "curve-mdp",
        (ours("MDP/0.3 with credit", OUR_CREDIT_WORKER, "mapped", 1000, curve=True), peers("pipelined", 1000, curve=True)),
        (
            Row("CURVE MDP 1000 in flight, credit against none (two protocols), 1 worker", "MDP/0.3 with credit", "pyzmq blocking", None),
            Row(
                "CURVE MDP credit against none, broker CPU",
                "MDP/0.3 with credit",
                "pyzmq blocking",
                None,
                "broker_us",
                lower=True,
                unit=" µs",
            ),
        ),
    ),
)
