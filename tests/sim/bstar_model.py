"""An exhaustive search of Binary Star: the shipped step functions, two servers, a witness, and all events.

The servers of the model are `bstar.member.Member` values moved by the functions a real server runs; the witness is
`bstar.ballot.LeaseTable`. The model adds the world round them:

time        one tick is one heartbeat. Time passes for everybody at once; each server that is awake then does its `tick` before the
            next one, in any order with everything else, so a request can come before the server has looked at the clock.
state       the newest message per direction waits until it is delivered (BST-18: a server reads to the newest). `sync`: it is
channel     delivered within the tick, if it can be, and before a request is looked at. Otherwise it may be as late as it likes.
witness     answers at once, or (`late`) any time within two ticks, or never. With `late_questions` a question may also arrive
            late, even after its asker has crashed, given up or released what it asks for.
faults      out of a budget: crash, pause, loss of the waiting message, cut of one direction of the state channel, cut of the line to
            the witness, isolation of a server, crash of the witness, an operator's switchover.
            Restart, resume and heal cost nothing.

A time is kept as what is left of it, and a counter by its place among the others, so the number of states is finite. A
state is one integer made of the numbers of its parts; a part's reaction to an event is computed once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bstar.machine import effects, member_values
from bstar.machine import member as members
from bstar.machine.ballot import NO_BALLOT, Ballot, LeaseTable
from bstar.machine.fsm import State, Verdict
from bstar.machine.member_values import Claim, Member, Settings
from bstar.machine.wire import Flag, StateMessage
from tests.sim.bstar_model_actions import (
    ANSWER,
    ARRIVE,
    CRASH,
    CUT,
    DELIVER,
    HEAL,
    ISOLATE,
    LOSE,
    NAMES,
    PAUSE,
    REJOIN,
    REQUEST,
    REQUEST_LIE,
    REQUEST_SEEN,
    RESTART,
    RESUME,
    RUN,
    SWITCHOVER,
    TICK,
    WITNESS,
    WITNESS_CRASH,
    WITNESS_RESTART,
)  # fmt: skip
from tests.sim.bstar_model_packing import PackedStates
from tests.sim.bstar_model_parts import CRASHED, HALTED, PAUSED, UP, Answer, Mail, Question, Server, Witness, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bstar.machine.member_values import Outcome

__all__ = ["Model", "RuleBroken"]

LEASE_TICKS = 2
ROLES = (State.PRIMARY, State.BACKUP)


class RuleBroken(Exception):
    """A single step did what must never be done."""


class Model(PackedStates):
    """The pair in its world.

    Args:
        ballots_on: False is the guide's machine, shipped as the compatible mode.
        witness: whether there is one.
        faults: the budget.
        sync: state messages are delivered within a tick if they can be.
        late: the witness's answers may be late.
        late_questions: and so may the questions.
        clients: clients remember the highest ballot and tell it.
        liars: clients name ballots nobody ever drew, too.
        kinds: names of the faults that may happen, all of them when empty.
        lag: counter above which gaps are shortened.
        coarse: servers tick the moment time passes, A first.
        nodes: node ids of primary and backup.
        witness_keeps: the witness has a file.
    """

    def __init__(
        self,
        *,
        ballots_on: bool = True,
        witness: bool = True,
        faults: int = 2,
        sync: bool = True,
        late: bool = False,
        clients: bool = False,
        kinds: Iterable[str] = (),
        lag: int = 4,
        nodes: tuple[int, int] = (1, 2),
        witness_keeps: bool = True,
        coarse: bool = False,
        late_questions: bool = False,
        liars: bool = False,
    ) -> None:
        super().__init__(lag)
        self.ballots_on, self.witness, self.sync, self.late, self.clients = ballots_on, witness, sync, late, clients
        self.nodes, self.witness_keeps, self.late_questions = nodes, witness_keeps, late_questions
        self.liars = liars
        self.kinds, self.coarse, self.drain = frozenset(kinds), coarse, ballots_on and sync
        lease_s = float(LEASE_TICKS) if witness else 0.0
        self.settings = tuple(Settings(role, ballots_on, node, 1, 1.0, lease_s) for role, node in zip(ROLES, nodes, strict=True))
        self.memo: dict[tuple[int, int, int, int, int, bool, Ballot], tuple[int, int, int, int]] = {}
        self.actions: dict[tuple[int, ...], tuple[int, ...]] = {}
        a, b = (self.server_number(self.started(i, Server(CRASHED))) for i in (0, 1))
        self.first = self.pack(a, b, self.witnesses.number(Witness()), 0, 0, self.worlds.number(World(faults=faults)))

    # --- a server's reaction ---------------------------------------------------------------------------------------------

    def member_of(self, s: Server) -> Member:
        return Member(
            s.state, s.counter, s.ballot, s.claim, s.claim_left, s.lease_left, 0.0, 0.0, s.awake_left, s.peer_state,
            s.peer_left, member_values.NO_PEER, s.yield_left,
        )  # fmt: skip

    def server_of(self, s: Server, m: Member) -> Server:
        """Return the server with its member in one form per meaning: what can no longer matter is zero."""
        claiming = m.claim is not Claim.IDLE
        active = m.state is State.ACTIVE
        peer_left = left(m.peer_until)
        return s._replace(
            state=m.state,
            counter=m.counter,
            ballot=m.ballot if claiming or active else 0,
            claim=m.claim,
            claim_left=left(m.claim_until) if claiming else 0,
            lease_left=left(m.lease_until) if active else 0,
            awake_left=left(m.awake_until),
            peer_state=m.peer_state if peer_left else None,
            peer_left=peer_left,
            yield_left=left(m.yield_until),
        )

    def serving_ballot(self, s: Server) -> Ballot | None:
        i = 0  # roles differ in nothing `may_answer` looks at; the node does not matter for whether
        if s.status != UP or not member_values.may_answer(self.settings[i], self.member_of(s), 0.0):
            return None
        return Ballot(s.ballot, 0)

    def started(self, i: int, s: Server) -> Server:
        outcome = members.start(self.settings[i], s.disk, 0.0)
        return self.server_of(Server(UP, disk=s.disk, won=s.won, question=s.question), outcome.member)

    def perform(
        self, i: int, s: Server, w: Witness, reach: bool, event: Callable[[Settings, Member], Outcome]
    ) -> tuple[Server, Witness, Mail | None, bool]:
        """Let an event happen to server i and carry out its effects; an answer of the witness may wait.

        Returns:
            The server, the witness, the state message it published, and whether a request was answered.
        """
        settings = self.settings[i]
        outcome = event(settings, self.member_of(s))
        m, answered = outcome.member, outcome.verdict is Verdict.ACCEPT
        queue, announced = list(outcome.effects), False
        while queue:
            effect = queue.pop(0)
            done: Outcome | None = None
            match effect:
                case effects.Persist(counter):
                    s = s._replace(disk=max(s.disk, counter))
                    done = members.persisted(settings, m, counter, 0.0)
                case effects.Ask(ballot, holding):
                    if self.late_questions:
                        s = s._replace(question=Question(ballot.counter, holding, 0))
                    elif reach and w.up:
                        w, answer = self.ask(w, ballot, holding)
                        if self.late:
                            s = s._replace(answer=answer)
                        else:
                            done = self.answered(settings, m, answer)
                case effects.Release(ballot):
                    if reach and w.up:
                        w = self.book_to(w, self.book_of(w).release(ballot, 0.0))
                case effects.BecameActive(ballot):
                    if ballot.counter and ballot.counter <= s.won:
                        raise RuleBroken("one ballot served twice")
                    s = s._replace(won=max(s.won, ballot.counter))
                    if outcome.verdict is Verdict.HOLD:
                        answered = True
                case effects.Announce():
                    announced = True
                case effects.Halt(_):
                    return Server(HALTED, disk=s.disk, won=s.won, question=s.question), w, None, False
                case _:
                    pass
            if done is not None:
                m = done.member
                queue.extend(done.effects)
        said = member_values.describe(settings, m, 1, 0.0)
        acked = (s.heard_ballot, s.heard_age) if self.witness else (0, 0)
        mail = Mail(said.state, said.ballot.counter, Flag.YIELDS in said.flags, 0, *acked) if announced else None
        return self.server_of(s, m), w, mail, answered

    def ask(self, w: Witness, ballot: Ballot, holding: bool) -> tuple[Witness, Answer]:
        book, answer = self.book_of(w).ask(ballot, holding=holding, lease_s=LEASE_TICKS, now=0.0)
        return self.book_to(w, book), Answer(answer.granted, ballot.counter, answer.highest, 0)

    def answered(self, settings: Settings, m: Member, answer: Answer) -> Outcome:
        ballot = Ballot(answer.counter, settings.node)
        if answer.granted:
            return members.granted(settings, m, ballot, -answer.age, LEASE_TICKS, 0.0)
        return members.refused(settings, m, ballot, answer.highest, 1.0, 0.0)

    @staticmethod
    def book_of(w: Witness) -> LeaseTable:
        return LeaseTable(w.holder, w.left, w.highest, w.closed_left)

    @staticmethod
    def book_to(w: Witness, book: LeaseTable) -> Witness:
        until = left(book.until)
        return w._replace(holder=book.holder if until else NO_BALLOT, left=until, highest=book.highest, closed_left=left(book.closed_until))

    # --- actions: (kind, server) as one number ---------------------------------------------------------------------------

    def enabled(self, state: int) -> tuple[int, ...]:
        a, b, w, ab, ba, world = self.unpack(state)
        key = (a, b, w, ab > 0, ba > 0, world)
        found = self.actions.get(key)
        if found is None:
            found = self.actions[key] = tuple(self.list_actions(*key))
        return found

    def list_actions(self, a: int, b: int, w: int, ab: bool, ba: bool, world: int) -> Iterable[int]:
        servers: list[Server] = [self.servers[a], self.servers[b]]
        witness: Witness = self.witnesses[w]
        env: World = self.worlds[world]
        mails = (ba, ab)  # to A, to B
        can_read = [mails[i] and servers[i].status == UP and not env.severed() & (2 >> i) for i in (0, 1)]
        waiting = any(s.status == UP and s.due for s in servers) or (self.sync and any(can_read))
        if not waiting:
            yield TICK
        for i in (0, 1):
            s = servers[i]
            if s.question is not None and witness.up and not env.severed() & 4 << i:
                yield ARRIVE + i
            if s.status == UP:
                yield from (kind + i for kind in ([RUN] if s.due else []))
                if can_read[i]:
                    yield DELIVER + i
                if s.answer is not None:
                    yield ANSWER + i
                if not (can_read[i] and self.drain):
                    yield REQUEST + i
                    if self.clients and env.seen != NO_BALLOT:
                        yield REQUEST_SEEN + i
                    if self.liars:
                        yield REQUEST_LIE + i
            elif s.status == PAUSED:
                yield RESUME + i
            elif s.status == CRASHED:
                yield RESTART + i
            yield from (HEAL + bit for bit in ((0, 2), (1, 3))[i] if env.cut & 1 << bit)
            if env.alone & 1 << i:
                yield REJOIN + i
        if self.witness and not witness.up:
            yield WITNESS_RESTART
        if env.faults:
            yield from (f for f in self.list_faults(servers, witness, env, mails) if not self.kinds or NAMES[f] in self.kinds)

    def list_faults(self, servers: list[Server], witness: Witness, env: World, mails: tuple[bool, bool]) -> Iterable[int]:
        for i in (0, 1):
            if servers[i].status in (UP, PAUSED):
                yield CRASH + i
            if servers[i].status == UP:
                yield PAUSE + i
                if self.ballots_on and servers[i].state is State.ACTIVE:
                    yield SWITCHOVER + i
            if mails[i]:
                yield LOSE + i
            if not env.alone & 1 << i:
                yield ISOLATE + i
            yield from (CUT + bit for bit in ((0, 2), (1, 3))[i] if not env.cut & 1 << bit and (bit < 2 or self.witness))
        if self.witness and witness.up:
            yield WITNESS_CRASH

    @staticmethod
    def name(action: int) -> str:
        return NAMES[action]

    def apply(self, state: int, action: int) -> int:
        a, b, w, ab, ba, world = self.unpack(state)
        kind, i = action & ~3, action & 3
        if kind <= REQUEST_LIE:
            return self.react(a, b, w, ab, ba, world, kind, i)
        env: World = self.worlds[world]
        s = [a, b]
        if kind == TICK:
            s = [self.aged(a), self.aged(b)]
            w, ab, ba = self.aged_witness(w), self.aged_mail(ab), self.aged_mail(ba)
            if self.coarse:
                state = self.pack(s[0], s[1], w, ab, ba, world)
                for i in (0, 1):
                    if self.servers[s[i]].status == UP:
                        state = self.apply(state, RUN + i)
                return state
        elif kind == RESUME:
            s[i] = self.server_number(self.servers[s[i]]._replace(status=UP, due=not self.coarse))
        elif kind == RESTART:
            return self.react(a, b, w, ab, ba, world, kind, i)
        elif kind == HEAL:
            env = env._replace(cut=env.cut & ~(1 << i))
        elif kind == REJOIN:
            env = env._replace(alone=env.alone & ~(1 << i))
        elif kind == WITNESS:
            w = self.witnesses.number(self.witness_after(self.witnesses[w], restart=action == WITNESS_RESTART))
            env = env if action == WITNESS_RESTART else env._replace(faults=env.faults - 1)
        else:
            env = env._replace(faults=env.faults - 1)
            if kind == CUT:
                env = env._replace(cut=env.cut | 1 << i)
            elif kind == ISOLATE:
                env = env._replace(alone=env.alone | 1 << i)
            elif kind == LOSE:
                ab, ba = (ab, 0) if i == 0 else (0, ba)
            elif kind == PAUSE:
                s[i] = self.server_number(self.servers[s[i]]._replace(status=PAUSED, due=False))
            elif kind == CRASH:
                old: Server = self.servers[s[i]]
                s[i] = self.server_number(Server(CRASHED, disk=old.disk, won=old.won, question=old.question))
                ab, ba = (ab, 0) if i == 0 else (0, ba)  # what it had not read is gone; what it sent is still in flight
            else:
                return self.react(a, b, w, ab, ba, self.worlds.number(env), kind, i)
        return self.pack(s[0], s[1], w, ab, ba, self.worlds.number(env))

    def react(self, a: int, b: int, w: int, ab: int, ba: int, world: int, kind: int, i: int) -> int:
        """Let one server react, by memory if it did so before."""
        mail_in = (ba if i == 0 else ab) if kind == DELIVER else 0
        env: World = self.worlds[world]
        severed = env.severed()
        reach = not severed & 4 << i
        seen = env.seen if kind == REQUEST_SEEN else NO_BALLOT
        key = (kind, i, b if i else a, w, mail_in, reach, seen)
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = self.reaction(kind, i, b if i else a, w, mail_in, reach, seen)
        s, w, mail, answered = found
        if i == 0:
            a, ba = s, 0 if kind == DELIVER else ba
            ab = ab if mail < 0 or severed & 1 or self.servers[b].status == CRASHED else mail
        else:
            b, ab = s, 0 if kind == DELIVER else ab
            ba = ba if mail < 0 or severed & 2 or self.servers[a].status == CRASHED else mail
        if answered and self.clients:
            ballot = Ballot(self.servers[s].ballot, self.nodes[i])
            if ballot > env.seen:
                world = self.worlds.number(env._replace(seen=ballot))
        return self.fold(a, b, w, ab, ba, world)

    def reaction(self, kind: int, i: int, sid: int, wid: int, mail_in: int, reach: bool, seen: Ballot) -> tuple[int, int, int, int]:
        s: Server = self.servers[sid]
        w: Witness = self.witnesses[wid]
        if kind == ARRIVE:
            return self.arrival(i, s, w)
        if kind == RUN:
            s = s._replace(due=False)

            def event(c: Settings, m: Member) -> Outcome:
                return members.tick(c, m, 0.0)
        elif kind == DELIVER:
            mail = self.mails[mail_in]
            assert mail is not None

            acked = mail.ack_ballot and s.state is State.ACTIVE and mail.ack_ballot == s.ballot
            acked_at = -float(mail.ack_age) if acked else None
            if self.witness:
                served = mail.state is State.ACTIVE and mail.age < LEASE_TICKS
                s = s._replace(heard_ballot=mail.counter if served else 0, heard_age=mail.age if served else 0)

            def event(c: Settings, m: Member) -> Outcome:
                return members.receive(c, m, self.message(1 - i, mail), 0.0, acked_at)
        elif kind == ANSWER:
            answer = s.answer
            assert answer is not None
            s = s._replace(answer=None)

            def event(c: Settings, m: Member) -> Outcome:
                return self.answered(c, m, answer)
        elif kind in (REQUEST, REQUEST_SEEN):

            def event(c: Settings, m: Member) -> Outcome:
                return self.asked(c, m, seen)
        elif kind == REQUEST_LIE:

            def event(c: Settings, m: Member) -> Outcome:
                return self.lied(c, m)
        elif kind == RESTART:
            s = self.started(i, s)

            def event(c: Settings, m: Member) -> Outcome:
                return members.start(c, s.disk, 0.0)
        else:

            def event(c: Settings, m: Member) -> Outcome:
                return members.switchover(c, m, 0.0)

        after, w, said, answered = self.perform(i, s, w, reach, event)
        return self.server_number(after), self.witnesses.number(w), -1 if said is None else self.mails.number(said), int(answered)

    @staticmethod
    def asked(settings: Settings, m: Member, seen: Ballot) -> Outcome:
        """A client asks; where it has seen more than it could prove, the server asks peer and witness."""
        outcome = members.request(settings, m, seen, 0.0)
        if outcome.verdict is not Verdict.REJECT or outcome.member.state is not State.ACTIVE:
            return outcome
        then = members.question(settings, outcome.member, 0.0)
        return then._replace(effects=(*outcome.effects, *then.effects), verdict=Verdict.REJECT)

    def lied(self, settings: Settings, m: Member) -> Outcome:
        """A client names the highest credible ballot, or, without one, a ballot that was never drawn."""
        borne_out = m.state is State.ACTIVE and m.ballot < m.counter
        outcome = self.asked(settings, m, Ballot(m.counter if borne_out else m.counter + 1, 99))
        served = member_values.may_answer(settings, m, 0.0)
        if served and not borne_out and not member_values.may_answer(settings, outcome.member, 0.0):
            raise RuleBroken("deposed by a lie")
        return outcome

    def arrival(self, i: int, s: Server, w: Witness) -> tuple[int, int, int, int]:
        """The witness reads a question, however old; its answer goes to any server that can receive it."""
        question = s.question
        assert question is not None
        w, answer = self.ask(w, Ballot(question.counter, self.settings[i].node), question.holding)
        heard = answer._replace(age=question.age) if s.status in (UP, PAUSED) and question.age <= LEASE_TICKS else s.answer
        return self.server_number(s._replace(question=None, answer=heard)), self.witnesses.number(w), -1, 0

    def message(self, sender: int, mail: Mail) -> StateMessage:
        if not self.ballots_on:
            return StateMessage(mail.state)
        settings = self.settings[sender]
        ballot = Ballot(mail.counter, settings.node) if mail.counter else NO_BALLOT
        flags = Flag.YIELDS if mail.yields else Flag(0)
        return StateMessage(mail.state, settings.role, flags, settings.node or -1 - sender, 1, 1, ballot, 0, 0, 1000)

    def aged(self, sid: int) -> int:
        s: Server = self.servers[sid]
        question = s.question
        if question is not None:
            # Older than that it can do no more harm, and is as good as lost; the bound keeps the states finite.
            question = question._replace(age=question.age + 1) if question.age <= LEASE_TICKS else None
        if s.status not in (UP, PAUSED):
            return sid if question == s.question else self.server_number(s._replace(question=question))
        answer = s.answer
        if answer is not None:
            answer = answer._replace(age=answer.age + 1) if answer.age < LEASE_TICKS else None
        peer_left = max(0, s.peer_left - 1)
        heard = bool(s.heard_ballot) and s.heard_age + 1 < LEASE_TICKS
        return self.server_number(
            s._replace(
                claim_left=max(0, s.claim_left - 1),
                lease_left=max(0, s.lease_left - 1),
                awake_left=max(0, s.awake_left - 1),
                peer_left=peer_left,
                peer_state=s.peer_state if peer_left else None,
                yield_left=max(0, s.yield_left - 1),
                heard_ballot=s.heard_ballot if heard else 0,
                heard_age=s.heard_age + 1 if heard else 0,
                due=s.status == UP,
                answer=answer,
                question=question,
            ),
        )

    def aged_mail(self, mid: int) -> int:
        """Only how long ago its sender, or its receiver, was heard to serve matters."""
        mail: Mail | None = self.mails[mid]
        if mail is None or not self.witness:
            return mid
        acks = bool(mail.ack_ballot) and mail.ack_age + 1 < LEASE_TICKS
        return self.mails.number(
            mail._replace(
                age=min(LEASE_TICKS, mail.age + 1) if mail.state is State.ACTIVE else 0,
                ack_ballot=mail.ack_ballot if acks else 0,
                ack_age=mail.ack_age + 1 if acks else 0,
            )
        )

    def witness_after(self, w: Witness, *, restart: bool) -> Witness:
        if restart:
            return w._replace(up=True, closed_left=LEASE_TICKS)
        return Witness(up=False, highest=w.highest if self.witness_keeps else NO_BALLOT)


def left(until: float) -> int:
    """Return a time in whole ticks left: for whole numbers `now < until` is `0 < left`."""
    return max(0, math.ceil(until))
