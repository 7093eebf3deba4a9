"""Requests with an idempotency key: however often one is asked, it is executed once and everybody gets the same answer (IDM-01 to IDM-05).

Pure. The first request with a key is executed; the record that travels to the worker is its. Those that come while it runs follow it: they
are open requests without a place in queue or worker. When the client of the executed one goes away, a follower takes the record over; when
there is none the work goes on, and its answer is kept for the client that comes back and asks again. Only a deadline or CANCEL of the last
one who waits ends it.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from core.zmtp.framing import Encoded, encode_message, split_frames
from mdp.book import GONE, RequestBook
from mdp.limits import REQUEST_OVERHEAD_BYTES
from mdp.relay import error_message, partial_message, reply_message
from mdp.results import Execution, Results, digest_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdp.counters import Counters
    from mdp.directory import Directory
    from mdp.letters import Loss
    from mdp.limits import BrokerOptions
    from mdp.protocol import Dialect
    from mdp.records import Request, Service, Terms

__all__ = ["SharedBook"]


class SharedBook(RequestBook):
    """A book of requests that knows keys; see `RequestBook`.

    Attributes:
        results: executions by key, and kept answers.
    """

    def __init__(self, options: BrokerOptions, counters: Counters, directory: Directory, first_number: int) -> None:
        super().__init__(options, counters, directory, first_number)
        self.results = Results(options)

    def open_with_key(
        self, client: bytes, dialect: Dialect, key: bytes | int, service: Service, tail: bytes, terms: Terms, now: float
    ) -> None:
        """Execute, follow or answer a request of MDP/0.3 whose terms have a key; arguments as for `open`."""
        assert terms.key is not None
        digest = digest_of(split_frames(tail, 1)[1])
        execution = self.results.find(service.name, terms.key, now)
        if execution is None:
            execution = terms.execution = self.results.begin(service.name, terms.key, digest)
            request = execution.request = self.accept(client, dialect, key, service, tail, terms)
            self.place(request, now)
        elif execution.digest != digest:
            self.counters.count("key_conflicts")
            self.tell(client, dialect, key, "BAD_REQUEST", "the key was used with another body")
        elif execution.reply is not None:
            self.counters.count("key_replayed")
            self._replay(execution, client, dialect, key)
        elif not execution.shared:
            self.tell(client, dialect, key, "BUSY", "a request with this key runs, and its answer is too large to share")
        else:
            self.counters.count("key_joined")
            terms.execution = execution
            follower = self.accept(client, dialect, key, service, tail, terms)
            follower.opened, follower.given = now, 0.0
            self._join(execution, follower)
            self._replay(execution, client, dialect, key)

    def lead(self, request: Request, service: Service, terms: Terms, body: bytes, now: float) -> bool:
        """Begin the execution of a request, not opened yet, whose terms have a key, if that key is new; False if it is known.

        Args:
            request: is to be the executed one.
            service: whom it is for.
            terms: its own.
            body: encoded `[body…]`.
            now: monotonic seconds.
        """
        # On the express lane: what `open_with_key` does first.
        key = terms.key
        if key is None or self.results.find(service.name, key, now) is not None:
            return False
        terms.execution = execution = self.results.begin(service.name, key, digest_of(body))
        execution.request = request
        return True

    def _join(self, execution: Execution, request: Request) -> None:
        """Let a request wait for an execution, or take it over when nobody waits."""
        leader = execution.request
        assert leader is not None
        if leader.client is None:
            # Its record stays where the worker's answer will look for it; from now on it is this request.
            leader.tail = request.tail
            self.room -= REQUEST_OVERHEAD_BYTES
            self._become(leader, request)
            return
        self.room += len(request.tail)
        request.tail = b""
        execution.followers.append(request)

    def _become(self, leader: Request, request: Request) -> None:
        """Put the executed record in the place of another one's, which is not needed any more."""
        terms, old = request.terms, leader.terms
        assert terms is not None
        if old is not None:
            terms.lost, terms.streamed = old.lost, old.streamed
        self.deadlines.discard(request)
        leader.client, leader.mine, leader.key, leader.dialect = request.client, request.mine, request.key, request.dialect
        leader.terms, leader.opened = terms, request.opened
        leader.mine[leader.key] = leader
        if terms.deadline != inf:
            self.deadlines.set(leader, terms.deadline)
        self.room += REQUEST_OVERHEAD_BYTES

    def _hand_over(self, request: Request, execution: Execution, now: float) -> None:
        """Close an executed request for its client and let the first follower have the execution."""
        self.deadlines.discard(request)
        del request.mine[request.key]
        self.counters.closed += 1
        self._become(request, execution.followers.pop(0))
        request.expires = self.queue_until(request, now)

    def _replay(self, execution: Execution, client: bytes, dialect: Dialect, key: bytes | int) -> None:
        """Send what there is of an answer."""
        name = execution.name[0]
        self.out += [partial_message(client, dialect, key, name, [Encoded(part)]) for part in execution.parts]
        if execution.reply is not None:
            self.counters.replies += 1
            self.out.append(reply_message(client, dialect, key, name, [Encoded(execution.reply)]))

    @staticmethod
    def _waiting(request: Request, execution: Execution) -> list[Request]:
        return execution.followers if request.client is None else [request, *execution.followers]

    # What is different when others wait for the same answer.

    def finish(self, request: Request, body: Sequence[bytes], now: float) -> None:
        """See `RequestBook`; the answer is kept, then sent to all who wait."""
        execution = None if request.terms is None else request.terms.execution
        if execution is None or execution.request is not request:
            super().finish(request, body, now)
            return
        reply = Encoded(encode_message(body))
        waiting = self._waiting(request, execution)
        self.results.complete(execution, reply, now)
        if not waiting:
            self.counters.count("replies_kept")
        for one in waiting:
            assert one.client is not None
            self.out.append(reply_message(one.client, one.dialect, one.key, one.service.name, [reply]))
            self.counters.replies += 1
            self.close(one, size=len(reply))

    def partial(self, request: Request, body: Sequence[bytes], now: float) -> None:
        """See `RequestBook`; the part is kept, then sent to all who wait."""
        terms = request.terms
        if terms is None or terms.execution is None or terms.execution.request is not request:
            super().partial(request, body, now)
            return
        part = Encoded(encode_message(body))
        terms.streamed = True
        self.results.add_part(terms.execution, part)
        for one in self._waiting(request, terms.execution):
            assert one.client is not None
            self.counters.count("partials")
            self.out.append(partial_message(one.client, one.dialect, one.key, one.service.name, [part]))

    def fail(self, request: Request, code: str, text: str) -> None:
        """See `RequestBook`; all who wait are told, and the next request with the key is executed."""
        followers = self._break_up(request)
        super().fail(request, code, text)
        for follower in followers:
            super().fail(follower, code, text)

    def forward_error(self, request: Request, code: str, text: str) -> None:
        """See `RequestBook`; an error is no answer to keep."""
        followers = self._break_up(request)
        super().forward_error(request, code, text)
        for follower in followers:
            assert follower.client is not None
            assert isinstance(follower.key, bytes)
            self.counters.count("errors_forwarded")
            self.out.append(error_message(follower.client, follower.key, code, text))
            self.close(follower, code)

    def expire(self, request: Request, now: float) -> None:
        """See `RequestBook`; a follower with more time goes on waiting."""
        execution = None if request.terms is None else request.terms.execution
        if execution is None or not execution.followers or request.client is None:
            super().expire(request, now)
            return
        self.tell(request.client, request.dialect, request.key, "DEADLINE_EXCEEDED", "queued")
        if self.record is not None:
            self.record.ended(request, "DEADLINE_EXCEEDED")
        self._hand_over(request, execution, now)
        request.service.queue.push_front(request)

    def end(self, request: Request, now: float, code: str = "", text: str = "") -> None:
        """See `RequestBook`; the work goes on as long as anybody may want its answer."""
        execution = None if request.terms is None else request.terms.execution
        client = request.client
        if execution is None or client is None:
            super().end(request, now, code, text)
            return
        follows = execution.request is not request
        if code and (follows or execution.followers):
            self.tell(client, request.dialect, request.key, code, text)
        if follows:
            execution.followers.remove(request)
            self.close(request, code or GONE)
        elif execution.followers:
            if self.record is not None:
                self.record.ended(request, code or GONE)
            self._hand_over(request, execution, now)
        elif not code and request.worker is not None:
            self.close(request, GONE)  # the worker works on: the client may come back and ask again
        else:
            self.results.abandon(execution)
            super().end(request, now, code, text)

    def give_back(self, request: Request, loss: Loss, now: float) -> None:
        """See `RequestBook`; nobody has the body any more when nobody waits."""
        if request.client is None:
            self._break_up(request)
        super().give_back(request, loss, now)

    def _break_up(self, request: Request) -> list[Request]:
        """End the execution of a request, if it has one; return those who followed it."""
        execution = None if request.terms is None else request.terms.execution
        if execution is None or execution.request is not request:
            return []
        followers, execution.followers = execution.followers, []
        self.results.abandon(execution)
        return followers
