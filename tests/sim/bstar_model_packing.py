"""States of `bstar_model` as numbers: its parts are numbered, packed into one integer, and their counters kept small."""

from __future__ import annotations

from abc import ABC, abstractmethod

from bstar.machine.ballot import NO_BALLOT, Ballot
from tests.sim.bstar_model_parts import Mail, Parts, Server, Witness, World

__all__ = ["PackedStates"]


class PackedStates(ABC):
    """The numbered parts of all states met so far.

    Args:
        lag: counter above which gaps are shortened.
    """

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self.servers, self.witnesses, self.worlds = Parts[Server](), Parts[Witness](), Parts[World]()
        self.mails = Parts[Mail | None]()
        self.mails.number(None)  # 0 is no mail
        self.serving: list[Ballot | None] = []  # by server id: the ballot it may answer under

    @abstractmethod
    def serving_ballot(self, s: Server) -> Ballot | None:
        """Return the ballot a server may answer under; the machine under test decides."""

    def server_number(self, s: Server) -> int:
        number = self.servers.number(s)
        if number == len(self.serving):
            self.serving.append(self.serving_ballot(s))
        return number

    @staticmethod
    def pack(a: int, b: int, w: int, ab: int, ba: int, world: int) -> int:
        return a | b << 20 | w << 40 | ab << 54 | ba << 70 | world << 86

    @staticmethod
    def unpack(state: int) -> tuple[int, int, int, int, int, int]:
        return (
            state & 0xFFFFF,
            state >> 20 & 0xFFFFF,
            state >> 40 & 0x3FFF,
            state >> 54 & 0xFFFF,
            state >> 70 & 0xFFFF,
            state >> 86,
        )

    def aged_witness(self, wid: int) -> int:
        w: Witness = self.witnesses[wid]
        remaining = max(0, w.left - 1)
        holder = w.holder if remaining else NO_BALLOT
        return self.witnesses.number(w._replace(left=remaining, holder=holder, closed_left=max(0, w.closed_left - 1)))

    def fold(self, a: int, b: int, w: int, ab: int, ba: int, world: int) -> int:
        """Pack a state; once a counter is above `lag`, with every gap between two counters shortened to two.

        Equal stays equal and higher stays higher. Drawing a ballot adds one to the highest number known, so gaps of none, one and
        more than one are all there is to tell apart in the next step.
        """
        first: Server = self.servers[a]
        second: Server = self.servers[b]
        if max(first.counter, second.counter) <= self.lag:
            return self.pack(a, b, w, ab, ba, world)
        short = self.shortened(a, b, w, ab, ba, world)

        def low(counter: int) -> int:
            return short[counter]

        def low_ballot(ballot: Ballot) -> Ballot:
            return Ballot(low(ballot.counter), ballot.node)

        def low_server(sid: int) -> int:
            s: Server = self.servers[sid]
            answer = s.answer and s.answer._replace(counter=low(s.answer.counter), highest=low_ballot(s.answer.highest))
            question = s.question and s.question._replace(counter=low(s.question.counter))
            return self.server_number(
                s._replace(
                    disk=low(s.disk),
                    won=low(s.won),
                    counter=low(s.counter),
                    ballot=low(s.ballot),
                    answer=answer,
                    question=question,
                    heard_ballot=low(s.heard_ballot),
                ),
            )

        def low_mail(mid: int) -> int:
            mail: Mail | None = self.mails[mid]
            return self.mails.number(mail and mail._replace(counter=low(mail.counter), ack_ballot=low(mail.ack_ballot)))

        witness: Witness = self.witnesses[w]
        env: World = self.worlds[world]
        return self.pack(
            low_server(a),
            low_server(b),
            self.witnesses.number(witness._replace(holder=low_ballot(witness.holder), highest=low_ballot(witness.highest))),
            low_mail(ab),
            low_mail(ba),
            self.worlds.number(env._replace(seen=low_ballot(env.seen))),
        )

    def shortened(self, a: int, b: int, w: int, ab: int, ba: int, world: int) -> dict[int, int]:
        """Return the new number of each counter in a state."""
        counters = {0}
        for sid in (a, b):
            s: Server = self.servers[sid]
            counters.update((s.disk, s.won, s.counter, s.ballot, s.heard_ballot))
            if s.answer is not None:
                counters.update((s.answer.counter, s.answer.highest.counter))
            if s.question is not None:
                counters.add(s.question.counter)
        for mid in (ab, ba):
            mail: Mail | None = self.mails[mid]
            counters.update((mail.counter, mail.ack_ballot) if mail else ())
        witness: Witness = self.witnesses[w]
        env: World = self.worlds[world]
        counters.update((witness.holder.counter, witness.highest.counter, env.seen.counter))
        short, last, number = {0: 0}, 0, 0
        for counter in sorted(counters - {0}):
            number += min(2, counter - last) if number else 1
            short[counter], last = number, counter
        return short
