"""Programmes of socket operations.

What a programme is, which steps make sense at a moment, and which connections there must be.

Pure: a programme is the same in every world, so what can be done next and which connections are up is worked out here and not
asked of a library.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["ONE_PER_ENDPOINT", "PAIRS", "Plan", "Programme", "Step"]

# (side A, side B); the last column of issues' tables: ten pairs, and for publishing each of its four forms.
PAIRS = (
    ("REQ", "REP"),
    ("REQ", "ROUTER"),
    ("DEALER", "REP"),
    ("DEALER", "ROUTER"),
    ("DEALER", "DEALER"),
    ("ROUTER", "ROUTER"),
    ("PUSH", "PULL"),
    ("PUB", "SUB"),
    ("XPUB", "XSUB"),
    ("PAIR", "PAIR"),
    ("PUB", "XSUB"),
    ("XPUB", "SUB"),
)
TURNS = ("PUSH", "DEALER", "REQ")  # send to one peer after the other
ONE_PER_ENDPOINT = ("DEALER", "REQ", "SUB", "PUB")  # SOCK-11


@dataclass(frozen=True, slots=True)
class Step:
    """One operation.

    Attributes:
        verb: see `Plan.allows`.
        who: the socket, "A0".
        endpoint: number of an endpoint.
        to: socket a ROUTER sends to.
        topic: of a subscription or publication.
        shape: how many frames a message has beside its envelope.
        count: messages of a `flash`.
    """

    verb: str
    who: str
    endpoint: int = -1
    to: str = ""
    topic: bytes = b""
    shape: int = 1
    count: int = 0

    def __str__(self) -> str:
        said = [self.verb, self.who]
        if self.endpoint >= 0:
            said.append(f"e{self.endpoint}")
        if self.to:
            said.append(f"to {self.to}")
        if self.verb in ("subscribe", "unsubscribe") or self.topic:
            said.append(repr(self.topic))
        if self.shape != 1:
            said.append(f"{self.shape} frames")
        if self.count:
            said.append(f"x{self.count}")
        return " ".join(said)


@dataclass(frozen=True)
class Programme:
    """A seed's programme.

    Attributes:
        kinds: Socket type of each side.
        options: of each socket by its name ("A0", "B1"); these sockets exist from the beginning.
        mixed: which side is ours in the second world: "AB" (both), "A" or "B" (the other one is libzmq's).
    """

    seed: int
    kinds: tuple[str, str]
    transport: str
    mixed: str
    options: dict[str, dict[str, Any]]
    steps: tuple[Step, ...]

    def kind(self, who: str) -> str:
        """Socket type of a socket."""
        return self.kinds[who[0] == "B"]

    def without(self, at: int) -> Programme:
        """The same without one step."""
        return replace(self, steps=(*self.steps[:at], *self.steps[at + 1 :]))

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {'-'.join(self.kinds)} over {self.transport}, ours: {self.mixed}"]
        lines += [f"  {who} {options}" for who, options in self.options.items()]
        lines += [f"  {number:2} {step}" for number, step in enumerate(self.steps)]
        return "\n".join(lines)


@dataclass
class Plan:
    """Everything bound, connected and open after the steps so far.

    Attributes:
        lives: how often each socket was opened; 0 while it is closed.
        bound: endpoint → who has it.
        connected: endpoints of each socket, in the order of its connects.
        lost: connections of inproc, which do not come back.
    """

    programme: Programme
    lives: dict[str, int] = field(default_factory=dict)
    opened: Counter[str] = field(default_factory=Counter)
    bound: dict[int, str] = field(default_factory=dict)
    connected: dict[str, list[int]] = field(default_factory=dict)
    peers: dict[str, set[str]] = field(default_factory=dict)  # ever connected to, with their lives
    cuts: Counter[str] = field(default_factory=Counter)
    refusing_sockets: set[str] = field(default_factory=set)  # have had a peer they cannot take
    twice: bool = False  # two sockets have had two connections with each other: messages may overtake
    raced: bool = False  # several peers, or of one name, have come to a socket that takes turns, and nobody knows which was first

    def __post_init__(self) -> None:
        for who in self.programme.options:
            self._open(who)

    def _open(self, who: str) -> None:
        self.opened[who] += 1
        self.lives[who] = self.opened[who]
        self.connected[who] = []

    @property
    def refusing(self) -> bool:
        """Some socket has had a peer it cannot take."""
        return bool(self.refusing_sockets)

    @property
    def inproc(self) -> bool:
        return self.programme.transport == "inproc"

    def alive(self) -> list[str]:
        """Sockets that are open."""
        return [who for who, life in self.lives.items() if life]

    def links(self) -> dict[tuple[str, int, int, int, int, str, int], None]:
        """Connections that must be up: (connecting socket, its life, endpoint, which of several, cuts, binding socket, its life)."""
        found: dict[tuple[str, int, int, int, int, str, int], None] = {}
        for who, endpoints in self.connected.items():
            nth: dict[int, int] = {}
            for endpoint in endpoints:
                nth[endpoint] = nth.get(endpoint, 0) + 1
                binder = self.bound.get(endpoint)
                if binder is not None:
                    found[who, self.lives[who], endpoint, nth[endpoint], self.cuts[who], binder, self.lives[binder]] = None
        return found

    def linked(self) -> dict[str, list[str]]:
        """Sockets with which each open one has a connection now."""
        found: dict[str, list[str]] = {who: [] for who in self.alive()}
        for connecting, _, _, _, _, binding, _ in self.links():
            found[connecting].append(binding)
            found[binding].append(connecting)
        return found

    def allows(self, step: Step) -> bool:
        """Whether the step makes sense now."""
        who, endpoint = step.who, step.endpoint
        if step.verb == "open":
            return not self.lives.get(who)
        if not self.lives.get(who):
            return False
        if (
            self.inproc
            and step.verb in ("kill", "close", "restart", "disconnect")
            and any(e not in self.bound for e in self.connected[who])
        ):
            return False  # libzmq 4.3.5 ends the process when the name is bound later: assertion in ctx.cpp
        match step.verb:
            case "bind":
                return endpoint not in self.bound and not any(endpoint in self.connected[name] for name in self._side(who))
            case "unbind":
                return self.bound.get(endpoint) == who and not any(link[2] == endpoint for link in self.links())
            case "connect":
                ours = self.bound.get(endpoint, "?")[0] == who[0]
                again = endpoint in self.connected[who] and self.programme.kind(who) not in ONE_PER_ENDPOINT
                return not ours and not again and (not self.inproc or self._joinable(who, endpoint))
            case "disconnect":
                return endpoint in self.connected[who]
            case "cut":
                return not self.inproc and any(link[0] == who for link in self.links())
            case "close":
                return all(endpoint in self.bound for endpoint in self.connected[who])
            case "flash":
                return self.bound.get(endpoint, who)[0] != who[0] and not self.inproc
            case _:
                return True

    def _joinable(self, who: str, endpoint: int) -> bool:
        """Over inproc: once a name, and early only without routing ids, which libzmq 4.3.5 fails an assertion about (pipe.cpp)."""
        early = self.programme.kinds in (("PUSH", "PULL"), ("PUB", "SUB"), ("PUB", "XSUB"))
        return endpoint not in self.connected[who] and (early or endpoint in self.bound)

    def _refuses(self, who: str, linked: list[str]) -> bool:
        """Whether a socket has a peer it cannot take.

        A PAIR one too many, a ROUTER two of the same name.
        """
        kind, options = self.programme.kind(who), self.programme.options
        if kind == "PAIR":
            return len(linked) > 1 or len(self.connected[who]) > 1
        names = [options[name]["identity"] for name in linked if "identity" in options[name]]
        return kind == "ROUTER" and len(names) > len(set(names)) and not options[who].get("router_handover")

    def _side(self, who: str) -> list[str]:
        return [name for name in self.lives if name[0] == who[0]]

    def apply(self, step: Step) -> tuple[Counter[str], Counter[str]]:
        """Do the step; returns which sockets now see how many connections come about, and how many end."""
        before = self.links()
        who = step.who
        match step.verb:
            case "open":
                self._open(who)
            case "bind":
                self.bound[step.endpoint] = who
            case "unbind":
                del self.bound[step.endpoint]
            case "connect":
                if step.endpoint not in self.connected[who] or self.programme.kind(who) not in ONE_PER_ENDPOINT:
                    self.connected[who].append(step.endpoint)
            case "disconnect":
                self.connected[who].remove(step.endpoint)
            case "cut":
                self.cuts[who] += 1
            case "close" | "kill":
                self._end(who)
            case "restart":
                return self._restart(who, before)
            case _:
                pass
        up, down = self._changes(before, self.links())
        if step.verb in ("disconnect", "unbind"):
            del down[who]  # who ends a connection itself hears nothing of it
        return up, down

    def _end(self, who: str) -> None:
        bound = [endpoint for endpoint, name in self.bound.items() if name == who]
        for endpoint in bound:
            del self.bound[endpoint]
            if self.inproc:
                for endpoints in self.connected.values():
                    if endpoint in endpoints:
                        endpoints.remove(endpoint)
        self.connected[who] = []
        self.lives[who] = 0

    def _restart(self, who: str, before: dict[tuple[str, int, int, int, int, str, int], None]) -> tuple[Counter[str], Counter[str]]:
        bound = [endpoint for endpoint, name in self.bound.items() if name == who]
        connected = list(self.connected[who])
        self._end(who)
        up, down = self._changes(before, self.links())
        self._open(who)
        between = self.links()
        self.bound.update(dict.fromkeys(bound, who))
        self.connected[who] = connected
        up_again, _ = self._changes(between, self.links())
        return up + up_again, down

    def endpoints(self, who: str) -> tuple[list[int], list[int]]:
        """Endpoints that a socket is bound and connected to."""
        return [endpoint for endpoint, name in self.bound.items() if name == who], list(self.connected[who])

    def _changes(
        self, before: dict[tuple[str, int, int, int, int, str, int], None], after: dict[tuple[str, int, int, int, int, str, int], None]
    ) -> tuple[Counter[str], Counter[str]]:
        up: Counter[str] = Counter()
        down: Counter[str] = Counter()
        linked = self.linked()
        self.twice = self.twice or any(len(peers) > len(set(peers)) for peers in linked.values())
        newcomers = Counter(link[5] for link in after if link not in before)
        names = Counter((link[5], self.programme.options[link[0]].get("identity")) for link in after if link not in before)
        self.raced = self.raced or any(count > 1 and name for (_, name), count in names.items())
        self.raced = self.raced or any(count > 1 and self.programme.kind(who) in TURNS for who, count in newcomers.items())
        self.refusing_sockets |= {name for name, peers in linked.items() if self._refuses(name, peers)}
        for link in after:
            if link not in before:
                up.update((link[0], link[5]))
                self.peers.setdefault(link[0], set()).add(f"{link[5]}.{link[6]}")
                self.peers.setdefault(link[5], set()).add(f"{link[0]}.{link[1]}")
        for link in before:
            if link not in after:
                down.update(name for name, life in ((link[0], link[1]), (link[5], link[6])) if self.lives.get(name) == life)
        return up, down
