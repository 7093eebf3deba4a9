"""Faults of a simulated world: a list drawn from the seed, which can be made shorter.

Each fault begins, and ends after a time; then what it broke is as before. A process that crashed is started again.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.sim.cluster.threads import SimThread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from tests.sim.cluster.process import Host, Process
    from tests.sim.cluster.world import World

__all__ = ["ALL", "CLOCK", "DISK", "NETWORK", "PROCESS", "Fault", "Faults", "draw"]

PROCESS = ("crash", "suspend", "stop")
NETWORK = ("isolate", "cut", "one way", "flap", "slow link", "reset", "half open", "mute", "black hole")
CLOCK = ("skew", "jump", "sleep")
DISK = ("power", "io error", "disk full", "slow disk")
ALL = (*PROCESS, *NETWORK, *CLOCK, *DISK)
LATENCIES_S = (0.005, 0.05, 0.3)
DISK_DELAYS_S = (0.005, 0.05, 0.5)
ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT)


class Fault(NamedTuple):
    """One fault of a process, host or disk.

    `other` is the other end of a link; `amount` is between 0 and 1, and its meaning depends on the kind.
    """

    at: float
    lasts_s: float
    kind: str
    who: str
    other: str = ""
    amount: float = 0.0


def draw(
    random: Random,
    *,
    begin: float,
    end: float,
    every_s: float,
    kinds: Sequence[str],
    processes: Sequence[str],
    hosts: Sequence[str],
    disks: Sequence[str] = (),
    others: Sequence[str] = (),
) -> list[Fault]:
    """Return random faults between two times, one every so many seconds on average; sometimes several fall together.

    `others` are the other ends of links, by default the hosts.
    """
    found: list[Fault] = []
    at = begin if kinds else end
    while True:
        at += random.expovariate(1 / every_s) if random.random() < 0.75 else random.uniform(0.0, 0.5)
        if at >= end:
            return found
        kind = random.choice(kinds)
        lasts_s = min(random.choice((0.2, 1.0, 3.0, 8.0, 20.0)) * random.uniform(0.5, 1.5), end - at)
        among = processes if kind in PROCESS else [*disks] if kind in DISK else hosts
        if not among:
            continue
        who = random.choice(among)
        other = random.choice([host for host in others or hosts if host != who]) if kind in NETWORK else ""
        found.append(Fault(round(at, 4), round(lasts_s, 4), kind, who, other, round(random.random(), 4)))


class Faults:
    """Carries out a list of faults."""

    def __init__(self, world: World, faults: Sequence[Fault]) -> None:
        self.world = world
        self.faults = list(faults)
        self.begun = 0
        self.open = 0
        for fault in faults:
            world.loop.at(fault.at, self._begin, fault)

    def _begin(self, fault: Fault) -> None:
        kinds = self.world.kinds if fault.kind in self.world.kinds else _KINDS
        undo = kinds[fault.kind](self.world, fault)
        self.begun += 1
        self.open += 1
        self.world.mark("fault", fault.who, f"{fault.kind} {fault.other} {fault.amount:.2f} for {fault.lasts_s:g} s")
        self.world.loop.after(fault.lasts_s, self._end, fault, undo)

    def _end(self, fault: Fault, undo: Callable[[], None]) -> None:
        self.open -= 1
        self.world.mark("healed", fault.who, f"{fault.kind} {fault.other}")
        undo()


def _process(world: World, fault: Fault) -> Process:
    return world.processes[fault.who]


def _crash(world: World, fault: Fault) -> Callable[[], None]:
    process = _process(world, fault)
    process.crash()
    return process.start


def _stop(world: World, fault: Fault) -> Callable[[], None]:
    process = _process(world, fault)
    process.stop()
    return process.start


def _suspend(world: World, fault: Fault) -> Callable[[], None]:
    return _process(world, fault).suspend()


def _power(world: World, fault: Fault) -> Callable[[], None]:
    """Take the power from a host: its processes end without a word, and its disks keep what they may."""
    host = world.hosts[fault.who]
    if not host.up:
        return _nothing
    host.up = False
    for process in host.processes:
        process.crash(silent=True)
    host.disks.lose_power(world.random)

    def on() -> None:
        host.up = True
        for process in host.processes:
            process.start()

    return on


def _others(world: World, host: Host) -> list[Host]:
    return [other for other in world.hosts.values() if other is not host]


def _cut(world: World, pairs: Sequence[tuple[str, str]]) -> Callable[[], None]:
    for source, target in pairs:
        world.network.cut(source, target)

    def heal() -> None:
        for source, target in pairs:
            world.network.heal(source, target)

    return heal


def _isolate(world: World, fault: Fault) -> Callable[[], None]:
    host = world.hosts[fault.who]
    return _cut(world, [pair for other in _others(world, host) for pair in ((host.ip, other.ip), (other.ip, host.ip))])


def _mute(world: World, fault: Fault) -> Callable[[], None]:
    """Lose everything a host sends, or everything it is sent."""
    host = world.hosts[fault.who]
    return _cut(world, [(host.ip, other.ip) if fault.amount < 0.5 else (other.ip, host.ip) for other in _others(world, host)])


def _ends(world: World, fault: Fault) -> tuple[str, str]:
    return world.hosts[fault.who].ip, world.hosts[fault.other].ip


def _cut_link(world: World, fault: Fault) -> Callable[[], None]:
    one, two = _ends(world, fault)
    return _cut(world, [(one, two), (two, one)])


def _one_way(world: World, fault: Fault) -> Callable[[], None]:
    return _cut(world, [_ends(world, fault)])


def _flap(world: World, fault: Fault) -> Callable[[], None]:
    """Cut and heal a link again and again."""
    one, two = _ends(world, fault)
    state: dict[str, Callable[[], None] | None] = {"heal": _cut(world, [(one, two), (two, one)])}
    period_s = max(0.05, fault.lasts_s * fault.amount / 4)

    def turn() -> None:
        heal = state["heal"]
        if heal is _nothing:
            return
        if heal is None:
            state["heal"] = _cut(world, [(one, two), (two, one)])
        else:
            heal()
            state["heal"] = None
        world.loop.after(period_s, turn)

    def end() -> None:
        heal, state["heal"] = state["heal"], _nothing
        if heal is not None:
            heal()

    world.loop.after(period_s, turn)
    return end


def _slow_link(world: World, fault: Fault) -> Callable[[], None]:
    one, two = _ends(world, fault)
    links = [world.network.link(one, two), world.network.link(two, one)]
    before = [(link.latency_s, link.jitter_s, link.rate) for link in links]
    for link in links:
        link.latency_s = LATENCIES_S[int(fault.amount * 3) % 3]
        link.jitter_s = link.latency_s
        link.rate = 20_000.0 if fault.amount > 0.8 else 0.0

    def heal() -> None:
        for link, (latency_s, jitter_s, rate) in zip(links, before, strict=True):
            link.latency_s, link.jitter_s, link.rate = latency_s, jitter_s, rate

    return heal


def _between(world: World, fault: Fault) -> list[Any]:
    """Return the connections of a process of `who` with a process of `other`."""
    _, two = _ends(world, fault)
    return [
        transport
        for process in world.hosts[fault.who].processes
        if process.life is not None and process.alive
        for transport in list(process.life.transports)
        if transport.get_extra_info("peername")[0] == two
    ]


def _reset(world: World, fault: Fault) -> Callable[[], None]:
    for transport in _between(world, fault):
        transport.arrived(b"", "reset")
        transport.out.end("reset")
    return _nothing


def _half_open(world: World, fault: Fault) -> Callable[[], None]:
    """One end forgets its connections, as behind a firewall that was restarted; the other finds out when it sends."""
    for transport in _between(world, fault):
        transport.arrived(b"", "reset")
        transport.out.dead = True
    return _nothing


def _black_hole(world: World, fault: Fault) -> Callable[[], None]:
    """Lose everything that is sent over the present connections, for good.

    As behind a firewall that has forgotten them; new ones work.
    """
    for transport in _between(world, fault):
        transport.out.swallows = transport.inwards.swallows = True
    return _nothing


def _skew(world: World, fault: Fault) -> Callable[[], None]:
    """Let clocks run faster or slower from now on; what they show does not jump."""
    host = world.hosts[fault.who]

    def set_rate(rate: float) -> None:
        now = world.now
        shown = host.local(now)
        host.rate = rate
        host.shift(shown - host.local(now))

    set_rate(1.0 + (fault.amount - 0.5) * 0.001)
    return lambda: set_rate(1.0)


def _jump(world: World, fault: Fault) -> Callable[[], None]:
    host = world.hosts[fault.who]
    offset_s = (fault.amount - 0.5) * 2 * 86_400
    host.wall_offset_s += offset_s

    def back() -> None:
        host.wall_offset_s -= offset_s

    return back


def _sleep(world: World, fault: Fault) -> Callable[[], None]:
    """Suspend a whole machine: its monotonic clock stands still."""
    host = world.hosts[fault.who]
    if host.stopped is not None:
        return _nothing
    host.stopped = world.now
    resumes = [process.suspend() for process in host.processes if process.alive]

    def wake() -> None:
        assert host.stopped is not None
        host.suspended_s += world.now - host.stopped
        host.stopped = None
        for resume in resumes:
            resume()

    return wake


def _io_error(world: World, fault: Fault) -> Callable[[], None]:
    disks = world.hosts[fault.who].disks
    error = ERRORS[int(fault.amount * 1000) % len(ERRORS)]
    left = 1 + int(fault.amount * 3)

    def trouble(call: str) -> OSError | None:
        nonlocal left
        if left <= 0 or world.random.random() < 0.5:
            return None
        left -= 1
        return OSError(error, os.strerror(error))

    return _until(disks, "trouble", trouble)


def _disk_full(world: World, fault: Fault) -> Callable[[], None]:
    def full(call: str) -> OSError | None:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if call in ("write", "create", "preallocate") else None

    return _until(world.hosts[fault.who].disks, "trouble", full)


def _slow_disk(world: World, fault: Fault) -> Callable[[], None]:
    delay_s = DISK_DELAYS_S[int(fault.amount * 3) % 3]

    def delay(call: str) -> None:
        thread = _thread()
        if thread is not None and call.startswith("sync"):
            thread.block(delay_s * world.random.random())

    return _until(world.hosts[fault.who].disks, "delay", delay)


def _thread() -> SimThread | None:
    thread = threading.current_thread()
    return thread if isinstance(thread, SimThread) else None


def _until(what: Any, name: str, value: Any) -> Callable[[], None]:
    """Set an attribute; return what sets it back, unless another fault has set it meanwhile."""
    plain = type(what)().__dict__[name]
    setattr(what, name, value)

    def back() -> None:
        if getattr(what, name) is value:
            setattr(what, name, plain)

    return back


def _nothing() -> None: ...


_KINDS: dict[str, Callable[[World, Fault], Callable[[], None]]] = {
    "crash": _crash,
    "suspend": _suspend,
    "stop": _stop,
    "power": _power,
    "isolate": _isolate,
    "mute": _mute,
    "cut": _cut_link,
    "one way": _one_way,
    "flap": _flap,
    "slow link": _slow_link,
    "reset": _reset,
    "half open": _half_open,
    "black hole": _black_hole,
    "skew": _skew,
    "jump": _jump,
    "sleep": _sleep,
    "io error": _io_error,
    "disk full": _disk_full,
    "slow disk": _slow_disk,
}
