"""MDP-32, MDP-37: periodic work of the broker, after losses and between unequally loaded workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mdp.broker.requests.request_table import CHECK_S
from mdp.wire.commands import client_request, worker_disconnect, worker_heartbeat, worker_ping, worker_ready, worker_return
from mdp.wire.events import Ping, Work
from mdp.wire.options import encode_options
from tests.mdp.broker.workers.test_pacing import Yard, looks
from tests.scenes.builds import stands_in
from tests.scenes.mdp_dispatcher import ECHO, number
from tests.scenes.mdp_shop import Shop

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdp.broker.requests.records import Service


class Quiet(Shop):
    """A broker that does nothing by itself, but a sweep once a second."""

    def __init__(self) -> None:
        self.ticked: list[float] = []
        super().__init__(heartbeat_ms=1_000_000)

    def both(self, method: str, *args: object) -> list[list[bytes]]:
        if method == "tick":
            self.ticked.append(self.now)
        return super().both(method, *args)

    def checks(self, seconds: float) -> list[float]:
        """Let time pass; return the milliseconds between checks, without sweeps.

        Each counts from the check before it, the first from now.
        """
        self.ticked, before, after = [], self.now, []
        self.wait(seconds)
        for at in self.ticked:
            if abs(at - round(at)) > 1e-6:
                after.append(round(1000 * (at - before), 1))
                before = at
        return after


def test_what_a_worker_was_asked_for_and_has_begun_is_forgotten() -> None:
    """Each time the question comes too late; the invariants bound what the broker keeps of that."""
    scene = Shop()
    for peer in (b"LATE", b"QUICK"):
        scene.join(peer, 1)
    for _ in range(20):
        for _ in range(4):
            scene.ask("0.3", b"C1")
        late, quick = scene.given(b"LATE"), scene.given(b"QUICK")
        assert (len(late), len(quick)) == (2, 2)
        scene.wait(0.01)
        for work in quick:
            scene.answer(b"QUICK", work)
        scene.wait(0.0021)
        assert scene.recalled(b"LATE") == [late[1].id]
        for work in late:
            scene.answer(b"LATE", work)
    scene.check()


def test_another_loss_does_not_have_a_silent_worker_believed_sooner() -> None:
    """MDP-37: after each of two losses, a worker silent since long before waits for a whole window."""
    scene = Shop()
    for peer in (b"W1", b"W2"):
        scene.ready("0.3", peer)
        scene.ask("0.3", b"C1", peer)
    scene.send(b"SILENT", worker_ready("0.3", ECHO, options=encode_options({"heartbeat_ms": 30_000, "credit": 2})))
    scene.wait(5.0)
    scene.send(b"W2", worker_heartbeat("0.3"))
    scene.lose(b"W1")
    scene.wait(1.0)
    scene.lose(b"W2")
    scene.wait(6.49)
    assert scene.at_worker(b"SILENT") == []
    scene.wait(0.02)
    assert scene.work(b"SILENT").body == [b"W1"]
    scene.wait(0.97)
    assert scene.at_worker(b"SILENT") == []
    scene.wait(0.02)
    assert scene.work(b"SILENT").body == [b"W2"]
    scene.check()


def test_one_that_is_kept_from_all_work_and_has_given_back_what_it_had_ahead_is_no_reason_to_look() -> None:
    """It returned them at once, because the other worker is that much quicker.

    Before, it was checked 50 times a second for as long as it worked on what it had begun.
    """
    scene = Yard(b"QUICK", b"SLOW")
    scene.ask_many(13)
    while scene.quick:
        scene.answer_one(0.001)
    assert len(scene.slow) == 1
    assert len(scene.asked_back) == 3
    scene.wait(0.5)
    assert looks(scene, 1.5) <= 15


# After a loss.


def fleet(*peers: bytes, service: bytes = ECHO, scene: Shop | None = None) -> Shop:
    """Return a scene with workers that know PING, each but the last with a request in flight."""
    scene = scene or Shop()
    for peer in peers:
        scene.send(peer, worker_ready("0.3", service, options=encode_options({"concurrency": 1})))
    for peer in peers[:-1]:
        scene.ask("0.3", b"C1", peer, service=service)
        assert [*scene.work(peer).body] == [peer]
    return scene


def pinged(messages: list[list[bytes]]) -> list[bytes]:
    """Return which workers are asked for a sign of life."""
    return [peer for peer, *frames in messages if frames == worker_ping()]


def two_services_with_losses() -> Shop:
    """Return two of which each has lost two workers, FIRST a little before SECOND, some milliseconds before that is settled."""
    scene = fleet(b"A1", b"A2", b"A3", service=b"FIRST")
    fleet(b"B1", b"B2", b"B3", service=b"SECOND", scene=scene)
    for peers in ((b"A1", b"A2"), (b"B1", b"B2")):
        for peer in peers:
            scene.lose(peer)
        scene.now += 0.001
    scene.now += 0.15
    return scene


def test_services_that_are_due_together_are_looked_at_in_the_order_of_their_moments() -> None:
    scene = two_services_with_losses()
    scene.now += 0.1
    assert pinged(scene.both("tick")) == [b"A3", b"B3"]
    scene.check()


@stands_in
def test_a_fault_with_one_service_is_not_the_end_of_it_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """All services are checked again a sixteenth of the interval later.

    The speed of workers is checked in any case.
    """
    scene = two_services_with_losses()
    for peer in (b"W1", b"W2"):
        scene.join(peer, 1)
    for _ in range(9):
        scene.ask("0.3", b"C1")
    scene.now += 0.1
    for machine in (scene.machine, scene.twin):
        pumped: list[bytes] = []
        pump = machine.request_table.pump

        def faulty(service: Service, now: float, *, pumped: list[bytes] = pumped, pump: Callable[..., None] = pump) -> None:
            pumped.append(service.name)
            if service.name == b"FIRST":
                raise MemoryError
            pump(service, now)

        with monkeypatch.context() as patched:
            patched.setattr(machine.request_table, "pump", faulty)
            with pytest.raises(MemoryError):
                machine.tick(scene.now)
        assert pumped == [b"FIRST", ECHO]
    failed_at = scene.now
    assert pinged(scene.wait(0.15)) == []
    assert sorted(pinged(scene.wait(0.01))) == [b"A3", b"B3"]
    assert scene.now - failed_at < 0.17
    scene.check()


def test_a_loss_is_settled_when_the_last_is() -> None:
    """Though the first had the service looked at before: nobody is asked for a sign of life too early."""
    scene = fleet(b"W1", b"W2", b"W3")
    scene.lose(b"W1")
    scene.wait(0.1)
    scene.lose(b"W2")
    assert pinged(scene.wait(0.15)) == []
    assert pinged(scene.wait(0.01)) == [b"W3"]
    assert pinged(scene.wait(1.0)) == []
    scene.check()


@pytest.mark.parametrize(("between_s", "alone"), [(0.1, False), (7.4, False), (7.5, False), (7.6, True)])
def test_who_was_lost_within_a_window_was_not_lost_alone(between_s: float, alone: bool) -> None:
    """The second at the very end of the window, too."""
    scene = fleet(b"W1", b"W2", b"W3")
    scene.send(b"W1", worker_disconnect("0.3"))
    scene.both("peer_lost", b"C1")
    lost_at = scene.now
    for peer in (b"W2", b"W3"):
        scene.send(peer, worker_heartbeat("0.3"))
    while scene.now < lost_at + between_s:
        scene.wait(min(2.0, lost_at + between_s - scene.now))
        scene.now = min(scene.now, lost_at + between_s)
        for peer in (b"W2", b"W3"):
            scene.send(peer, worker_heartbeat("0.3"))
    assert scene.now == lost_at + between_s
    scene.got(b"W3")
    scene.answer(b"W2", Work("0.3", number(2), [], b""))
    scene.ask("0.3", b"C2", b"again")
    (busy,) = [peer for peer in (b"W2", b"W3") if any(isinstance(event, Work) for event in scene.at_worker(peer))]
    scene.lose(busy)
    free = b"W2" if busy == b"W3" else b"W3"
    scene.wait(0.16)
    events = [type(event) for event in scene.at_worker(free)]
    assert events == [Work if alone else Ping]
    scene.check()


@pytest.mark.parametrize(("quiet_s", "gets"), [(0.0, True), (2.6, True), (3.7, True), (3.8, False), (5.0, False)])
def test_after_the_loss_of_one_alone_who_was_heard_from_within_half_a_window_is_believed(quiet_s: float, gets: bool) -> None:
    scene = fleet(b"W1", b"W2")
    scene.wait(quiet_s)
    scene.got(b"W2")
    scene.lose(b"W1")
    scene.wait(0.16)
    events = [event for event in scene.at_worker(b"W2") if not isinstance(event, Ping)]
    assert [type(event) for event in events] == [Work] * gets
    scene.check()


def test_only_workers_that_know_ping_are_asked_for_a_sign_of_life() -> None:
    scene = fleet(b"W1", b"W2", b"W3")
    scene.ready("0.3", b"OLD")
    scene.ready("0.1", b"OLDER")
    scene.lose(b"W1")
    scene.lose(b"W2")
    assert pinged(scene.wait(0.16)) == [b"W3"]
    scene.check()


def test_a_loss_that_is_settled_leaves_nothing_to_look_at() -> None:
    scene = Quiet()
    for peer in (b"W1", b"W2", b"W3"):
        scene.join(peer, 4)
    scene.ask("0.3", b"C1")
    (busy,) = [peer for peer in (b"W1", b"W2", b"W3") if scene.at_worker(peer)]
    scene.lose(busy)
    scene.checks(62.0)
    assert len(scene.checks(1.0)) == 1
    assert scene.checks(60.0) == []
    scene.check()


# When it is looked how quick workers are: after 2 ms, 4 ms, up to 20, and 0.2 for each of two.


def crowded(concurrency: int = 4, credit: int = 4) -> Quiet:
    """Return two workers with all they take, and a request that waits behind."""
    scene = Quiet()
    scene.now += 0.1  # sweeps are at whole seconds
    for peer in (b"W1", b"W2"):
        scene.join(peer, concurrency, credit)
    for _ in range(2 * credit):
        scene.ask("0.3", b"C1")
    scene.ask("0.3", b"C2")
    return scene


FIRST_LOOKS = [2.0, 2.4, 4.4, 8.4, 16.4]


def test_while_requests_wait_it_is_looked_up_to_fifty_times_a_second() -> None:
    scene = crowded()
    assert scene.checks(0.2) == [*FIRST_LOOKS, *[20.4] * 8]
    scene.check()


def test_while_workers_that_are_not_known_work_it_is_looked_more_and_more_seldom() -> None:
    """Up to once a second."""
    scene = crowded()
    assert scene.checks(0.1) == [*FIRST_LOOKS, *[20.4] * 3]
    scene.lose(b"C2")
    growing = [1000 * min(0.02 * 1.125**step, 1.0) + 0.4 for step in range(1, 60)]
    looked = scene.checks(20.0)[1:]
    assert looked == pytest.approx(growing[: len(looked)], abs=0.11)
    assert looked[-1] == pytest.approx(1000.4, abs=0.11)
    scene.check()


def test_workers_that_have_nothing_are_looked_at_only_until_it_is_seen_that_they_have_answered() -> None:
    """And when something waits again, as soon and as often as before."""
    scene = crowded()
    for _ in range(2):
        assert scene.checks(0.05) == [*FIRST_LOOKS]
        for _ in range(3):
            for peer in (b"W1", b"W2"):
                for work in scene.given(peer):
                    scene.answer(peer, work)
        assert len(scene.checks(1.0)) <= 2
        assert scene.checks(60.0) == []
        for _ in range(9):
            scene.ask("0.3", b"C1")
    scene.check()


def test_workers_that_hold_no_more_than_they_work_on_are_not_looked_at_when_they_are_known() -> None:
    """Though they would take more: both are at work for long on the last that came."""
    scene = Quiet()
    scene.now += 0.1
    for peer in (b"W1", b"W2"):
        scene.join(peer, 1)
    for _ in range(20):
        scene.ask("0.3", b"C1")
    hands: dict[bytes, list[Work]] = {b"W1": [], b"W2": []}
    for _ in range(9):
        scene.wait(0.01)
        for peer, hand in hands.items():
            hand += scene.given(peer)
            scene.answer(peer, hand.pop(0))
    assert [len(hand) for hand in hands.values()] == [1, 1]
    scene.wait(0.5)
    assert scene.checks(60.0) == []
    scene.check()


def test_while_one_holds_more_than_it_works_on_it_is_looked() -> None:
    """Nothing waits and no worker is free: a slow one is asked for what it has not begun."""
    scene = crowded(1, 2)
    scene.lose(b"C2")
    assert scene.checks(0.2) == [*FIRST_LOOKS, *[20.4] * 8]
    scene.check()


def test_a_worker_alone_is_not_looked_at() -> None:
    """The other is lost while requests wait."""
    scene = crowded()
    scene.lose(b"W2")
    assert scene.checks(0.5) == [2.0]
    scene.check()


def test_a_free_worker_has_one_looked_at_that_holds_more_than_it_works_on() -> None:
    """And again as soon as 10 ms later, as long as the free one has got nothing."""
    scene = Quiet()
    scene.now += 0.1
    for peer in (b"BUSY", b"FREE"):
        scene.join(peer, 1)
    for _ in range(4):
        scene.ask("0.3", b"C1")
    busy = scene.given(b"BUSY")
    scene.wait(0.01)
    for work in scene.given(b"FREE"):
        scene.answer(b"FREE", work)
    looked = scene.checks(0.03)
    assert looked == [2.0, 2.0, 2.4, 4.4, 1.2, 7.2]  # the last but one: 10 ms after the first
    assert scene.recalled(b"BUSY") == [busy[1].id]
    scene.send(b"BUSY", worker_return(busy[1].id))
    assert scene.work(b"FREE").body == busy[1].body
    scene.check()


@pytest.mark.parametrize("workers", [2, 3])
def test_requests_of_one_read_are_spread_over_free_workers(workers: int) -> None:
    """None gets a quarter of its concurrency while others have nothing."""
    scene = Shop()
    names = [b"W%d" % number for number in range(workers)]
    for name in names:
        scene.join(name, 16)
    asked = [client_request("0.3", ECHO, [b"x"], id=number.to_bytes(8, "big")) for number in range(2 * workers)]
    scene.send(b"C", *asked)
    assert [len(scene.given(name)) for name in names] == [2] * workers
    scene.check()


def test_a_service_is_looked_at_in_time_however_often_its_queue_fills() -> None:
    scene = Shop()
    scene.join(b"A", 1, 1)
    scene.join(b"B", 1, 1)
    table = scene.machine.request_table
    (service,) = table.directory.services.values()
    table.watch(service, scene.now)
    table.watch(service, scene.now + CHECK_S / 2)
    assert table.watches.get(service) == scene.now + CHECK_S
