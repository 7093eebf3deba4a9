"""Several workers on one connection at the broker's machine: CHN-01 to CHN-06."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.zmtp.frames import encode_message
from core.zmtp.limits import PeerLimits
from core.zmtp.scan import Batch
from mdp.access.rules import Rules
from mdp.broker.authorization import GuardedDispatcher, Refusal
from mdp.broker.limits import BrokerOptions
from mdp.broker.workers.peer_limits import Hops
from mdp.wire.channels import FRAME_BYTES, channel_frame, connection_of, divide, is_channel, prefix_of, within
from mdp.wire.commands import client_request, worker_disconnect, worker_error, worker_final, worker_heartbeat, worker_partial, worker_ready
from mdp.wire.events import Disconnect, Heartbeat, Work, parse_at_worker
from mdp.wire.options import encode_options
from tests.scenes.mdp_dispatcher import Scene, batch

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVICES = (b"a", b"b", b"c")


def on(channel: int, frames: Sequence[bytes]) -> list[bytes]:
    """Return a message on a channel."""
    return [channel_frame(channel), *frames]


class Shared(Scene):
    """A scene whose workers are channels 1, 2, … of connection W."""

    def join(self, *services: bytes, credit: int = 2, connection: bytes = b"W") -> None:
        options = encode_options({"credit": credit, "concurrency": credit})
        self.send(connection, *(on(at, worker_ready("0.3", name, options=options)) for at, name in enumerate(services, 1)))

    def works(self, connection: bytes = b"W") -> list[tuple[int, Work]]:
        """Take the requests that a connection was sent, with their channels."""
        events = [(int.from_bytes(frames[0][-4:], "big"), parse_at_worker(frames[1:])) for frames in self.got(connection)]
        return [(channel, event) for channel, event in events if isinstance(event, Work)]


def test_a_connection_has_a_limited_number_of_workers() -> None:
    """CHN-12."""
    scene = Shared(channels_max=2)
    scene.join(*SERVICES)
    assert [frames for frames in scene.got(b"W") if frames[0] == channel_frame(3)] == [on(3, worker_disconnect("0.3"))]
    assert (len(scene.machine.directory.workers), scene.counters["ready_refused"]) == (2, 1)
    scene.join(b"c", connection=b"V")
    scene.ready("0.2", b"alone", b"c")
    assert len(scene.machine.directory.workers) == 4, "other connections are not concerned"
    scene.send(b"W", on(1, worker_disconnect("0.3")), on(4, worker_ready("0.3", b"c", options=encode_options({"credit": 1}))))
    assert len(scene.machine.directory.workers) == 4, "the place of one that leaves is free"


def test_each_service_of_a_connection_has_its_own_credit_and_requests() -> None:
    """CHN-01, CHN-02."""
    scene = Shared()
    scene.join(*SERVICES)
    for name in SERVICES * 3:
        scene.ask("0.3", b"C", b"for " + name, service=name)
    works = scene.works()
    assert [(channel, *work.body) for channel, work in works] == [
        (at, b"for " + name) for _ in range(2) for at, name in enumerate(SERVICES, 1)
    ]
    assert [scene.machine.directory.services[name].queue.count for name in SERVICES] == [1, 1, 1]
    # One read of the connection has answers of all: each frees its own credit.
    scene.send(b"W", *(on(channel, worker_final("0.3", work.id, [b"done"])) for channel, work in works))
    assert [channel for channel, _ in scene.works()] == [1, 2, 3]
    assert len(scene.at_client(b"C")) == 6


@pytest.mark.parametrize("dialect", ["0.1", "0.2", "0.3"])
def test_clients_of_all_dialects_get_parts_and_ends(dialect: str) -> None:
    scene = Shared()
    scene.join(b"a", b"b")
    scene.ask(dialect, b"C", b"x", service=b"b")  # type: ignore[arg-type]
    ((channel, work),) = scene.works()
    assert channel == 2
    scene.send(b"W", on(2, worker_partial("0.3", work.id, [b"part"])), on(2, worker_final("0.3", work.id, [b"end"])))
    assert [frames[-1] for frames in scene.got(b"C")][-1] == b"end"


def test_all_requests_of_all_services_go_to_others_with_the_connection() -> None:
    """CHN-03: the end of the connection is the end of each of its workers."""
    scene = Shared()
    scene.join(*SERVICES)
    for name in SERVICES:
        scene.ask("0.3", b"C", name, service=name)
    assert len(scene.works()) == 3
    scene.join(*SERVICES, connection=b"V")
    scene.lose(b"W")
    assert scene.counters["workers_lost"] == 3
    scene.send(b"V", *(on(at, worker_heartbeat("0.3")) for at in (1, 2, 3)))
    scene.wait(scene.machine.options.settle_s * 1.01)
    scene.send(b"V", *(on(at, worker_heartbeat("0.3")) for at in (1, 2, 3)))
    assert sorted(work.body[0] for _, work in scene.works(b"V")) == [*SERVICES]
    assert scene.counters["redelivered"] == 3
    scene.lose(b"V")
    assert not scene.machine.directory.workers
    assert not scene.machine.directory.channels


def test_a_new_connection_with_the_routing_id_has_none_of_the_workers() -> None:
    scene = Shared()
    scene.join(*SERVICES)
    scene.both("peer_joined", b"W")
    assert not scene.machine.directory.workers


def test_heartbeats_silence_and_mistakes_belong_to_one_service() -> None:
    """CHN-04."""
    scene = Shared(heartbeat_ms=100)
    scene.join(*SERVICES)
    for _ in range(20):
        scene.wait(0.1)
        scene.send(b"W", on(1, worker_heartbeat("0.3")), on(3, worker_heartbeat("0.3")))
    assert {name for name in SERVICES if scene.machine.directory.services[name].workers} == {b"a", b"c"}
    assert scene.counters["workers_expired"] == 1
    beats = [frames for frames in scene.got(b"W") if isinstance(parse_at_worker(frames[1:]), Heartbeat)]
    assert {frames[0] for frames in beats} == {channel_frame(1), channel_frame(2), channel_frame(3)}
    scene.send(b"W", on(1, worker_final("0.3", bytes(8), [b"not asked for"])))
    (frames,) = scene.got(b"W")
    assert frames[0] == channel_frame(1)
    assert isinstance(parse_at_worker(frames[1:]), Disconnect)
    scene.send(b"W", on(3, worker_disconnect("0.3")))
    assert scene.counters["workers_left"] == 1
    assert not scene.machine.directory.workers
    # One that is not known gets a DISCONNECT on its channel, and leaves nothing behind.
    scene.send(b"W", on(7, worker_heartbeat("0.3")))
    (frames,) = scene.got(b"W")
    assert frames[0] == channel_frame(7)
    assert isinstance(parse_at_worker(frames[1:]), Disconnect)
    assert not scene.machine.directory.channels


def test_a_connection_may_have_a_worker_without_a_channel_too() -> None:
    scene = Shared()
    ready = worker_ready("0.3", b"plain")
    scene.send(b"W", ready, on(1, worker_ready("0.3", b"a")), on(2, worker_ready("0.3", b"b")))
    for name in (b"plain", b"a", b"b"):
        scene.ask("0.3", b"C", name, service=name)
    first, *others = scene.got(b"W")
    assert isinstance(parse_at_worker(first), Work)
    assert [frames[0] for frames in others] == [channel_frame(1), channel_frame(2)]
    scene.lose(b"W")
    assert scene.counters["workers_lost"] == 3


@pytest.mark.parametrize(
    "frames",
    [
        on(1, client_request("0.3", b"a", [b"x"], id=bytes(8))),
        on(1, client_request("0.2", b"a", [b"x"])),
        on(1, worker_ready("0.2", b"a")),
        on(1, [b""]),
        [channel_frame(1)],
        [channel_frame(1)[:-1], *worker_ready("0.3", b"a")],
    ],
)
def test_what_is_not_of_a_worker_on_a_channel_is_invalid(frames: list[bytes]) -> None:
    """CHN-05."""
    scene = Shared()
    scene.send(b"W", frames)
    assert not scene.machine.directory.workers
    assert sum(count for name, count in scene.counters.items() if name.startswith("invalid_")) == 1


def test_a_channel_in_a_channel_is_invalid_and_ends_its_worker() -> None:
    scene = Shared()
    scene.join(b"a", b"b")
    scene.send(b"W", on(1, on(2, worker_heartbeat("0.3"))))
    assert list(scene.machine.directory.services[b"b"].workers) != []
    assert not scene.machine.directory.services[b"a"].workers


def test_failures_are_those_of_their_channel() -> None:
    scene = Shared()
    scene.join(b"a", b"b")
    scene.ask("0.3", b"C", b"x", service=b"b")
    ((_, work),) = scene.works()
    scene.send(b"W", on(1, worker_error(work.id, "NO", "")))  # another channel of the connection cannot answer it
    assert not scene.got(b"C")
    assert {frames[0] for frames in scene.got(b"W")} == {channel_frame(1)}
    scene.send(b"W", on(2, worker_error(work.id, "NO", "")))
    assert scene.failure(b"C") == "NO"


def test_limits_leave_room_for_the_frame_of_the_channel() -> None:
    """CHN-06."""
    channel = b"\0\0\0\0\1W"
    told = PeerLimits(parts=10, message_bytes=1000)
    assert within(told) == PeerLimits(parts=9, message_bytes=1000 - FRAME_BYTES)
    hops = Hops(PeerLimits(), {b"W": told}.get)
    hops.joined(b"W")
    assert hops.is_narrow(channel)
    assert hops.of(channel, "0.3") == within(told)
    assert hops.of(b"\0\0\0\0\1V", "0.3") == within(PeerLimits())
    scene = Shared()
    for machine in (scene.machine, scene.twin):
        machine.request_table.hops = Hops(PeerLimits(), {b"W": told}.get)
        machine.peer_joined(b"W", scene.now)
    scene.join(b"a")
    scene.ask("0.3", b"C", *[b"x"] * 8, service=b"a")
    assert scene.failure(b"C") == "TOO_LARGE"
    scene.ask("0.3", b"C", *[b"x"] * 7, service=b"a")
    (frames,) = scene.got(b"W")
    assert len(frames) == told.parts


def test_ids_of_channels_are_no_ids_of_connections() -> None:
    frames = on(258, worker_heartbeat("0.3"))
    (part,) = divide(batch(b"\0abcd", frames))
    (peer,) = part.head
    assert is_channel(peer)
    assert connection_of(peer) == b"\0abcd" == connection_of(b"\0abcd")
    assert not is_channel(b"\0abcd")  # made by a ROUTER
    assert not is_channel(b"worker")
    assert encode_message(frames).startswith(prefix_of(peer))
    assert prefix_of(peer) + encode_message(frames[1:]) == encode_message(frames)
    assert part.messages() == [[peer, *frames[1:]]]
    plain = batch(b"W", worker_heartbeat("0.3"))
    assert [one.messages() for one in divide(plain)] == [plain.messages()]


def test_rights_are_those_of_the_connection_and_refusals_take_no_memory() -> None:
    refused: list[Refusal] = []
    machine = GuardedDispatcher(
        BrokerOptions(),
        Rules({"allow": [{"who": ["W"], "serve": ["a*"], "see_users": ["a*"]}, {"who": ["C"], "call": ["*"]}]}),
        user_of=bytes.decode,
        audit=refused.append,
    )
    names = [b"a1", b"b", b"a2", b"c"]
    out = machine.receive(batch(b"W", *(on(at, worker_ready("0.3", name)) for at, name in enumerate(names))), 1.0)
    assert [worker.service.name for worker in machine.directory.workers.values()] == [b"a1", b"a2"]
    assert {worker.user for worker in machine.directory.workers.values()} == {"W"}
    assert [(one.peer, one.user, one.service) for one in refused] == [(b"W", "W", b"b"), (b"W", "W", b"c")]
    assert list(out) == [b"W"]
    many = [on(at, worker_ready("0.3", b"c")) for at in range(10, 1010)]
    machine.receive(Batch.of([b"W"], [[b"W", *frames] for frames in many]), 2.0)
    assert len(machine._rights) == len(machine._users) == len(machine._judged) == 1
    machine.set_rules(Rules({"allow": [{"who": ["W"], "serve": ["a1"]}]}), 3.0)
    assert [worker.service.name for worker in machine.directory.workers.values()] == [b"a1"]
    machine.peer_lost(b"W", 4.0)
    assert not machine._rights
    assert not machine._users
    assert not machine._judged
    assert not machine.directory.workers


def test_workers_that_share_a_connection_say_which() -> None:
    scene = Shared()
    scene.join(b"a", b"b")
    scene.ready("0.3", b"V", b"a")
    scene.ask("0.1", b"C", b"", service=b"mmi.workers")
    answer = scene.reply(b"C")[1].decode()
    assert answer.count(f'"connection":"{b"W".hex()}"') == 2
    assert answer.count('"service"') == 3
