"""A scene with the broker's machine that records what happens.

It writes down what peers send, what each of them receives, and which numbers change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from core.zmtp.limits import PeerLimits
from mdp.access.rules import Rules
from mdp.broker.authorization import GuardedDispatcher
from mdp.broker.dispatcher import Dispatcher
from mdp.broker.recorder import Recorder
from mdp.broker.workers.peer_limits import Hops
from mdp.eventlog.format import KINDS
from mdp.wire.commands import client_request, worker_final, worker_ready
from mdp.wire.events import Work, parse_at_worker
from mdp.wire.options import encode_options
from tests.scenes.mdp_dispatcher import ECHO, Scene, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdp.broker.limits import BrokerOptions
    from mdp.eventlog.format import Block
    from mdp.wire.commands import Dialect

__all__ = ["Tale"]

SMALL: dict[str, float | bool] = {
    "heartbeat_ms": 1000,
    "busy_ms": 9000,
    "queue_ms": 5000,
    "service_idle_ms": 4000,
    "deliveries_max": 2,
    "parts_max_bytes": 24,
    "letters_max": 2,
    "manage": True,
}
RULES = Rules({"allow": [{"who": ["*"], "call": ["*"], "serve": ["*"], "manage": ["*"], "see_users": ["*"]}]})
SHOWN = 100  # octets of a frame


def short(text: str, count: int, of: str) -> str:
    """Return a text, or how it begins and its checksum."""
    return text if len(text) <= SHOWN else f"{text[:24]}… {count} {of}, {crc32(text.encode()):08x}"


def shown(block: Block) -> str:
    """Return an event, without empty fields.

    The numbers of requests are left out too: some of them are internal to the broker.
    """
    said = [(name, value) for name, value in zip(block._fields, block, strict=True) if name not in {"kind", "events", "ids", "time"}]
    told = [f"{name}={round(value, 3) if isinstance(value, float) else value!r}" for name, value in said if value]
    return " ".join((KINDS[block.kind], str(block.events), *told))


class Tale(Scene):
    """A scene that writes down what happens in it; workers are called W…, all others are clients."""

    def __init__(self, *, guarded: bool = False, narrow: Sequence[bytes] = (), watched: bool = True, **options: Any) -> None:
        self.guarded = guarded
        super().__init__(**{**SMALL, **options})
        self.lines: list[str] = []
        self.tokens: dict[bytes, list[bytes]] = {}
        self._names: dict[bytes, bytes] = {}
        self._blocks: list[Block] = []
        self._numbers = self.machine.stats()
        self._due = self.machine.deadline()
        if watched:
            self.machine.request_table.recorder = Recorder(self._blocks.append)
            self.twin.request_table.recorder = Recorder(lambda _: None)
        if narrow:
            for machine in (self.machine, self.twin):
                machine.request_table.hops = Hops(PeerLimits(), dict.fromkeys(narrow, PeerLimits(64, 30_000)).get)
            for peer in narrow:
                self.both("peer_joined", peer)

    def new_machine(self, limits: BrokerOptions) -> Dispatcher:
        if self.guarded:
            return GuardedDispatcher(limits, RULES, user_of=lambda peer: peer.decode().lower(), audit=lambda _: None, now=self.now)
        return Dispatcher(limits, now=self.now)

    # What is written down.

    def named(self, peer: bytes, frames: Sequence[bytes]) -> str:
        shown = []
        for frame in frames:
            if peer.startswith(b"W"):
                for token, name in self._names.items():
                    frame = frame.replace(token, name)
            shown.append(short(repr(frame)[2:-1], len(frame), "octets"))
        return short(" | ".join(shown), len(frames), "frames")

    def take(self, out: list[list[bytes]], twins: list[list[bytes]]) -> list[list[bytes]]:
        decoded = super().take(out, twins)
        for peer, *frames in sorted(decoded, key=lambda message: message[0]):
            if peer.startswith(b"W") and isinstance(work := parse_at_worker(frames), Work):
                self._names.setdefault(work.id, b"#%d" % (len(self._names) + 1))
                self.tokens.setdefault(peer, []).append(work.id)
            self.lines.append(f"    {peer.decode()}: {self.named(peer, frames)}")
        numbers = self.machine.stats()
        changed = [f"{name} {now - self._numbers[name]:+d}" for name, now in numbers.items() if now != self._numbers[name]]
        if changed:
            self.lines.append("    = " + ", ".join(changed))
        self._numbers = numbers
        due = self.machine.deadline()
        if due != self._due:
            self.lines.append(f"    due {due - self.now:.3f}")
            assert due > self._due or self.machine.request_table.timer_changed, "the clock would be late"
        self._due = due
        self.machine.request_table.timer_changed = self.twin.request_table.timer_changed = False
        self.lines += [f"    log {shown(block)}" for block in self._blocks]
        self._blocks.clear()
        return decoded

    def note(self, text: str) -> None:
        for machine in (self.machine, self.twin):
            if machine.request_table.recorder is not None:
                machine.request_table.recorder.now = self.now
        self.lines.append(f"{self.now - 1000:.3f} {text}")

    # What happens.

    def says(self, peer: bytes, *messages: Sequence[bytes]) -> None:
        """Let a peer say something; several messages come in one read."""
        for frames in messages:
            self.note(f"{peer.decode()} says {self.named(peer, frames)}")
        self.send(peer, *messages)

    def goes(self, *peers: bytes) -> None:
        for peer in peers:
            self.note(f"{peer.decode()} is gone")
            self.lose(peer)

    def later(self, seconds: float) -> None:
        """Let time pass, noting each tick at which something happens."""
        end = self.now + seconds
        while (due := self.machine.deadline()) <= end:
            self.now = max(self.now, due)
            at = len(self.lines)
            self.note("tick")
            self.both("tick")
            if all(line.startswith("    due ") for line in self.lines[at + 1 :]):
                del self.lines[at:]  # the next event shows when it is due
        self.now = end

    def calls(self, method: str, *args: object) -> None:
        self.note(method)
        self.both(method, *args)

    # Words for the commonest.

    def comes(self, dialect: Dialect, peer: bytes = b"W1", service: bytes = ECHO, **options: Any) -> None:
        self.says(peer, worker_ready(dialect, service, options=encode_options(options)))

    def asks(self, dialect: Dialect, peer: bytes, *body: bytes, service: bytes = ECHO, **options: Any) -> None:
        self.says(peer, self.request(dialect, *body, service=service, **options))

    def request(self, dialect: Dialect, *body: bytes, service: bytes = ECHO, **options: Any) -> list[bytes]:
        if dialect == "0.3":
            self._ids += 1
        return client_request(
            dialect, service, body or (b"x",), id=number(self._ids) if dialect == "0.3" else b"", options=encode_options(options)
        )

    def token(self, peer: bytes = b"W1") -> bytes:
        """Return the oldest number a worker was given and has not used."""
        return self.tokens[peer].pop(0)

    def ends(self, dialect: Dialect, peer: bytes = b"W1", *body: bytes) -> None:
        self.says(peer, worker_final(dialect, self.token(peer), body or (b"y",)))
