"""The client machines of Freelance, with everything that they do as a list of effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from core.zmtp.frames import decode_frames
from freelance.errors import NoServer, TooLarge
from freelance.models.agent import Agent, AgentLimits, AgentRequest
from freelance.models.client_machine import FreelanceRequest
from freelance.models.shotgun import Shotgun

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Effect", "Finished", "GaveUp", "Refused", "Send", "WatchedAgent", "WatchedShotgun"]


class Send(NamedTuple):
    name: bytes
    frames: list[bytes]


class Finished(NamedTuple):
    number: int
    body: list[bytes]


class GaveUp(NamedTuple):
    number: int
    attempts: int
    after_s: float


class Refused(NamedTuple):
    number: int
    error: TooLarge


Effect = Send | Finished | GaveUp | Refused


class Watched:
    """A machine whose calls return what it does."""

    def __init__(self, machine: Any, kind: type[FreelanceRequest]) -> None:
        self.machine = machine
        self.kind = kind
        self.asked: list[Any] = []
        self.counters = machine.counters

    def __len__(self) -> int:
        return len(self.machine)

    def submit(self, body: list[bytes], now: float, timeout_s: float | None = None) -> tuple[int, list[Effect]]:
        pending = self.kind(body, timeout_s)
        self.machine.submit(pending, now)
        self.asked.append(pending)
        return int(pending.key), self.effects([])

    def withdraw(self, number: int, now: float = 0.0) -> None:
        self.machine.cancel(self.asked[number - 1], now)

    def receive(self, name: bytes, frames: list[bytes], now: float) -> list[Effect]:
        return self.effects(self.machine.receive([[name, *frames]], now))

    def joined(self, name: bytes, now: float) -> list[Effect]:
        return self.effects(self.machine.joined(name, now))

    def lost(self, name: bytes, now: float) -> list[Effect]:
        return self.effects(self.machine.lost(name, now))

    def remove(self, name: bytes, now: float) -> list[Effect]:
        return self.effects(self.machine.remove(name, now))

    def add(self, endpoint: str) -> bool:
        added: bool = self.machine.add(endpoint)
        return added

    def tick(self, now: float) -> list[Effect]:
        return self.effects(self.machine.tick(now))

    def deadline(self) -> float | None:
        self.machine.timeouts.expired(float("-inf"))  # which leaves none that is too early
        at: float = self.machine.deadline()
        return None if at == float("inf") else at

    def effects(self, settled: Iterable[FreelanceRequest]) -> list[Effect]:
        done: list[Effect] = []
        for pending in settled:
            number = int(pending.key)
            if pending.error is None:
                assert pending.reply is not None
                done.append(Finished(number, pending.reply))
            elif isinstance(pending.error, TooLarge):
                done.append(Refused(number, pending.error))
            else:
                assert isinstance(pending.error, NoServer)
                done.append(GaveUp(number, pending.error.attempts, pending.error.after_s))
        for name, message in self.machine.outgoing:
            done.append(Send(name, decode_frames(message) if isinstance(message, bytes) else message))
        self.machine.outgoing = []
        return done


class WatchedAgent(Watched):
    """Model 3."""

    machine: Agent

    def __init__(self, endpoints: Iterable[str], limits: AgentLimits) -> None:
        super().__init__(Agent(endpoints, limits), AgentRequest)
        self.servers = self.machine.servers


class WatchedShotgun(Watched):
    """Model 2."""

    machine: Shotgun

    def __init__(self, endpoints: Iterable[str], timeout_s: float) -> None:
        super().__init__(Shotgun(endpoints, timeout_s), FreelanceRequest)
