"""A server of a pair without sockets: its reactor, its machine, and parts that keep what they are asked for."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

from bstar.machine.ballot import MEMBER_JUMP_MAX, NO_BALLOT, Ballot, Ceiling, Record, RecordRole
from bstar.machine.driver import Machine
from bstar.machine.fsm import State, Verdict
from bstar.machine.member_values import Settings
from bstar.machine.wire import StateMessage, WitnessAnswer, WitnessAnswerKind
from bstar.net.ballot_writer import BallotWriter
from bstar.net.readiness import Troubles
from bstar.reactor import Reactor

__all__ = ["BEAT_S", "NODE", "PEER", "Server", "rounds"]

NODE, PEER = 7, 9
BEAT_S = 1.0


class Channel:
    """Keeps what is published."""

    def __init__(self) -> None:
        self.published: list[tuple[State, StateMessage, bool]] = []

    def publish(self, digit: State, message: StateMessage, *, peer_is_stock: bool) -> None:
        self.published.append((digit, message, peer_is_stock))


class Lease:
    """Keeps what the witness is asked."""

    trouble = ""

    def __init__(self) -> None:
        self.asked: list[tuple[Ballot, bool]] = []
        self.released: list[Ballot] = []

    def ask(self, ballot: Ballot, *, holding: bool, now: float) -> None:
        assert now == asyncio.get_running_loop().time()
        self.asked.append((ballot, holding))

    def release(self, ballot: Ballot) -> None:
        self.released.append(ballot)

    def delay_reason(self, now: float) -> str:
        return "slow"


class Votes:
    """Keeps what becomes of held requests."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def release_held(self) -> None:
        self.told.append("released")

    def refuse_held(self) -> None:
        self.told.append("refused")


class Server(Reactor):
    """A reactor with a machine of its own."""

    def __init__(self, role: State = State.PRIMARY, *, lease_s: float = 0.0, counter: int = 0, compatible: bool = False) -> None:
        counters: Counter[str] = Counter()
        self.behind_s = 0.0  # what its clock has lost against that of the loop
        loop = asyncio.get_running_loop()

        def clock() -> float:
            return loop.time() - self.behind_s

        writer = BallotWriter(None, Record(RecordRole.SERVER, NODE, 1, counter), counters=counters, clock=clock)
        super().__init__(
            role, 1000, writer, compatible=compatible, counters=counters, clock=clock, context=None, security=None, socket_options=None
        )
        self.channel, self.lease, self.votes = Channel(), Lease(), Votes()
        self.settings = Settings(role, not compatible, NODE, 1, BEAT_S, lease_s)
        self._counter = counter

    async def _start(self) -> None:
        self._channel = cast("Any", self.channel)
        self._lease_client = cast("Any", self.lease) if self.settings.lease_s else None
        self._voter = cast("Any", self.votes)
        self._troubles = Troubles(self._writer, Ceiling(self._counter, MEMBER_JUMP_MAX, self._clock()), self.counters, self._clock)
        self._machine = Machine(self.settings, self._counter, self._clock())
        self._carry_out(self._machine.started())

    async def _stop(self) -> None:
        self._machine = None
        await self._callbacks.close()

    def hears(self, state: State, sequence: int, counter: int = 0, **fields: Any) -> None:
        """Receive a state message of the peer."""
        other = State.BACKUP if self.role is State.PRIMARY else State.PRIMARY
        ballot = Ballot(counter, PEER) if counter else NO_BALLOT
        given: dict[str, Any] = {"role": other, "node": PEER, "incarnation": 1, "ballot": ballot, "heartbeat_ms": 1000}
        self._on_state_message(StateMessage(state, sequence=sequence, **(given | fields)))

    def answered(
        self, kind: WitnessAnswerKind, ballot: Ballot, highest: int = 0, holder: Ballot | None = None, wait_ms: int = 2000
    ) -> None:
        """Receive an answer of the witness to a question that was asked just now."""
        answer = WitnessAnswer(kind, 1, ballot if holder is None else holder, Ballot(highest, PEER), wait_ms)
        self._on_witness_answer(answer, ballot, self._clock())

    def trouble(self) -> str:
        return self._troubles.text(self.machine, self._lease_client)

    async def serve_alone(self) -> None:
        """Have no peer for two heartbeats, then a vote."""
        await asyncio.sleep(2 * BEAT_S)
        assert self.verdict(NO_BALLOT) is Verdict.HOLD
        await rounds()
        if self.settings.lease_s:
            self.answered(WitnessAnswerKind.GRANTED, self.lease.asked[-1][0])
            await rounds()
        assert self.serves()


async def rounds() -> None:
    for _ in range(8):
        await asyncio.sleep(0)
