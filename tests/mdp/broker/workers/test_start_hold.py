"""MDP-46: after its start, a broker holds requests for services without workers for a while."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

import mdp
from tests.scenes.mdp_dispatcher import Scene
from tests.scenes.mdp_handlers import echo

if TYPE_CHECKING:
    from pathlib import Path

    from mdp.broker.dispatcher import Dispatcher
    from mdp.broker.limits import BrokerOptions
    from tests.scenes.programs import Program, Programs

LANES = 50  # requests the client has open


class Begun(Scene):
    """A scene whose broker has just begun to serve."""

    def new_machine(self, limits: BrokerOptions) -> Dispatcher:
        machine = super().new_machine(limits)
        machine.begin(self.now)
        return machine


def test_a_request_waits_for_the_worker_that_comes_back() -> None:
    scene = Begun()
    scene.ask("0.3", b"C1", b"early")
    scene.wait(7)
    assert scene.at_client(b"C1") == []
    scene.ready("0.3", b"W1")
    scene.answer(b"W1", scene.work(b"W1"), b"answered")
    assert scene.reply(b"C1") == [b"answered"]
    scene.check()


@pytest.mark.parametrize(("limits", "hold_s"), [({}, 7.5), ({"heartbeat_ms": 200, "liveness": 4}, 0.8), ({"start_hold_ms": 3000}, 3.0)])
def test_requests_for_a_service_that_does_not_come_fail_when_the_hold_ends(limits: dict[str, float], hold_s: float) -> None:
    scene = Begun(**limits)
    scene.ask("0.3", b"C1")
    scene.wait(hold_s - 0.3)
    scene.ask("0.3", b"C2")
    scene.ask("0.3", b"C3", options={"wait": True})
    assert scene.at_client(b"C1") == scene.at_client(b"C2") == []
    scene.wait(0.31)
    assert scene.failure(b"C1") == scene.failure(b"C2") == "NO_SERVICE"
    scene.ask("0.3", b"C1")
    assert scene.failure(b"C1") == "NO_SERVICE"  # at once, from now on
    assert scene.at_client(b"C3") == []
    scene.check()


def test_a_service_whose_workers_came_and_left_is_refused_at_once() -> None:
    """It waited beyond the end of the hold, until its client gave up."""
    scene = Begun()
    scene.ready("0.3", b"W1")
    scene.lose(b"W1")
    scene.ask("0.3", b"C1")
    assert scene.failure(b"C1") == "NO_SERVICE"
    scene.ask("0.3", b"C2", service=b"other")
    scene.ask("0.3", b"C3", options={"wait": True})
    assert scene.at_client(b"C2") == scene.at_client(b"C3") == []
    scene.check()


def test_no_hold_when_there_shall_be_none() -> None:
    scene = Begun(start_hold_ms=0)
    scene.ask("0.3", b"C1")
    assert scene.failure(b"C1") == "NO_SERVICE"


def test_the_hold_ends_for_all_who_follow_a_key() -> None:
    scene = Begun()
    scene.ask("0.3", b"C1", options={"key": b"k"})
    scene.ask("0.3", b"C2", options={"key": b"k"})
    scene.ask("0.3", b"C3", options={"key": b"k", "wait": True})
    scene.wait(7.6)
    assert scene.failure(b"C1") == scene.failure(b"C2") == "NO_SERVICE"
    scene.ready("0.3", b"W1")
    scene.answer(b"W1", scene.work(b"W1"), b"answered")
    assert scene.reply(b"C3") == [b"answered"]
    scene.check()


def test_who_waits_for_workers_that_came_and_left_has_the_usual_time() -> None:
    scene = Begun(queue_ms=20_000)
    scene.ask("0.3", b"C1")
    scene.ready("0.3", b"W1")
    scene.lose(b"W1")
    scene.wait(15)
    assert scene.at_client(b"C1") == []
    scene.wait(7)
    assert scene.failure(b"C1") == "NO_SERVICE"
    scene.check()


def test_what_is_held_is_bounded_and_mmi_tells_the_truth() -> None:
    scene = Begun(client_queue_max=2)
    for _ in range(3):
        scene.ask("0.3", b"C1")
    assert scene.failure(b"C1") == "BUSY"
    scene.ask("0.3", b"OP", b"echo", service=b"mmi.service")
    assert scene.reply(b"OP") == [b"404"]
    scene.check()


def test_a_deadline_is_kept_meanwhile() -> None:
    scene = Begun()
    scene.ask("0.3", b"C1", options={"deadline_ms": 1000})
    scene.wait(1.1)
    assert scene.failure(b"C1") == "DEADLINE_EXCEEDED"
    scene.check()


async def test_a_broker_in_a_program_holds_too() -> None:
    async with mdp.Broker(heartbeat_ms=100, liveness=2) as broker, mdp.Client(broker.bind("tcp://127.0.0.1:*"), timeout=100) as client:
        asked = client.request("echo", b"x")
        with pytest.raises(mdp.NoService):
            await client.request("nobody", b"x")
        with pytest.raises(mdp.NoService):
            await asked
    async with mdp.Broker() as broker:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Client(endpoint, timeout=100) as client:
            early = client.request("echo", b"early")
            assert await client.mmi("service", "echo") == "404"
            async with mdp.Worker(endpoint, "echo", handler=echo):
                assert await early == [b"early"]


@pytest.mark.timeout(240)
def test_a_call_to_a_broker_that_has_just_started(programs: Programs) -> None:
    """On the command line: the reply when the worker comes in time, NO_SERVICE after the hold when none does."""
    call = ("mdp", "call", "--broker", "ipc://broker.sock", "--timeout", "60", "--attempts", "1", "--json")
    broker = programs.start("mdp", "broker", "--bind", "ipc://broker.sock", "--start-hold-ms", "60000")
    broker.said("broker serves")
    early = programs.start(*call, "echo", "early")
    worker = programs.start("mdp", "worker", "--broker", "ipc://broker.sock", "--service", "echo")
    worker.said("registered")
    ended = early.end()
    assert (ended.code, json.loads(ended.out)) == (0, {"service": "echo", "frames": ["early"]})
    broker.stop()
    programs.start("mdp", "broker", "--bind", "ipc://broker.sock", "--heartbeat-ms", "100").said("broker serves")
    refused = programs.run(*call, "nobody", "x")
    assert (refused.code, refused.out) == (1, b"")
    assert refused.complaint.startswith("mdp: nobody: no worker offers this service")


@pytest.mark.timeout(240)
async def test_nobody_is_refused_after_the_broker_was_killed(tmp_path: Path, programs: Programs) -> None:
    """kill -9 under load and a new broker: plain requests, which do not ask to wait, are all answered."""
    endpoint = f"ipc://{tmp_path / 'broker'}"

    def started() -> Program:
        program = programs.start("mdp", "broker", "--bind", endpoint)
        program.said("broker serves")
        return program

    broker = await asyncio.to_thread(started)
    programs.start("mdp", "worker", "--broker", endpoint, "--service", "echo")
    async with mdp.Client(endpoint, timeout=60, reconnect_ms=20, reconnect_max_ms=50) as client:
        over = False
        answered = 0

        async def ask(lane: int) -> None:
            nonlocal answered
            serial = 0
            while not over:
                body = b"%d.%d" % (lane, serial)
                assert await client.request("echo", body) == [body]
                serial += 1
                answered += 1

        lanes = [asyncio.create_task(ask(lane)) for lane in range(LANES)]

        async def more() -> None:
            wanted = answered + 4 * LANES
            while answered < wanted and not any(lane.done() for lane in lanes):
                await asyncio.sleep(0.001)

        await more()
        for _ in range(3):
            os.kill(broker.process.pid, signal.SIGKILL)
            broker.process.wait()
            broker = await asyncio.to_thread(started)
            await more()
        over = True
        await asyncio.gather(*lanes)
        assert client.counters.repeated > 0
