"""Runs a programme in two worlds, step by step, and compares what is seen of each step.

What arrives is compared by sender: in which order the messages of several peers come out is each library's business, and so is
the moment. So when two worlds disagree about what came, the one that has less is given time to catch up before it is a difference.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.process import free_port
from tests.interop.differential.plan import Plan, Programme, Step
from tests.interop.differential.worlds import ERRORS, World, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import core
    from tests.interop.differential.libzmq import Libzmq

__all__ = ["Difference", "run", "shrink"]

SENDER = re.compile(rb"([AB]\d)\.(\d+)")
PATIENCES = (1, 5, 20)  # a difference that a busy machine makes is gone at the second or third look
SECOND_FRAMES = (b"", b"x" * 300)
Seen = dict[str, list[tuple[bytes, ...]]]  # what came, by sender


@dataclass(frozen=True)
class Difference:
    """Where two worlds parted.

    Attributes:
        programme: which.
        at: number of the step.
        step: the step itself.
        what: "outcome", "received", "events" or "connections".
        libzmq: seen there.
        ours: seen in the other world.
        plan: the state before the step.
    """

    programme: Programme
    at: int
    step: Step
    what: str
    libzmq: object
    ours: object
    plan: Plan

    def __str__(self) -> str:
        return f"{self.programme}\nstep {self.at} ({self.step}), {self.what}:\n  libzmq {self.libzmq}\n  ours   {self.ours}"


class Lockstep:
    """One run of one programme.

    Args:
        patience: 1 for a first look; more when a difference is to be made sure of.
    """

    def __init__(self, programme: Programme, library: Libzmq, context: core.Context, patience: int, folder: Path) -> None:
        self.programme = programme
        self.plan = Plan(programme)
        self.limit_s = 0.1 * patience
        ports = {side: [free_port() for _ in range(3)] if programme.transport == "tcp" else [] for side in ("theirs", "ours")}

        def endpoint(side: str) -> Callable[[int], str]:
            match programme.transport:
                case "tcp":
                    return lambda number: f"tcp://127.0.0.1:{ports[side][number]}"
                case "ipc":
                    return lambda number: f"ipc://{folder / side}{number}"
                case _:
                    return lambda number: f"inproc://{programme.seed}-{id(self)}-{number}"

        self.worlds = (
            World(library, context, "", endpoint("theirs"), patience),
            World(library, context, programme.mixed, endpoint("ours"), patience),
        )
        self.number = 0  # of the last message
        self.lives: dict[int, int] = {}  # on which connections a message was sent: those of one life may overtake those of another

    async def run(self) -> Difference | None:
        """The first difference, None if there is none."""
        try:
            for who, options in self.programme.options.items():
                for world in self.worlds:
                    world.open(who, self.programme.kind(who), options)
            for at, step in enumerate(self.programme.steps):
                if self.plan.raced:
                    return None
                if not self.plan.allows(step):
                    continue
                found = await self._step(at, step)
                if found is not None:
                    return found
            return await self._end()
        finally:
            waiting = {number for endpoints in self.plan.connected.values() for number in endpoints if number not in self.plan.bound}
            for world in self.worlds:
                world.end(sorted(waiting) if self.plan.inproc else [])
            for world in self.worlds:
                await world.settle(Counter(), Counter())

    async def _end(self) -> Difference | None:
        """Receive what is left."""
        if self.plan.raced:
            return None
        for who in self.plan.alive():
            found = await self._step(len(self.programme.steps), Step("recv", who))
            if found is not None:
                return found
        return None

    async def _step(self, at: int, step: Step) -> Difference | None:
        def differ(what: str, theirs: object, ours: object) -> Difference | None:
            return None if theirs == ours else Difference(self.programme, at, step, what, theirs, ours, self.plan)

        if step.verb == "recv":
            found = differ("received", *await self._receive(step.who))
        else:
            self.number += step.count or 1
            if step.verb == "restart":
                found = differ("outcome", *await self._restart(step.who))
            else:
                found = differ("outcome", *[self._do(world, step) for world in self.worlds])
                up, down = self.plan.apply(step)
                if found is None:
                    settled = [await self._settle(world, up, down) for world in self.worlds]
                    found = differ("connections", *settled) if not self.plan.refusing else None
        if found is None:
            found = differ("events", *await self._alike(lambda world: {who: end.events() for who, end in world.ends.items()}))
        return found

    def _limit(self) -> float:
        return 0.02 if self.plan.refusing else 3 * self.limit_s

    async def _alike(self, look: Callable[[World], object]) -> list[object]:
        """Look at both worlds until they show the same, or until the time limit."""
        started = time.monotonic()
        while True:
            seen = [look(world) for world in self.worlds]
            if seen[0] == seen[1] or time.monotonic() - started > self.limit_s:
                return seen
            for world in self.worlds:
                await world.settle(Counter(), Counter())

    async def _restart(self, who: str) -> list[object]:
        bound, connected = self.plan.endpoints(who)
        options = self.programme.options[who]
        for world in self.worlds:
            world.close(who, 0)
        plan = self.plan
        up, down = plan.apply(Step("restart", who))
        outcomes: list[object] = []
        for world in self.worlds:
            await self._settle(world, Counter(), down)
            world.open(who, self.programme.kind(who), options)
            said = [attempt(lambda world=world, n=n: world.ends[who].bind(world.endpoint(n))) for n in bound]  # type: ignore[misc]
            said += [attempt(lambda world=world, n=n: world.ends[who].connect(world.endpoint(n))) for n in connected]  # type: ignore[misc]
            outcomes.append((said, await self._settle(world, up, Counter()) or self.plan.refusing))
        return outcomes

    async def _settle(self, world: World, up: Counter[str], down: Counter[str]) -> bool:
        if self.plan.inproc:  # monitors do not see it
            up, down = Counter(), Counter()
        return await world.settle(up, down, self._limit())

    def _do(self, world: World, step: Step) -> object:
        who = step.who
        if step.verb == "open":
            return attempt(lambda: world.open(who, self.programme.kind(who), self.programme.options[who]))
        end = world.ends[who]
        match step.verb:
            case "bind":
                return attempt(lambda: end.bind(world.endpoint(step.endpoint)))
            case "unbind":
                return attempt(lambda: end.unbind(world.endpoint(step.endpoint)))
            case "connect":
                return attempt(lambda: end.connect(world.endpoint(step.endpoint)))
            case "disconnect":
                return attempt(lambda: end.disconnect(world.endpoint(step.endpoint)))
            case "send":
                return attempt(lambda: end.send(self._message(world, step, self.number)))
            case "subscribe" | "unsubscribe":
                return attempt(lambda: self._subscribe(world, step))
            case "cut":
                end.cut()
                return "ok"
            case "close" | "kill":
                world.close(who, None if step.verb == "close" else 0)
                return "ok"
            case "flash":
                return self._flash(world, step)
        raise AssertionError(step.verb)

    def _subscribe(self, world: World, step: Step) -> None:
        end, subscribe = world.ends[step.who], step.verb == "subscribe"
        if self.programme.kind(step.who) == "SUB":
            end.subscribe(step.topic, subscribe)
        else:
            end.send([(b"\x01" if subscribe else b"\x00") + step.topic])

    def _flash(self, world: World, step: Step) -> list[str]:
        """Connect, send and close without a pause."""
        kind = self.programme.kind(step.who)
        world.open("A9" if step.who[0] == "A" else "B9", kind, {"linger": 2000})
        who = "A9" if step.who[0] == "A" else "B9"
        end = world.ends[who]
        verbs: list[Callable[[], None]] = [partial(end.connect, world.endpoint(step.endpoint))]
        verbs += [partial(end.send, [b"%s.%d" % (who.encode(), self.number - n)]) for n in range(step.count)]
        said = [attempt(verb) for verb in verbs]
        world.close(who, None)
        return said

    def _message(self, world: World, step: Step, number: int) -> list[bytes]:
        self.lives[number] = self.plan.lives[step.who] + self.plan.cuts.total()
        kind, peer = self.programme.kind(step.who), self.programme.kind(f"{'AB'[step.who[0] == 'A']}0")
        frames = [step.topic + b"|%s.%d" % (step.who.encode(), number), *SECOND_FRAMES[: step.shape - 1]]
        envelope = [b""] if kind in ("DEALER", "ROUTER") and peer in ("REQ", "REP") else []
        if kind == "ROUTER":
            announced = self.programme.options[step.to].get("identity", b"nobody")
            routing_id, envelope = world.routes.get((step.who, step.to), (announced, envelope))
            return [routing_id, *envelope, *frames]
        return [*envelope, *frames]

    async def _receive(self, who: str) -> list[object]:
        once = self.programme.kind(who) in ("REQ", "REP")
        seen: list[Seen] = [{}, {}]
        errors: list[str] = ["", ""]

        def look(at: int) -> tuple[Seen, str]:
            if not (once and seen[at]):
                errors[at] = self._drain(self.worlds[at], who, seen[at], once=once)
            return seen[at], errors[at]

        return await self._alike(lambda world: shown(look(self.worlds.index(world)), in_order=not self.plan.twice))

    def _drain(self, world: World, who: str, seen: Seen, *, once: bool) -> str:
        """Take all that is there; returns what ended it."""
        while True:
            try:
                frames = world.ends[who].recv()
            except ERRORS as error:
                return name_of(error)
            sender, message = self._normal(world, who, frames)
            seen.setdefault(sender, []).append(message)
            if once:
                return ""

    def _normal(self, world: World, who: str, frames: list[bytes]) -> tuple[str, tuple[bytes, ...]]:
        """Whose message it is, and the message without what is random in it."""
        found = next((match for match in map(SENDER.search, frames) if match), None)
        sender = found[1].decode() if found else "?"
        life = self.lives.get(int(found[2]), 1) if found else 1
        shown = list(frames)
        if self.programme.kind(who) == "ROUTER":
            body = next((at for at, frame in enumerate(frames) if at and SENDER.search(frame)), 1)
            world.routes[who, sender] = (frames[0], frames[1:body])
            if frames[0][:1] == b"\0":
                shown[0] = b"<id>"
            if len(frames) > 2 and len(frames[1]) == 4:
                shown[1] = b"<request>"
        return sender if life == 1 else f"{sender}, life {life}", tuple(shown)


def shown(found: tuple[Seen, str], *, in_order: bool) -> tuple[Seen, str]:
    """Received message, in the form that is compared.

    What nobody signed (subscriptions of several peers) in the order of topics, for each topic has its own; the messages of a sender in
    the order they came, if all came the same way.
    """
    seen, error = found
    ordered: Seen = {}
    for who, came in seen.items():
        if who == "?":
            ordered[who] = sorted(came, key=lambda frames: frames[0][1:])
        else:
            ordered[who] = list(came) if in_order else sorted(came)
    return ordered, error


def attempt(verb: Callable[[], None]) -> str:
    """Result of a step: "ok" or the name of the error."""
    try:
        verb()
    except ERRORS as error:
        return name_of(error)
    return "ok"


async def run(
    programme: Programme, library: Libzmq, context: core.Context, known: Callable[[Difference], object] | None = None
) -> Difference | None:
    """The difference that is there however long one waits, None if there is none.

    One that is `known` is not waited for.
    """
    found = None
    for patience in PATIENCES:
        with tempfile.TemporaryDirectory(prefix="zmq-") as folder:
            found = await Lockstep(programme, library, context, patience, Path(folder)).run()
        if found is None or (known is not None and known(found)):
            return found
    return found


async def shrink(found: Difference, library: Libzmq, context: core.Context) -> Difference:
    """Leave out steps as long as there is a difference of the same kind."""
    at = len(found.programme.steps) - 1
    while at >= 0:
        if at < len(found.programme.steps):
            less = await run(found.programme.without(at), library, context)
            if less is not None and less.what == found.what:
                found = less
        at -= 1
    return found
