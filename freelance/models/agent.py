"""The client of model 3: which server is asked, when another one is, which reply is believed (RFC 10, FLP-06 to FLP-17).

A request goes to the best live server. After a fraction of its time (`hedge_s`) a second one is asked as well, and whoever
answers first wins; after the whole of it (`try_s`) the first is given up and remembered as suspect, and so on down the list. Each
server is asked once in such a pass (FLP-11); only when all were, and none answered, a new pass begins. A server whose connection
breaks or that falls silent is given up at once. Without a live server a request waits for one. `timeout_s` after it was made a
request ends, not earlier and not never (FLP-16).

    submit ──► in play at one ──hedge_s──► in play at two ──reply──► Finished
                  ▲   │  │                     │
        a server  │   │  └──try_s, line lost───┴──► next live server, or wait
          speaks  └───┴── none live: waits ──timeout_s──► GaveUp

Every request has a control frame of its own, so any number may be outstanding (FLP-15), and a reply counts only if it carries
that of an outstanding request and comes from a server that was asked it.

A request that goes to the best server and waits for the usual time is kept in `fast_replies.py` until anything but its reply comes.

Pure: `now` in monotonic seconds; what has to be sent is returned. Nothing is scanned for what is due: one heap of moments each.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from core.machine.deadlines import Deadlines, earliest
from freelance.errors import MalformedMessage
from freelance.models.effects import Finished, GaveUp, Refused, Send
from freelance.models.fast_replies import Lane
from freelance.models.flp import PING, control_frame, decode_reply, encode_request
from freelance.models.server_list import Health, Roster

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from freelance.errors import TooLarge
    from freelance.models.effects import Effect
    from freelance.models.fast_replies import Posted

__all__ = ["Agent", "Limits"]

IN_PLAY_MAX = 2  # the one that was asked and its hedge: a slow handler must not be started everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Times and sizes of a client.

    Attributes:
        timeout_s: after which a request ends (FLP-06).
        try_s: after which a server that did not answer is given up for this request.
        hedge_s: after which a second server is asked as well; None never does.
        outstanding_max: requests at once; 10,000 of 1 KiB are 10 MiB.
        health: times of the roster.
    """

    timeout_s: float = 3.0
    try_s: float = 1.0
    hedge_s: float | None = 0.5
    outstanding_max: int = 10_000
    health: Health = field(default_factory=Health)


class Call:
    """One request until its end.

    Attributes:
        frames: as sent, control frame first.
        attempts: how often it was sent.
        asked: every server it was sent to; a reply of another is not believed.
        passed: those asked in the present pass.
        refused: those that take no request so large, over their present connection; they are not asked.
        in_play: name → when asked, of those whose answer is waited for, in the order they were asked.
    """

    __slots__ = ("asked", "attempts", "first_at", "frames", "in_play", "number", "passed", "refused")

    def __init__(self, number: int, body: Sequence[bytes], now: float) -> None:
        self.number = number
        self.frames = encode_request(control_frame(number), body)
        self.first_at = now
        self.attempts = 0
        self.asked: set[bytes] = set()
        self.passed: set[bytes] = set()
        self.refused: dict[bytes, TooLarge] = {}
        self.in_play: dict[bytes, float] = {}


class Agent:
    """Requests of one client to several servers.

    Args:
        endpoints: of the servers, most wanted first.
        limits: see `Limits`.

    Attributes:
        roster: the servers.
        counters: what was sent, dropped, given up, by name.
        first_step_s: after which, at the earliest, something is to be done about a new request.
    """

    def __init__(self, endpoints: Iterable[str], limits: Limits) -> None:
        self.roster = Roster(endpoints, limits.health)
        self.counters: Counter[str] = Counter()
        self._limits = limits
        self.first_step_s = limits.try_s if limits.hedge_s is None else min(limits.hedge_s, limits.try_s)
        self._lane = Lane([], min(self.first_step_s, limits.timeout_s))
        self._calls: dict[bytes, Call] = {}  # by control frame; those that are not in the lane
        self._waiting: dict[bytes, None] = {}  # for any live server, oldest first
        self._ends: Deadlines[bytes] = Deadlines()
        self._steps: Deadlines[bytes] = Deadlines()  # next hedge or next give-up of each request in play

    def __len__(self) -> int:
        return len(self._calls) + len(self._lane)

    def post(self, body: tuple[bytes, ...], now: float) -> tuple[int, tuple[bytes, ...], bytes] | None:
        """Take a request for the client's own timeout, if it can go the short way.

        Args:
            body: one frame of up to 255 octets.
            now: monotonic seconds.

        Returns:
            Its number, names of the servers to send it to, and its octets; None, and nothing was taken: use `submit`.
        """
        # Hot path.
        server = self.roster.best(now)
        if server is None:
            return None
        self.counters["sent"] += 1
        asked = server.alone
        number, octets = self._lane.post(body, asked, now)
        return number, asked, octets

    def express(self, name: bytes, octets: bytes, longest: int, now: float, finished: list[tuple[int, list[bytes]]]) -> int:
        """Take replies off the front of what a server sent; see `Lane.take`."""
        # Hot path.
        server = self.roster.servers.get(name)
        if server is None or not server.live or server.failures:
            return 0
        taken = self._lane.take(name, octets, longest, self._calls, finished)
        if taken:
            server.heard_at = now
            if self._lane.unknown:
                self.counters["reply_unknown"] += self._lane.unknown
                self._lane.unknown = 0
        return taken

    def submit(self, body: list[bytes], now: float, timeout_s: float | None = None) -> tuple[int, list[Effect]]:
        """Take a request; return its number and what is to be done.

        Raises:
            ValueError: no body.
        """
        server = self.roster.best(now) if timeout_s is None else None
        if server is not None:
            frames = encode_request(control_frame(self._lane.number + 1), body)
            self.counters["sent"] += 1
            return self._lane.put(body, server.alone, now), [Send(server.name, frames)]
        call = Call(self._lane.number + 1, body, now)
        self._lane.number = call.number
        key = call.frames[0]
        self._calls[key] = call
        self._ends.set(key, now + (self._limits.timeout_s if timeout_s is None else timeout_s))
        effects: list[Effect] = []
        if self._ask(call, now, effects):
            self._steps.set(key, now + self.first_step_s)
        else:
            self._waiting[key] = None
        return call.number, effects

    def refused(self, name: bytes, control: bytes, error: TooLarge, now: float) -> list[Effect]:
        """Take note that a request was not sent, because its server takes none so large; another one is asked.

        Args:
            name: of the server.
            control: control frame of the request.
            error: why.
            now: monotonic seconds.
        """
        posted = self._lane.pop(control)
        if posted is not None:
            self._take_over([posted])
        call = self._calls.get(control)
        if call is None:
            return []
        self.counters["send_refused"] += 1
        self.counters["sent"] -= 1
        call.attempts -= 1
        call.asked.discard(name)
        call.passed.discard(name)
        call.refused[name] = error
        return self._advance(call, now) if call.in_play.pop(name, None) is not None else []

    def withdraw(self, number: int) -> None:
        """Forget a request; a reply that still comes is counted as unknown."""
        if self._lane.remove(number):
            return
        call = self._calls.get(control_frame(number))
        if call is not None:
            self._forget(call)

    def add(self, endpoint: str) -> bool:
        """Take one more server, the least wanted. Returns whether it was not there; it is asked once it has joined."""
        return self.roster.add(endpoint)

    def remove(self, name: bytes, now: float) -> list[Effect]:
        """Ask a server nothing more and believe none of its replies; what it was asked goes elsewhere."""
        if name not in self.roster:
            return []
        self.roster.remove(name)
        self._take_over(self._lane.clear())
        for call in self._calls.values():
            call.asked.discard(name)  # added again it is somebody new
        return self._recall(name, now)

    def joined(self, name: bytes, now: float) -> list[Effect]:
        """There is a connection to a server (FLP-14)."""
        if name not in self.roster:
            self.counters["peer_unknown"] += 1
            return []
        return self._serve_waiting(now) if self.roster.joined(name, now) else []

    def lost(self, name: bytes, now: float) -> list[Effect]:
        """The connection to a server is gone; what it was asked goes elsewhere."""
        if name not in self.roster:
            return []
        self.roster.lost(name)
        return self._recall(name, now)

    def receive(self, name: bytes, frames: list[bytes], now: float) -> list[Effect]:
        """Take a message `[frame…]` of a server."""
        if name not in self.roster:
            self.counters["peer_unknown"] += 1  # FLP-13
            return []
        effects = self._serve_waiting(now) if self.roster.heard(name, now) else []
        try:
            reply = decode_reply(frames)
        except MalformedMessage:
            self.counters["reply_malformed"] += 1
            return effects
        if reply is None:
            self.counters["pong"] += 1
            return effects
        number = self._lane.settle(reply.control, name)
        call = self._calls.get(reply.control)
        if call is not None and name in call.asked:
            number = call.number
            self._forget(call)
        if number:
            self.roster.answered(name)
            effects.append(Finished(number, reply.body))
        elif call is None and reply.control not in self._lane.posted:
            self.counters["reply_unknown"] += 1  # late, or never asked
        else:
            self.counters["reply_unasked"] += 1
        return effects

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        self._take_over(self._lane.overdue(now))
        effects: list[Effect] = []
        for key in self._ends.due(now):
            call = self._calls[key]
            self._forget(call)
            self.counters["gave_up"] += 1
            effects.append(GaveUp(call.number, call.attempts, now - call.first_at))
        pings, dead = self.roster.tick(now)
        if self.roster.postponed:
            self.counters["verdict_postponed"] = self.roster.postponed
        for name in dead:
            self.counters["server_dead"] += 1
            effects += self._recall(name, now)
        for name in pings:
            self.counters["ping"] += 1
            effects.append(Send(name, [PING]))
        for key in self._steps.due(now):
            effects += self._advance(self._calls[key], now)
        return effects

    def deadline(self) -> float | None:
        """Return when `tick` wants to be called next; None while there is neither a connection nor a request."""
        return earliest(self._lane.deadline(), self._ends.deadline(), self._steps.deadline(), self.roster.deadline())

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _advance(self, call: Call, now: float) -> list[Effect]:
        """Give up whom time has run out for, ask whom it is time to ask, and note the next moment."""
        effects: list[Effect] = []
        limits = self._limits
        for name, asked_at in list(call.in_play.items()):
            if now >= asked_at + limits.try_s:
                del call.in_play[name]
                self.counters["try_timeout"] += 1
                self.roster.failed(name, asked_at, now)
        if not call.in_play and not self._ask_next(call, now, effects):
            if call.refused:
                self._forget(call)
                self.counters["too_large"] += 1
                return [*effects, Refused(call.number, next(iter(call.refused.values())))]
            self._waiting[call.frames[0]] = None
            self._steps.discard(call.frames[0])
            return effects
        newest = max(call.in_play.values())
        hedges = limits.hedge_s is not None and len(call.in_play) < IN_PLAY_MAX
        hedge_at = newest + limits.hedge_s if limits.hedge_s is not None else newest
        if hedges and now >= hedge_at and self._ask(call, now, effects):
            self.counters["hedged"] += 1
        next_at = min(call.in_play.values()) + limits.try_s
        if hedges and now < hedge_at:
            next_at = min(next_at, hedge_at)
        self._steps.set(call.frames[0], next_at)
        return effects

    def _ask_next(self, call: Call, now: float, effects: list[Effect]) -> bool:
        """Ask a live server that was not asked in this pass; when all were, begin a new pass."""
        if self._ask(call, now, effects):
            return True
        call.passed.clear()
        return self._ask(call, now, effects)

    def _ask(self, call: Call, now: float, effects: list[Effect]) -> bool:
        server = self.roster.take(now, call.passed | call.refused.keys() if call.refused else call.passed)
        if server is None:
            return False
        call.attempts += 1
        call.asked.add(server.name)
        call.passed.add(server.name)
        call.in_play[server.name] = now
        self.counters["sent"] += 1
        effects.append(Send(server.name, call.frames))
        return True

    def _recall(self, name: bytes, now: float) -> list[Effect]:
        """A server is gone or dead: ask others what it was asked. This is rare, so all requests are looked at."""
        self._take_over(self._lane.clear())
        effects: list[Effect] = []
        for call in list(self._calls.values()):
            call.passed.discard(name)  # back with a new connection it may be asked again
            call.refused.pop(name, None)
            if call.in_play.pop(name, None) is not None:
                effects += self._advance(call, now)
        return effects

    def _take_over(self, requests: Iterable[Posted]) -> None:
        """Look after requests that leave the lane."""
        for request in requests:
            call = Call(request.number, request.body, request.at)
            key = call.frames[0]
            call.attempts = 1
            for name in request.asked:
                call.asked.add(name)
                call.passed.add(name)
                call.in_play[name] = request.at
            self._calls[key] = call
            self._ends.set(key, request.at + self._limits.timeout_s)
            self._steps.set(key, request.at + self.first_step_s)

    def _serve_waiting(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        waiting, self._waiting = self._waiting, {}
        for key in waiting:
            effects += self._advance(self._calls[key], now)
        return effects

    def _forget(self, call: Call) -> None:
        key = call.frames[0]
        del self._calls[key]
        self._waiting.pop(key, None)
        self._ends.discard(key)
        self._steps.discard(key)
