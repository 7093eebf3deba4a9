"""Programmes from seeds."""

from __future__ import annotations

import random
from typing import Any, Final

from tests.interop.differential.plan import PAIRS, Plan, Programme, Step

__all__ = ["programme_of"]

TOPICS: Final = (b"", b"a", b"ab", b"b", b"abc")
ENDPOINTS: Final = 3
STEPS: Final = (6, 16)
CONFLATING: Final = {("PUSH", "PULL"), ("PUB", "SUB"), ("DEALER", "ROUTER"), ("DEALER", "DEALER")}


def programme_of(seed: int) -> Programme:
    """The programme of a seed."""
    rng = random.Random(seed)
    kinds = rng.choice(PAIRS)
    transport = rng.choice(("tcp", "tcp", "ipc", "inproc", "inproc"))
    mixed = "AB" if transport == "inproc" else rng.choice(("AB", "AB", "AB", "A", "B"))
    several = 1 if kinds == ("PAIR", "PAIR") and rng.random() < 0.8 else 3
    names = [f"A{n}" for n in range(rng.randint(1, several))] + [f"B{n}" for n in range(rng.randint(1, several))]
    conflate = kinds in CONFLATING and rng.random() < 0.1
    same_name = rng.random() < 0.12
    options = {who: _options(rng, who, kinds, conflate, same_name) for who in names}
    empty = Programme(seed, kinds, transport, mixed, options, ())
    return Programme(seed, kinds, transport, mixed, options, _steps(rng, empty, single=conflate))


def _options(rng: random.Random, who: str, kinds: tuple[str, str], conflate: bool, same_name: bool) -> dict[str, Any]:
    kind = kinds[who[0] == "B"]
    options: dict[str, Any] = {}

    def maybe(name: str, value: Any, chance: float) -> None:
        if rng.random() < chance:
            options[name] = value

    if kind in ("DEALER", "REQ", "ROUTER"):
        maybe("identity", b"same" if same_name else who.encode(), 1.0 if kinds == ("ROUTER", "ROUTER") else 0.7)
        maybe("probe_router", 1, 0.15)
    if kind == "ROUTER":
        maybe("router_mandatory", 1, 0.4)
        maybe("router_handover", 1, 0.7 if same_name else 0.2)
    if kind == "REQ":
        maybe("req_relaxed", 1, 0.3)
        maybe("req_correlate", 1, 0.3)
    if kind == "XPUB":
        maybe("xpub_verbose", 1, 0.2)
        maybe("xpub_verboser", 1, 0.2)
    maybe("immediate", 1, 0.15)
    maybe("sndhwm", rng.choice((1, 2, 3, 5)), 0.25)
    maybe("rcvhwm", rng.choice((1, 2, 3, 5)), 0.25)
    if conflate and kind != "ROUTER":
        maybe("conflate", 1, 0.6)
    return options


def _steps(rng: random.Random, programme: Programme, *, single: bool) -> tuple[Step, ...]:
    plan = Plan(programme)
    steps: list[Step] = []

    def take(step: Step) -> None:
        if plan.allows(step):
            plan.apply(step)
            steps.append(step)

    names = list(programme.options)
    for who in names:
        if programme.kind(who) in ("SUB", "XSUB") and rng.random() < 0.9:
            take(Step("subscribe", who, topic=rng.choice(TOPICS)))
    binding = rng.choice("AB")
    beginning = [Step("bind", who, endpoint) for endpoint, who in enumerate(name for name in names if name[0] == binding)]
    beginning += [
        Step("connect", who, endpoint)
        for who in names
        for endpoint in range(ENDPOINTS)
        if who[0] != binding and (rng.random() < 0.7 or endpoint == 0)
    ]
    if rng.random() < 0.3:
        rng.shuffle(beginning)
    for step in beginning:
        take(step)
    for _ in range(rng.randint(*STEPS)):
        take(_step(rng, programme, plan, single=single))
    return tuple(steps)


VERBS: Final = (
    ("send", 40),
    ("recv", 20),
    ("subscribe", 3),
    ("unsubscribe", 3),
    ("connect", 3),
    ("bind", 3),
    ("disconnect", 2),
    ("unbind", 1),
    ("restart", 4),
    ("kill", 3),
    ("open", 5),
    ("close", 2),
    ("cut", 3),
    ("flash", 1),
)


def _step(rng: random.Random, programme: Programme, plan: Plan, *, single: bool) -> Step:
    names = list(programme.options)
    closed = [who for who in names if not plan.lives[who]]
    verb = rng.choices([verb for verb, _ in VERBS], [weight for _, weight in VERBS])[0]
    who = rng.choice(closed if verb == "open" and closed else names)
    if verb == "send" and programme.kind(who) in ("PULL", "SUB"):
        who = rng.choice([name for name in names if name[0] != who[0]])
    if verb == "recv" and programme.kind(who) in ("PUSH", "PUB"):
        who = rng.choice([name for name in names if name[0] != who[0]])
    if verb in ("subscribe", "unsubscribe"):
        subscribers = [name for name in names if programme.kind(name) in ("SUB", "XSUB")]
        if not subscribers:
            return Step("recv", who)
        return Step(verb, rng.choice(subscribers), topic=rng.choice(TOPICS))
    endpoint = rng.randrange(ENDPOINTS) if verb in ("bind", "connect", "disconnect", "unbind", "flash") else -1
    others = [name for name in names if name[0] != who[0]]
    to = rng.choice(others) if verb == "send" and programme.kind(who) == "ROUTER" else ""
    topic = rng.choice(TOPICS) if verb == "send" and "PUB" in programme.kind(who) else b""
    shape = 1 if single or verb != "send" else rng.choice((1, 1, 1, 2, 3))
    return Step(verb, who, endpoint, to, topic, shape, rng.choice((1, 5, 50)) if verb == "flash" else 0)
