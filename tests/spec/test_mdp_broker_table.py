"""Every cell of the broker's table for worker-side commands, in every dialect (MDP-26 to MDP-30; conformance 9.5)."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

from mdp.broker.workers.worker_states import TABLE, Action, State
from mdp.wire.commands import (
    WORKER_REQUEST_03,
    worker_disconnect,
    worker_error,
    worker_final,
    worker_heartbeat,
    worker_partial,
    worker_progress,
    worker_ready,
    worker_return,
)
from mdp.wire.progress import Progress, encode_progress
from tests.scenes.mdp_dispatcher import DIALECTS, ECHO, Scene

if TYPE_CHECKING:
    from mdp.wire.commands import Dialect

STATES = ["unknown", "idle", "busy"]
COMMANDS = ["ready", "final", "partial", "progress", "error", "return", "heartbeat", "disconnect", "invalid"]
WORKER = b"W1"
STRANGE: dict[str, list[bytes]] = {
    "0.1": [b"", b"MDPW01", b"\x02", b"client", b"", b"x"],
    "0.2": [b"MDPW02", b"\x07"],
    "0.3": [WORKER_REQUEST_03 + bytes(8), b"", b"x"],
}


def command(name: str, dialect: Dialect, address: bytes) -> list[bytes]:
    match name:
        case "ready":
            return worker_ready(dialect, ECHO)
        case "final":
            return worker_final(dialect, address, [b"y"])
        case "partial":
            return worker_partial(dialect, address, [b"y"])
        case "progress":
            return worker_progress(address, encode_progress(Progress(0.5)))
        case "error":
            return worker_error(address, "HANDLER_ERROR", "no")
        case "return":
            return worker_return(address)
        case "heartbeat":
            return worker_heartbeat(dialect)
        case "disconnect":
            return worker_disconnect(dialect)
        case _:
            return STRANGE[dialect]


CELLS = [
    (dialect, state, name)
    for dialect, state, name in product(DIALECTS, STATES, COMMANDS)
    if not (name == "partial" and dialect == "0.1") and not (name in ("progress", "error", "return") and dialect != "0.3")
]


def in_state(state: str, dialect: Dialect) -> tuple[Scene, bytes]:
    """Return a scene with the worker in a state, and the address it would answer to."""
    scene = Scene()
    address = b"\x00" * 8
    if state != "unknown":
        scene.ready(dialect, WORKER)
    if state == "busy":
        scene.ask(dialect, b"C1", b"hello")
        address = scene.work(WORKER).id
    scene.sent.clear()
    return scene, address


@pytest.mark.parametrize(("dialect", "state", "name"), CELLS)
def test_mdp_26_cell(dialect: Dialect, state: str, name: str) -> None:
    """MDP-26, MDP-27, MDP-29: the cell does what the table of the specification says, and only that."""
    scene, address = in_state(state, dialect)
    scene.send(WORKER, command(name, dialect, address))
    known = WORKER in scene.machine.directory.workers
    queued = sum(service.queue.count for service in scene.machine.directory.services.values())
    match state, name:
        case "unknown", "ready":
            assert known
            assert scene.sent == {}
        case "unknown", "final" | "partial" | "progress" | "error" | "return" | "heartbeat":
            assert not known
            assert scene.got(WORKER) == [worker_disconnect(dialect)]
        case "unknown", _:
            assert not known
            assert scene.sent == {}
            assert scene.machine.directory.services == {}
        case "idle", "ready" | "final" | "partial" | "progress" | "error" | "return":
            assert not known
            assert scene.got(WORKER) == [worker_disconnect(dialect)]
        case "busy", "ready" | "return":  # which was not asked for
            assert not known
            assert scene.got(WORKER) == [worker_disconnect(dialect)]
            assert queued == 1
        case "busy", "final":
            assert known
            assert scene.reply(b"C1") == [b"y"]
            assert not scene.machine.directory.workers[WORKER].in_flight
        case "busy", "partial":
            assert known
            assert len(scene.at_client(b"C1")) == 1
            assert scene.machine.directory.workers[WORKER].in_flight
        case "busy", "progress":  # its client has not asked for it
            assert known
            assert scene.sent == {}
            assert scene.machine.directory.workers[WORKER].in_flight
        case "busy", "error":
            assert known
            assert scene.failure(b"C1") == "HANDLER_ERROR"
        case _, "heartbeat":
            assert known
            assert scene.sent == {}
        case _:  # disconnect and invalid: deleted without a word
            assert not known
            assert scene.sent == {}
            assert queued == (1 if state == "busy" else 0)
    scene.check()


def test_the_table_has_every_cell() -> None:
    """MDP-26: the shipped table is complete, so no command can be without an answer."""
    assert set(TABLE) == set(State)
    columns = {frozenset(row) for row in TABLE.values()}
    assert len(columns) == 1
    assert len(next(iter(columns))) == len(COMMANDS)
    assert all(isinstance(action, Action) for row in TABLE.values() for action in row.values())


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("how", ["ready", "disconnect", "invalid", "expiry", "connection"])
def test_mdp_28_nothing_is_sent_to_a_worker_that_was_deleted(dialect: Dialect, how: str) -> None:
    """MDP-28: after the DISCONNECT, if any, no command of any kind goes to it; requests go elsewhere."""
    scene = Scene()
    scene.ready(dialect, WORKER)
    if how == "expiry":
        scene.wait(8)
    elif how == "connection":
        scene.lose(WORKER)
    else:
        scene.send(WORKER, command(how, dialect, b""))
    scene.sent.clear()
    scene.ask("0.1", b"C1", b"hello")
    scene.wait(20)
    assert WORKER not in scene.sent
    scene.ready(dialect, b"W2")
    assert [*scene.work(b"W2").body] == [b"hello"]
    assert WORKER not in scene.sent


@pytest.mark.parametrize("dialect", DIALECTS)
def test_mdp_30_answer_to_another_ones_request_sends_the_worker_away(dialect: Dialect) -> None:
    """MDP-30, fault B2: a worker cannot answer a request that another one holds; its own goes back to the queue."""
    scene = Scene()
    scene.ready(dialect, b"W1")
    scene.ready(dialect, b"W2")
    scene.ask(dialect, b"C1", b"one")
    scene.ask(dialect, b"C2", b"two")
    first, second = scene.work(b"W1"), scene.work(b"W2")
    scene.send(b"W2", worker_final(dialect, first.id, [b"forged"]))
    assert scene.is_sent_away(b"W2")
    assert scene.got(b"C1") == scene.got(b"C2") == []
    assert scene.counters["cut_unexpected"] == 1
    scene.answer(b"W1", first, b"true")
    assert scene.reply(b"C1") == [b"true"]
    scene.beat(b"W1")
    again = scene.work(b"W1")
    assert [*again.body] == [*second.body] == [b"two"]
    assert again.id != second.id
    scene.check()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("address", [b"", b"C1", b"\x00" * 8, b"\xff" * 9])
def test_mdp_30_answer_to_a_made_up_address(dialect: Dialect, address: bytes) -> None:
    """MDP-30: an address never given out is unexpected; in MDP/0.3 a token of another length is no command."""
    scene, true_address = in_state("busy", dialect)
    assert true_address != address
    scene.send(WORKER, worker_final(dialect, address, [b"forged"]))
    assert scene.got(b"C1") == []
    assert WORKER not in scene.machine.directory.workers
    assert scene.is_sent_away(WORKER) == (dialect != "0.3" or len(address) == 8)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_second_answer_to_the_same_request_sends_the_worker_away(dialect: Dialect) -> None:
    """MDP-22, MDP-26: an idle worker's FINAL is unexpected; the client got one reply."""
    scene, address = in_state("busy", dialect)
    scene.send(WORKER, worker_final(dialect, address, [b"y"]))
    scene.send(WORKER, worker_final(dialect, address, [b"y"]))
    assert scene.reply(b"C1") == [b"y"]
    assert scene.is_sent_away(WORKER)


@pytest.mark.parametrize(("registered", "spoken"), [(a, b) for a, b in product(DIALECTS, DIALECTS) if a != b])
def test_a_worker_keeps_to_the_dialect_it_registered_with(registered: Dialect, spoken: Dialect) -> None:
    """MDP-02, MDP-26: a command of another dialect is invalid; an answer in it reaches nobody."""
    scene, address = in_state("busy", registered)
    scene.send(WORKER, worker_final(spoken, address, [b"y"]))
    assert scene.got(b"C1") == []
    assert WORKER not in scene.machine.directory.workers
    assert scene.counters["invalid_dialect"] == 1
    scene.check()


def test_the_key_of_a_held_request_is_no_final() -> None:
    """MDP-03: bytes equal to the broker's own key for an MDP/0.1 reply are no command in a frame."""
    scene, address = in_state("busy", "0.1")
    scene.send(WORKER, [b"\x01\x01\x03\x01\x08" + address + b"\x01\x00", b"y"])
    assert scene.got(b"C1") == []
    assert WORKER not in scene.machine.directory.workers
    scene.check()


def test_mdp_26_invalid_client_message_of_a_worker_deletes_it() -> None:
    """MDP-26: whatever header it has, an invalid message costs a worker its registration."""
    scene, _ = in_state("busy", "0.3")
    scene.send(WORKER, [b"", b"MDPC01"])
    assert WORKER not in scene.machine.directory.workers
    assert scene.counters["cut_invalid"] == 1
    scene.check()
