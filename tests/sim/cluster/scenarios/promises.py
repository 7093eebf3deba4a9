"""Promises of the product, as checks of a run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from bstar.machine.fsm import State
from bstar.machine.member_values import Claim
from mdp.broker.requests.invariants import check_clock, check_invariants, check_stats
from mdp.wire.channels import connection_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import bstar
    import mdp
    from bstar.machine.member_values import Member, Settings
    from tests.sim.cluster.history import Operation
    from tests.sim.cluster.process import Process
    from tests.sim.cluster.scenario import Play

__all__ = ["answers", "in_time", "is_calm", "one_serves", "stays", "watch_broker", "watch_brokers", "watch_pair"]

T = TypeVar("T")

STARTED_S = 5.0  # in which everything has found everything else
SETTLED_S = 25.0  # after healing: reconnections with back-off are over, and what was late is done
LAST_S = 58.0  # of the healed time, in which requests must have begun and have had their time
QUEUED_MAX = 200  # requests in one broker; clients have at most 20 open ones each
MEMORY_MAX_BYTES = 1_000_000
LATE_S = 0.5  # a clock may be so late while the process runs: timers of the loop are exact, a suspension is not
GRACE_S = 2.0  # in which a broker must know that a connection is gone


def answers(play: Play, *clients: str, all_of_them: bool = True) -> None:
    """Demand an answer to each of these clients after healing, and then to every request.

    Args:
        play: the run.
        clients: names of their processes.
        all_of_them: 25 s after healing no request may fail any more.
    """

    def answered(name: str) -> bool:
        since = play.healed_at or 0.0
        return any(one.client == name and one.begun > since and one.result is not None for one in reversed(play.history.operations))

    def check() -> None:
        healed_at = play.healed_at or 0.0
        late = [one for one in play.history.operations if one.client in clients and one.begun > healed_at + SETTLED_S]
        failed = [one for one in late if one.result is None and one.begun + one.bound_s < healed_at + LAST_S]
        for one in failed[:3]:
            play.world.violated(
                f"request {one.number} ({one.mode}) of {one.client} failed in a calm world, begun at {one.begun:.3f}: {one.error}"
            )

    for name in clients:
        play.serves.append((name, partial(answered, name)))
    if all_of_them:
        play.finals.append(check)


def in_time(play: Play, within_s: float, *, errors: Sequence[str] = (), modes: Sequence[str] = ("plain",)) -> None:
    """Demand that requests of these modes end within a time, with a reply or one of these errors, whatever fails."""

    def check() -> None:
        for one in play.history.operations:
            if one.mode in modes and one.ended is not None and one.begun > STARTED_S:
                took_s = one.ended - one.begun
                if took_s > within_s or (one.result is None and one.error not in errors):
                    play.world.violated(
                        f"request {one.number} ({one.mode}) of {one.client} took {took_s:.3f} s, begun at {one.begun:.3f} {one.error}"
                    )
                    return

    play.finals.append(check)


def _name(one: Operation) -> str:
    return f"request {one.number} ({one.mode}) of {one.client}"


# ---- brokers


def watch_brokers(play: Play, workers: int | None = None, *, linear: bool = True) -> None:
    """Check brokers every virtual second: clocks, bounds, lost peers; and at the end, that a calm world stays calm.

    Args:
        play: the run.
        workers: registered at all brokers together when everything was healed.
        linear: the replies of each key are those of one object.
    """
    lost: dict[tuple[str, bytes], float] = {}

    def each() -> None:
        for process in play.world.processes.values():
            served = _running(process)
            if served is not None:
                _check_bounds(play, process, served, lost)
            asked, asking = process.things.get("asked", (None, ()))
            if asked is not None:
                assert asked.in_flight <= len(asking), f"{process.name} keeps {asked.in_flight} requests for {len(asking)} callers"

    play.world.checks.append(each)
    if linear:
        play.finals.append(play.history.check_linear)
    is_calm(play, workers)


def _running(process: Process) -> mdp.Broker | None:
    served: mdp.Broker | None = process.things.get("broker")
    return served if served is not None and process.alive and not process.suspended and served._is_open else None


def watch_broker(process: Process, served: mdp.Broker) -> None:
    """Check the records of a broker after each of its steps."""
    process.things["broker"] = served
    machine = served.machine
    seen = [-1]

    def step() -> None:
        # Most steps of a process are of its connections: the machine has been called only if one of its counters has changed.
        state = sum(machine.counters.as_dict().values())
        if state == seen[0] or not served._is_open:
            return
        seen[0] = state
        try:
            check_invariants(machine)
            check_stats(machine)
        except AssertionError as error:
            process.world.violated(f"{process.name}: {error}")

    assert process.life is not None
    process.life.watch(step)


def _check_bounds(play: Play, process: Process, served: mdp.Broker, lost: dict[tuple[str, bytes], float]) -> None:
    check_clock(served)
    machine, world, name = served.machine, play.world, process.name
    assert process.life is not None
    due_s = process.life.local(world.now) - machine.deadline()
    if machine.directory.workers and due_s > LATE_S and process.host.stopped is None and world.now > process.resumed_at + LATE_S:
        world.violated(f"{name}: its clock is {due_s:.3f} s late")
    stats = served.stats
    assert stats["queued"] <= QUEUED_MAX, f"{name} keeps {stats['queued']} requests"
    assert stats["memory_bytes"] <= MEMORY_MAX_BYTES, f"{name} keeps {stats['memory_bytes']} bytes of requests"
    assert stats["clients"] <= len(world.processes) * 2, f"{name} knows {stats['clients']} clients"
    routes = served._socket.pattern.routes  # type: ignore[attr-defined]
    gone = {
        (name, peer)
        for peer in [*machine.directory.workers, *machine.request_table.clients]
        if connection_of(peer) not in routes and _has_route(machine, peer)
    }
    for key in [key for key in lost if key[0] == name and key not in gone]:
        del lost[key]
    for key in gone:
        since = lost.setdefault(key, world.now)
        assert world.now - since < GRACE_S or world.now < process.resumed_at + GRACE_S, (
            f"{name} keeps a peer whose connection is gone: {key[1]!r}"
        )


def _has_route(machine: object, peer: bytes) -> bool:
    """Return whether a peer has a connection of its own: slots of lent workers have none."""
    worker = machine.directory.workers.get(peer)  # type: ignore[attr-defined]
    return worker is None or bool(worker.credit)


COUNTED = (
    "workers_registered",
    "workers_expired",
    "workers_lost",
    "workers_left",
    "cut_slow",
    "cut_unexpected",
    "cut_invalid",
    "redelivered",
)


def _counts(process: Process, served: mdp.Broker) -> dict[str, int]:
    """Return the counters that stay as they are in a calm world.

    A worker of MDP/0.1 that never sends heartbeats while it works may be silent for minutes: it does not count, whether it is lost or not.
    """
    assert process.life is not None
    now = process.life.local(process.world.now)
    workers = served.machine.directory.workers.values()
    silent = sum(1 for worker in workers if worker.in_flight and not worker.beats_busy and now - worker.seen > SETTLED_S)
    stats = served.stats
    return {key: stats[key] for key in COUNTED} | {"workers": stats["workers"] - silent}


def is_calm(play: Play, workers: int | None = None) -> None:
    """Demand that nobody gives up a connection in a calm world, and that every worker is registered."""
    before: dict[str, dict[str, int]] = {}

    def served() -> dict[str, dict[str, int]]:
        found = {process: _running(process) for process in play.world.processes.values()}
        return {process.name: _counts(process, one) for process, one in found.items() if one is not None}

    def begin() -> None:
        if play.healed_at is not None and not before and play.world.now > play.healed_at + SETTLED_S:
            before.update(served())

    def end() -> None:
        now = served()
        for name, counts in before.items():
            changed = {key: f"{counts[key]} to {now[name][key]}" for key in counts if name in now and now[name][key] != counts[key]}
            if changed:
                play.world.violated(f"{name} was not calm in a calm world: {changed}")
        there = sum(counts["workers"] for counts in now.values())
        if workers is not None and there != workers:
            play.world.violated(f"{there} workers are registered of {workers}")

    play.world.checks.append(begin)
    play.calm.append(end)


def stays(play: Play, process: str, counters: Sequence[str]) -> None:
    """Demand that counters of a pirate queue stay as they are in a calm world."""
    before: dict[str, int] = {}

    def counted() -> dict[str, int]:
        counts = play.world.processes[process].things["queue"].counters
        return {name: counts[name] for name in counters}

    def begin() -> None:
        if play.healed_at is not None and not before and play.world.now > play.healed_at + SETTLED_S:
            before.update(counted())

    def end() -> None:
        if counted() != before:
            play.world.violated(f"{process} was not calm in a calm world: {before} became {counted()}")

    play.world.checks.append(begin)
    play.calm.append(end)


# ---- pairs


def watch_pair(play: Play, process: Process, pair: bstar.Pair) -> None:
    """Check the state of a half after each of its steps, and that the other half does not serve then."""
    process.things["pair"] = pair
    before: list[Member | None] = [None]

    def step() -> None:
        machine = pair._machine
        if machine is None or machine.member is before[0]:
            return
        last, before[0] = before[0], machine.member
        if last is None or last.state is not machine.member.state:
            process.world.mark("role", process.name, machine.member.state.name.lower())
        try:
            check_member(machine.settings, machine.member, last)
            for check in play.together.get(process.name, ()):
                check()
        except AssertionError as error:
            process.world.violated(f"{process.name}: {error}")

    assert process.life is not None
    process.life.watch(step)


def check_member(settings: Settings, member: Member, last: Member | None) -> None:
    """Check that the fields of a half agree, and that a step from the last one was allowed."""
    assert 0 <= member.ballot <= member.counter, f"ballot {member.ballot} of counter {member.counter}"
    if member.state is State.ACTIVE:
        assert member.claim is Claim.IDLE, "active, and it claims"
        assert member.ballot or not settings.ballots, "active without a ballot"
    if member.claim is not Claim.IDLE:
        assert member.ballot, "it claims without a ballot"
        assert settings.lease_s or member.claim is Claim.PERSISTING, "it asks a witness that it does not have"
    if last is not None:
        assert member.counter >= last.counter, f"its counter fell from {last.counter} to {member.counter}"
        assert member.lease_until >= last.lease_until or member.state is not State.ACTIVE, "its lease became shorter"
        won = member.state is State.ACTIVE and last.state is not State.ACTIVE
        assert not won or not settings.lease_s or last.claim is Claim.ACQUIRING, "active without the witness"


def one_serves(play: Play, *names: str) -> None:
    """Demand that never both halves serve, and ballots only grow; in a calm world the halves hear each other.

    It is asked after each step of a half, and every second.
    """
    highest: list[bstar.Ballot | None] = [None]

    def check() -> None:
        serving = [name for name in names if (pair := _pair(play.world.processes[name])) is not None and _in(play, name, pair.serves)]
        assert len(serving) <= 1, f"{serving} serve at once"
        for name in serving:
            pair = _pair(play.world.processes[name])
            assert pair is not None
            ballot = pair.ballot()
            assert highest[0] is None or ballot >= highest[0], f"{name} serves under {ballot}, after {highest[0]}"
            highest[0] = ballot

    def calm() -> None:
        halves = {name: pair for name in names if (pair := _pair(play.world.processes[name])) is not None}
        if sum(_in(play, name, pair.serves) for name, pair in halves.items()) != 1:
            play.world.violated(f"of {names} not one serves in a calm world: {[pair.status() for pair in halves.values()]}")
        for name, pair in halves.items():
            status = _in(play, name, pair.status)
            if status["peer"]["state"] not in ("active", "passive"):
                play.world.violated(f"{name} does not hear its peer in a calm world: {status['peer']}")

    play.world.checks.append(check)
    for name in names:
        play.together.setdefault(name, []).append(check)
    play.calm.append(calm)


def _pair(process: Process) -> bstar.Pair | None:
    found: bstar.Pair | None = process.things.get("pair")
    return found if found is not None and process.alive and not process.suspended and process.host.stopped is None else None


def _in(play: Play, name: str, call: Callable[[], T]) -> T:
    """Call something with the clock of a process."""
    life = play.world.processes[name].life
    assert life is not None
    return life.context.run(call)
