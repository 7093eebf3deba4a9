"""Requests with an idempotency key: executed once, and all requests with the key get the same answer (IDM-01 to IDM-06).

Pure. The first request with a key is executed: its record is in the queue or at the worker. Requests with the key that arrive meanwhile
follow it: they are open, and in no queue and with no worker. When the client of the executed request is lost, a follower takes over its
record, and the follower's own record is no longer used; without a follower the execution continues, and the answer is kept in case the
client sends the request again. Only a deadline or CANCEL of the last waiting request ends an execution. The options of each request
(deadline, time in the queue, one worker only) apply to that request alone.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING

from core.zmtp.frames import MORE, encode_message, encode_prefix, split_frames
from mdp.broker.forwarding import body_octets, partial_head, progress_octets
from mdp.broker.limits import REQUEST_OVERHEAD_BYTES
from mdp.broker.requests.reply_cache import ReplyCache, digest_of
from mdp.broker.requests.request_ends import GONE
from mdp.broker.requests.request_states import END_OF_CODE, RequestState
from mdp.broker.requests.request_table import RequestTable
from mdp.broker.requests.retries import retried
from mdp.wire.commands import ID_BYTES
from mdp.wire.size_limits import TOO_LARGE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mdp.broker.counters import Counters
    from mdp.broker.limits import BrokerOptions
    from mdp.broker.requests.dead_letters import Loss
    from mdp.broker.requests.records import Request, RequestExtras, Service, SharedExecution
    from mdp.broker.workers.directory import Directory
    from mdp.wire.commands import Dialect


class SharedRequestTable(RequestTable):
    """The request table with idempotency keys; see `RequestTable`."""

    def __init__(self, options: BrokerOptions, counters: Counters, directory: Directory, first_number: int) -> None:
        super().__init__(options, counters, directory, first_number)
        self.reply_cache = ReplyCache(options)

    def open_with_key(
        self, client: bytes, dialect: Dialect, key: bytes | int, service: Service, tail: bytes, extras: RequestExtras, now: float
    ) -> None:
        """Execute, follow or answer a request of MDP/0.3 whose extras have a key; arguments as for `accept`."""
        assert extras.key is not None
        digest = digest_of(tail[2 + tail[1] :] if tail[0] == MORE else split_frames(tail, 1)[1])
        execution = self.reply_cache.find(service.name, extras.key, now)
        if execution is None:
            execution = extras.execution = self.reply_cache.begin(service.name, extras.key, digest)
            accepted = self.accept(client, dialect, [key], [service], [tail], now, extras)
            (execution.request,) = accepted
            self.place(accepted, now)
        elif execution.digest != digest:
            self.counters.count("key_conflicts")
            self.reject(client, dialect, key, "BAD_REQUEST", "the key was used with another body")
        elif execution.reply is not None:
            self.counters.count("key_replayed")
            self._replay(execution, client, dialect, key, now)
        elif not execution.shared:
            self.reject(client, dialect, key, "BUSY", "a request with this key runs, and its answer is too large to share")
        else:
            self.counters.count("key_joined")
            extras.execution = execution
            (follower,) = self.accept(client, dialect, [key], [service], [tail], now, extras)
            self._join(execution, follower, now)
            self._replay(execution, client, dialect, key, now)

    # Executed requests and followers.

    @staticmethod
    def _led(request: Request) -> SharedExecution | None:
        """Return the execution of an executed request, None for other requests."""
        execution = None if request.extras is None else request.extras.execution
        return None if execution is None or execution.request is not request else execution

    @staticmethod
    def _followed(request: Request) -> SharedExecution | None:
        """Return the execution that a follower waits for, None for other requests."""
        execution = None if request.extras is None else request.extras.execution
        return None if execution is None or execution.request is request else execution

    def _join(self, execution: SharedExecution, request: Request, now: float) -> None:
        """Add a follower to an execution; if no request waits for it, let this one take it over."""
        leader = execution.request
        assert leader is not None
        if leader.client is None:
            # The record stays, because the worker's answer refers to it; from now on it is this request.
            leader.payload = request.payload
            leader.state = RequestState.GIVEN
            request.expires = inf
            self._replace_leader(leader, request)
            return
        self.memory_left_bytes += len(request.payload)
        request.payload = b""
        request.state = RequestState.FOLLOWING
        execution.followers[request] = None
        self._set_time(request, now)

    def _set_time(self, follower: Request, now: float) -> None:
        """Set a follower's own time limit for the queue, where its executed request is, or may be again."""
        follower.expires = self.queue_until(follower, now)
        if follower.expires == inf:
            self.deadlines.discard(follower)
        else:
            self.end_at(follower, follower.expires)

    def _replace_leader(self, record: Request, request: Request) -> None:
        """Make an executed record without a client that of another request, whose own record is no longer used.

        The properties of the execution stay: its place, the lost workers, the deadline its worker got, whether a part was sent. All others,
        the deadline included, are those of the request.
        """
        extras, old = request.extras, record.extras
        assert extras is not None
        assert old is not None
        extras.lost, extras.lost_at = old.lost, old.lost_at
        extras.streamed, extras.sent_deadline = old.streamed, old.sent_deadline
        extras.failures = old.failures
        self.deadlines.discard(request)
        record.client, record.client_requests, record.key, record.dialect = (
            request.client,
            request.client_requests,
            request.key,
            request.dialect,
        )
        record.extras, record.opened, record.expires = extras, request.opened, request.expires
        record.client_requests[record.key] = record
        if extras.deadline != inf:
            self.end_at(record, extras.deadline)
        if extras.options != old.options:
            # A worker that gets it later must not see the options of another client.
            tail = encode_prefix([extras.options]) + body_octets(record)
            added = len(tail) - len(record.payload)
            record.payload = tail
            self.memory_left_bytes -= added
            if record.state is RequestState.QUEUED:
                record.service.queue.size += added
        request.state = RequestState.MERGED
        request.client = None  # it may be in a list that a caller iterates over
        request.payload = b""

    def _promote_follower(self, request: Request, execution: SharedExecution, code: str, text: str) -> None:
        """Close an executed request after the ERROR to its client; its first follower takes over the execution."""
        if self.recorder is not None:
            self.recorder.ended(request, code, text=text)
        self.deadlines.discard(request)
        del request.client_requests[request.key]
        self.memory_left_bytes += REQUEST_OVERHEAD_BYTES
        self.counters.closed += 1
        follower, _ = execution.followers.popitem(last=False)
        self._replace_leader(request, follower)

    def _leave(self, execution: SharedExecution, follower: Request, code: str, text: str) -> None:
        """Close a follower with an ERROR; the execution continues."""
        del execution.followers[follower]
        super().fail(follower, code, text)

    def runs(self, request: Request) -> bool:
        """See `RequestTable`; for a follower, return whether its executed request runs."""
        execution = self._followed(request)
        executed = request if execution is None or execution.request is None else execution.request
        return executed.worker is not None

    def _replay(self, execution: SharedExecution, client: bytes, dialect: Dialect, key: bytes | int, now: float) -> None:
        """Send the available parts of an answer; a part beyond the client's limits ends its request."""
        name = execution.name[0]
        for part in execution.parts:
            error = self.hops.reply(client, dialect, name, part)
            if error is not None:
                follower = self.open_request(client, key)
                if follower is None:
                    self.reject(client, dialect, key, TOO_LARGE, error.text)
                else:
                    self.end(follower, now, TOO_LARGE, error.text)
                return
            self.send(client, partial_head(key, name) + part)
        if execution.reply is not None:
            self.counters.replies += self.answer(client, dialect, key, name, execution.reply)

    @staticmethod
    def _waiting(request: Request, execution: SharedExecution) -> list[Request]:
        return [*execution.followers] if request.client is None else [request, *execution.followers]

    def sharers(self, request: Request) -> list[Request]:
        execution = self._led(request)
        return [request] if execution is None else [*execution.followers, request]

    # Overrides for requests with followers.

    def finish_one(self, request: Request, body: bytes, now: float) -> None:
        """See `RequestTable`; keep the answer, then send it to all clients that wait for it."""
        execution = self._led(request)
        if execution is None:
            super().finish_one(request, body, now)
            return
        waiting = self._waiting(request, execution)
        self.reply_cache.complete(execution, body, now)
        if not waiting:
            request.state = RequestState.FORGOTTEN
            self.counters.count("replies_kept")
        for one in waiting:
            assert one.client is not None
            sent = self.answer(one.client, one.dialect, one.key, one.service.name, body)
            self.counters.replies += sent
            self.close(one, RequestState.ANSWERED, "" if sent else TOO_LARGE, size=len(body))

    def partial(self, request: Request, body: bytes, now: float) -> None:
        """See `RequestTable`; keep the part, then send it to all clients that wait for it."""
        execution = self._led(request)
        if execution is None or request.extras is None:
            super().partial(request, body, now)
            return
        request.extras.streamed = True
        self.reply_cache.add_part(execution, body)
        beyond: list[tuple[Request, str]] = []
        for one in self._waiting(request, execution):
            assert one.client is not None
            self.counters.count("partials")
            error = self.hops.reply(one.client, one.dialect, one.service.name, body)
            if error is not None:
                beyond.insert(0, (one, error.text))  # end followers first: none must take over before it ends
                continue
            self.send(one.client, partial_head(one.key, one.service.name) + body)
        for one, text in beyond:
            self.end(one, now, TOO_LARGE, text)

    def progress(self, request: Request, progress: bytes) -> None:
        """Forward a PROGRESS to the clients that wait for the request and asked for it."""
        for one in self.sharers(request):
            client, key, extras = one.client, one.key, one.extras
            if client is None or extras is None or not extras.progress or not isinstance(key, bytes):
                continue
            if self.hops.reply(client, one.dialect, one.service.name, encode_message([progress])) is None:
                self.counters.count("progress")
                self.send(client, progress_octets(key, progress))

    def fail(self, request: Request, code: str, text: str) -> None:
        """See `RequestTable`; all waiting clients get the ERROR, and the next request with the key is executed."""
        followers = self._break_up(request)
        super().fail(request, code, text)
        for follower in followers:
            super().fail(follower, code, text)

    def forward_error(self, request: Request, code: str, text: str, now: float) -> None:
        """See `RequestTable`; an error is not kept as an answer."""
        execution = self._led(request)
        if request.service.policies is not None and retried(self, request, code, now):
            if execution is not None:
                self._set_times(execution, now)
            return
        if execution is None:
            super().forward_error(request, code, text, now)
            return
        if code == "DEADLINE_EXCEEDED" and self._begin_again(request, execution, text, now):
            return
        followers = self._break_up(request)
        if request.client is None:
            request.state = RequestState.FORGOTTEN
        super().forward_error(request, code, text, now)
        for follower in followers:
            self.pass_error_on(follower, code, text)

    def _begin_again(self, request: Request, execution: SharedExecution, text: str, now: float) -> bool:
        """Queue an execution again whose worker gave up at its deadline; return False if no waiting request has more time."""
        waiting = [(one, one.extras) for one in self._waiting(request, execution) if one.extras is not None]
        sent = inf if request.extras is None else request.extras.sent_deadline
        if all(extras.deadline <= sent for _, extras in waiting):
            return False
        streamed = request.extras is not None and request.extras.streamed
        for one, extras in reversed(waiting):  # the executed one last: it needs a follower that takes over
            if extras.deadline <= sent:
                self._drop_out(one, execution, "DEADLINE_EXCEEDED", text)
            elif extras.once or streamed:
                self._drop_out(one, execution, "TIMEOUT", "the worker kept to the deadline of another request with the key")
        if request.client is not None:
            self.counters.count("key_begun_again")
            self.queue_first(request, now)
            self._set_times(execution, now)
            self.pump(request.service, now)  # workers may have credit, because requests whose worker was lost do not use it
        return True

    def _drop_out(self, one: Request, execution: SharedExecution, code: str, text: str) -> None:
        """Close one of the requests that wait for an execution; the execution continues while others wait."""
        if one is not execution.request:
            self._leave(execution, one, code, text)
        elif not execution.followers:
            self.fail(one, code, text)
        elif one.client is not None:
            self.send_error(one.client, one.dialect, one.key, code, text)
            self._promote_follower(one, execution, code, text)

    def expire(self, request: Request, now: float) -> None:
        """See `RequestTable`; a follower with more time takes over and waits in front."""
        execution = self._outlived(request, now)
        if execution is None:
            super().expire(request, now)
        else:
            request.service.queue.put_back(request)
            self._drop_out(request, execution, *self.why_expired(request, now))

    def lapse(self, request: Request, now: float) -> None:
        """See `RequestTable`; a follower with more time takes over and waits in the same place."""
        execution = self._outlived(request, now)
        if execution is None:
            super().lapse(request, now)
        else:
            self._drop_out(request, execution, *self.why_expired(request, now))

    def lapse_absent(self, request: Request, now: float) -> None:
        """See `RequestTable`; followers whose time is over are closed too."""
        execution = self._led(request)
        if execution is not None:
            for follower in [one for one in execution.followers if not self.may_wait(one, now)]:
                self._leave(execution, follower, *self.why_expired(follower, now))
        super().lapse_absent(request, now)

    def _outlived(self, request: Request, now: float) -> SharedExecution | None:
        """Close the first followers without time left in the queue; return the execution if one has time left."""
        execution = self._led(request)
        while execution is not None and execution.followers:
            follower = next(iter(execution.followers))
            if self.may_wait(follower, now):
                return execution
            self._leave(execution, follower, *self.why_expired(follower, now))
        return None

    def expire_deadline(self, request: Request, now: float) -> None:
        """See `RequestTable`; for a follower whose executed request is queued, this also ends its time in the queue."""
        execution = self._followed(request)
        if execution is None or request.client is None or (request.extras is not None and request.extras.deadline <= now):
            super().expire_deadline(request, now)
        elif not self.runs(request):
            self._leave(execution, request, *self.why_expired(request, now))

    def end(self, request: Request, now: float, code: str = "", text: str = "") -> None:
        """See `RequestTable`; the execution continues as long as a client may want its answer."""
        execution = None if request.extras is None else request.extras.execution
        client = request.client
        if execution is None or client is None:
            super().end(request, now, code, text)
            return
        follows = execution.request is not request
        if code and (follows or execution.followers):
            self.send_error(client, request.dialect, request.key, code, text)
        if follows:
            del execution.followers[request]
            self.close(request, END_OF_CODE[code or GONE], code or GONE, text)
        elif execution.followers:
            self._promote_follower(request, execution, code or GONE, text)
        elif not code and request.worker is not None:
            # A worker that has begun it continues, because the client may send the request again; others return it.
            worker = request.worker
            self.close(request, RequestState.UNCLAIMED, GONE)
            if worker.knows_ping and len(worker.in_flight) > worker.concurrency:
                self.recall(worker, request.number.to_bytes(ID_BYTES, "big"))
        else:
            self.reply_cache.abandon(execution)
            super().end(request, now, code, text)

    def give_back(self, request: Request, loss: Loss, now: float, *, lost: bool = True) -> None:
        """See `RequestTable`; at-most-once requests end; an execution without a waiting request has no body and is abandoned."""
        execution = self._led(request)
        if execution is not None and request.client is None:
            self.reply_cache.abandon(execution)
            request.state = RequestState.FORGOTTEN
        elif execution is not None and not (request.extras is not None and request.extras.streamed):
            for one in reversed(self._waiting(request, execution)):
                if one.extras is not None and one.extras.once and (one is not request or execution.followers):
                    self._drop_out(one, execution, "WORKER_LOST", "the request may be given to one worker only")
        super().give_back(request, loss, now, lost=lost)
        if execution is not None and request.state is RequestState.QUEUED:
            self._set_times(execution, now)

    def place_again(self, request: Request, now: float) -> None:
        """See `RequestTable`; an execution without a waiting request has no body and is abandoned."""
        execution = self._led(request)
        if execution is not None and request.client is None:
            self.reply_cache.abandon(execution)
            request.state = RequestState.FORGOTTEN
        super().place_again(request, now)
        if execution is not None and request.state is RequestState.QUEUED:
            self._set_times(execution, now)

    def _set_times(self, execution: SharedExecution, now: float) -> None:
        for follower in execution.followers:
            self._set_time(follower, now)

    def _break_up(self, request: Request) -> Iterable[Request]:
        execution = self._led(request)
        if execution is None:
            return ()
        followers, execution.followers = execution.followers, OrderedDict()
        self.reply_cache.abandon(execution)
        return followers
