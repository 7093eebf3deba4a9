"""Rules MDP-15 to MDP-25 of the worker, against a scripted broker on our sockets and on libzmq."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import mdp
from mdp.wire.commands import WORKER_FINAL_03, WORKER_READY_03, worker_disconnect, worker_final, worker_heartbeat, worker_ready
from tests.scenes.mdp_handlers import echo
from tests.scenes.mdp_messages import worker_request
from tests.scenes.mdp_scripted_broker import StandIn
from tests.scenes.mdp_scripted_broker_libzmq import LibzmqStandIn
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mdp.wire.commands import Dialect

DIALECTS = ["0.1", "0.2", "0.3"]


@pytest.fixture(params=["ours", "libzmq"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[StandIn | LibzmqStandIn]:
    async with StandIn() if request.param == "ours" else LibzmqStandIn() as made:
        yield made


def worker(broker: StandIn | LibzmqStandIn, **options: Any) -> mdp.Worker:
    return mdp.Worker(broker.endpoint, "echo", **{"handler": echo, "reconnect_ms": 20, "drain_s": 0, **options})


def is_ready(frames: list[bytes], dialect: Dialect) -> bool:
    return frames[:2] == [WORKER_READY_03, b"echo"] if dialect == "0.3" else frames == worker_ready(dialect, b"echo")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_mdp_15_ready_comes_first_on_each_new_socket_and_once(broker: StandIn | LibzmqStandIn, dialect: Dialect) -> None:
    async with worker(broker, dialect=dialect, heartbeat_ms=20, liveness=1000):
        peers: dict[bytes, list[list[bytes]]] = {}
        while len(peers) < 3:
            peer, frames = await broker.next()
            if peer not in peers:
                assert is_ready(frames, dialect)
                broker.send(peer, *worker_disconnect(dialect))
            peers.setdefault(peer, []).append(frames)
        assert all(sum(is_ready(frames, dialect) for frames in heard) == 1 for heard in peers.values())


async def test_mdp_15_ready_is_first_even_if_the_dialect_had_to_be_asked_for(broker: StandIn | LibzmqStandIn) -> None:
    async with worker(broker):
        assert is_ready((await broker.next())[1], "0.3")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_mdp_16_no_answer_to_ready_is_expected(broker: StandIn | LibzmqStandIn, dialect: Dialect) -> None:
    async with worker(broker, dialect=dialect) as registered:
        peer, _ = await broker.next()
        assert registered.connected
        broker.send(peer, *worker_request(dialect, b"client00", [b"x"]))
        assert (await broker.next())[1] == worker_final(dialect, b"client00", [b"x"])


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_mdp_17_after_disconnect_silence_and_a_new_socket(broker: StandIn | LibzmqStandIn, dialect: Dialect) -> None:
    go_on = asyncio.Event()

    async def wait(request: mdp.Request) -> bytes:
        await go_on.wait()
        return b"too late"

    async with worker(broker, dialect=dialect, handler=wait) as running:
        peer, _ = await broker.next()
        broker.send(peer, *worker_request(dialect, b"client00", [b"x"]))
        await eventually(lambda: running.running)
        broker.send(peer, *worker_disconnect(dialect))
        await eventually(lambda: running.session_counters.sent_away)
        go_on.set()
        again, frames = await broker.next()
        assert again != peer
        assert is_ready(frames, dialect)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_mdp_18_a_broker_that_refuses_is_asked_ever_more_rarely(broker: StandIn | LibzmqStandIn, dialect: Dialect) -> None:
    loop = asyncio.get_running_loop()
    asked = []
    async with worker(broker, dialect=dialect):
        for _ in range(5):
            peer, _ = await broker.next()
            asked.append(loop.time())
            broker.send(peer, *worker_disconnect(dialect))
    # Half of each wait is certain: 10, 20, 40 and 80 ms at least.
    assert asked[-1] - asked[0] >= 0.149


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_mdp_19_heartbeats_at_the_interval(broker: StandIn | LibzmqStandIn, dialect: Dialect) -> None:
    async with worker(broker, dialect=dialect, heartbeat_ms=20, liveness=1000):
        await broker.next()
        assert [(await broker.next())[1] for _ in range(3)] == [worker_heartbeat(dialect)] * 3


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_mdp_20_a_silent_broker_is_left_and_registered_with_anew(broker: StandIn | LibzmqStandIn, dialect: Dialect) -> None:
    async with worker(broker, dialect=dialect, heartbeat_ms=20, liveness=2) as left:
        peer, _ = await broker.next()
        while (message := await broker.next())[0] == peer:
            assert message[1] in (worker_heartbeat(dialect), worker_disconnect(dialect))
        assert is_ready(message[1], dialect)
        assert left.session_counters.silences >= 1


@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
async def test_mdp_21_silence_does_not_count_while_a_request_is_worked_on(broker: StandIn | LibzmqStandIn, dialect: Dialect) -> None:
    go_on = asyncio.Event()

    async def wait(request: mdp.Request) -> bytes:
        await go_on.wait()
        return b"done"

    async with worker(broker, dialect=dialect, handler=wait, heartbeat_ms=20, liveness=10) as busy:
        peer, _ = await broker.next()
        broker.send(peer, *worker_request(dialect, b"client00", [b"x"]))
        for _ in range(15):  # beyond the liveness of ten
            assert (await broker.next())[1] == worker_heartbeat(dialect)
        go_on.set()
        while (message := await broker.next())[1] == worker_heartbeat(dialect):
            pass
        assert message == (peer, worker_final(dialect, b"client00", [b"done"]))
        assert busy.session_counters.silences == 0


@pytest.mark.parametrize("body", [[b"x"], [b""], [b"a", b"", b"c"], [b"x" * 300], [b"x" * 10_000, b""]])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_mdp_22_one_reply_to_the_address_of_the_request(broker: StandIn | LibzmqStandIn, dialect: Dialect, body: list[bytes]) -> None:
    async with worker(broker, dialect=dialect):
        peer, _ = await broker.next()
        broker.send(peer, *worker_request(dialect, b"client00", body))
        broker.send(peer, *worker_request(dialect, b"client01", body))
        assert [(await broker.next())[1] for _ in range(2)] == [
            worker_final(dialect, b"client00", body),
            worker_final(dialect, b"client01", body),
        ]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_mdp_23_an_orderly_shutdown_says_disconnect(broker: StandIn | LibzmqStandIn, dialect: Dialect) -> None:
    async with worker(broker, dialect=dialect):
        peer, _ = await broker.next()
    assert await broker.next() == (peer, worker_disconnect(dialect))


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_mdp_23_after_the_last_reply(broker: StandIn | LibzmqStandIn, dialect: Dialect) -> None:
    async def slowly(request: mdp.Request) -> bytes:
        await asyncio.sleep(0.02)
        return b"done"

    async with worker(broker, dialect=dialect, handler=slowly, drain_s=10) as leaving:
        peer, _ = await broker.next()
        broker.send(peer, *worker_request(dialect, b"client00", [b"x"]))
        await eventually(lambda: leaving.running)
    assert [(await broker.next())[1] for _ in range(2)] == [
        worker_final(dialect, b"client00", [b"done"]),
        worker_disconnect(dialect),
    ]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_mdp_24_handlers_run_beside_the_heartbeats(broker: StandIn | LibzmqStandIn, dialect: Dialect) -> None:
    async def forever(request: mdp.Request) -> bytes:
        await asyncio.sleep(3600)
        return b""

    async with worker(broker, dialect=dialect, handler=forever, heartbeat_ms=20, liveness=1000) as busy:
        peer, _ = await broker.next()
        broker.send(peer, *worker_request(dialect, b"client00", [b"x"]))
        await eventually(lambda: busy.running)
        assert [(await broker.next())[1] for _ in range(2)] == [worker_heartbeat(dialect)] * 2


@pytest.mark.parametrize("unknown", [[b"", b"MDPW01", b"\x09"], [b"", b"MDPW01"], [b"MDPW03\x09"], [b"\x00"], [b"", b""]])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_mdp_25_unknown_commands_are_ignored(broker: StandIn | LibzmqStandIn, dialect: Dialect, unknown: list[bytes]) -> None:
    async with worker(broker, dialect=dialect) as annoyed:
        peer, _ = await broker.next()
        broker.send(peer, *unknown)
        broker.send(peer, *worker_request(dialect, b"client00", [b"x"]))
        assert (await broker.next())[1] == worker_final(dialect, b"client00", [b"x"])
        assert annoyed.session_counters.malformed == 1


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_mdp_25_unknown_commands_are_no_sign_of_life(broker: StandIn | LibzmqStandIn, dialect: Dialect) -> None:
    async with worker(broker, dialect=dialect, heartbeat_ms=20, liveness=10) as annoyed:
        peer, _ = await broker.next()
        while annoyed.session_counters.silences == 0:
            broker.send(peer, b"\x00")
            await asyncio.sleep(0.005)
        assert annoyed.session_counters.malformed > 1


async def test_the_answer_to_a_request_is_one_frame_more_than_its_body(broker: StandIn | LibzmqStandIn) -> None:
    """MDP/0.3: [MDPW03 04 token8][body…] (specs/mdp.md)."""
    async with worker(broker):
        peer, _ = await broker.next()
        broker.send(peer, *worker_request("0.3", b"token-01", [b"a", b"b"]))
        assert (await broker.next())[1] == [WORKER_FINAL_03 + b"token-01", b"a", b"b"]
