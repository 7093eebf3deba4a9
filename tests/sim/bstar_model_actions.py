"""Actions of `bstar_model`, as numbers and as words."""

from __future__ import annotations

__all__ = ["FAULTS", "HEALS", "NAMES", "ROUND", "SEVERED"]

# An action is a kind and, in its last two bits, a server or a line.
DELIVER, RUN, ANSWER, ARRIVE, REQUEST, REQUEST_SEEN, REQUEST_LIE, TICK, RESUME, RESTART, HEAL, REJOIN, WITNESS = range(0, 52, 4)
CRASH, PAUSE, LOSE, CUT, ISOLATE, SWITCHOVER = range(52, 76, 4)
WITNESS_CRASH, WITNESS_RESTART = WITNESS, WITNESS + 1
SEVERED = (0, 1 | 2 | 4, 1 | 2 | 8, 15)
HEALS = frozenset([*range(RESUME, RESUME + 2), *range(RESTART, RESTART + 2), *range(HEAL, HEAL + 4), REJOIN, REJOIN + 1, WITNESS_RESTART])
ROUND = (
    RUN, RUN + 1, DELIVER, DELIVER + 1, DELIVER, DELIVER + 1,
    TICK, RUN, RUN + 1, ARRIVE, ARRIVE + 1, ANSWER, ANSWER + 1, DELIVER, DELIVER + 1, DELIVER, DELIVER + 1,
    REQUEST, REQUEST_SEEN, ARRIVE, ANSWER, REQUEST + 1, REQUEST_SEEN + 1, ARRIVE + 1, ANSWER + 1, DELIVER, DELIVER + 1,
)  # fmt: skip
_KINDS = {
    DELIVER: "deliver to", RUN: "run", ANSWER: "witness answers", ARRIVE: "witness reads question of",
    REQUEST: "request at", REQUEST_SEEN: "request (seen) at", REQUEST_LIE: "request (a lie) at",
    RESUME: "resume", RESTART: "restart", REJOIN: "rejoin", CRASH: "crash", PAUSE: "pause", LOSE: "lose message to", ISOLATE: "isolate",
    SWITCHOVER: "switchover at",
}  # fmt: skip
_LINES = ("A>B", "B>A", "A-witness", "B-witness")
NAMES = {kind + i: f"{text} {'AB'[i]}" for kind, text in _KINDS.items() for i in (0, 1)}
NAMES |= {HEAL + i: f"heal {line}" for i, line in enumerate(_LINES)} | {CUT + i: f"cut {line}" for i, line in enumerate(_LINES)}
NAMES |= {TICK: "tick", WITNESS_CRASH: "witness crash", WITNESS_RESTART: "witness restart"}
FAULTS = tuple(sorted(NAMES[f] for f in NAMES if f >= CRASH or f == WITNESS_CRASH))
