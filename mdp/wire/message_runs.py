"""The broker's express lane: plain requests and replies, read from the octets that came and answered with octets.

Pure. What almost every message of a busy broker is, a REQUEST of MDP/0.1 or 0.3 without options to a service with workers, and its
answer, is taken here without a list of frames in between: its head is compared, its body is cut out as it came and goes out again
behind the head of the next hop. So is what pipelines send, a REQUEST with nothing but an idempotency key that is new, and its answer.
Everything else is left where it is, to be decoded and judged by `mdp.broker.dispatcher`, which does the same things to the same records:

    0.3  REQUEST  01 0f MDPC03 01 id8 | 01 nn service | 01 00 | body …
                                                        01 nn 81 a3 "key" c4 kk key | body …
         FINAL    01 0f MDPW03 04 token8 | body …
    0.1  REQUEST  01 00 | 01 06 MDPC01 | 01 nn service | body …
         REPLY    01 00 | 01 06 MDPW01 | 01 01 03 | 01 08 token8 | 01 00 | body …

A body is frames of any size; a message of more than 2 KiB (`Decoder.small`) is left. A message is taken whole and in its turn, or not
at all: the first that is not known here ends the run, so that the order of one peer's messages is kept.
"""

from __future__ import annotations

from math import inf
from struct import Struct
from typing import TYPE_CHECKING

from core.zmtp.decoder import MORE, MORE_HEADERS, Encoded, encode_message, encode_prefix, message_end
from mdp.broker.forwarding import (
    END,
    KEY_01_BYTES,
    NO_OPTIONS,
    PACK_03,
    PACK_KEY_01,
    PACK_WORK_01,
    REPLY_01,
    REPLY_HEAD_03,
    WORK_01,
    WORK_HEAD_03,
)
from mdp.broker.limits import REQUEST_OVERHEAD_BYTES
from mdp.broker.requests.records import Request, Terms
from mdp.broker.requests.request_states import RequestState
from mdp.wire.commands import CLIENT_REQUEST_03, EMPTY, HEAD_BYTES, MDPC01, MDPW01, NUMBERED_BYTES, V01, V03, WORKER_FINAL_03
from mdp.wire.options import KEY_ALONE

if TYPE_CHECKING:
    from mdp.broker.counters import Counters
    from mdp.broker.requests.idempotency import SharedBook
    from mdp.broker.requests.records import Worker
    from mdp.broker.workers.directory import Directory

__all__ = ["Express"]

_HEADER = MORE_HEADERS[NUMBERED_BYTES]
_REQUEST_HEAD_03 = _HEADER + CLIENT_REQUEST_03
_REQUEST_HEAD_01 = encode_prefix([EMPTY, MDPC01])
_REPLY_HEAD_01 = encode_prefix([EMPTY, MDPW01])
_PACK_WORK_03 = Struct(f">{len(WORK_HEAD_03)}sQ").pack
# Where the command frame of MDP/0.3 ends, and where in it the header and the number begin.
_NUMBERED_END = len(_HEADER) + NUMBERED_BYTES
_HEAD_AT = len(_HEADER)
_NUMBER_AT = len(_HEADER) + HEAD_BYTES
# Where the key begins in an options frame that has nothing else: behind the frame's header, the beginning and its length.
_KEY_AT = 2 + len(KEY_ALONE) + 1
# Names of a module are found faster than those of a class.
_GIVEN, _ANSWERED = RequestState.GIVEN, RequestState.ANSWERED


class Express:
    """The lane of one broker.

    Args:
        book: open requests.
        directory: services and workers.
        counters: what happened.

    Attributes:
        pieces: encoded messages to be sent, by peer, in order; the shell takes them out.
    """

    __slots__ = ("_book", "_counters", "_owner", "_routes", "_workers", "pieces")

    def __init__(self, book: SharedBook, directory: Directory, counters: Counters) -> None:
        self._book = book
        self._counters = counters
        self._routes = directory.routes_encoded
        self._workers = directory.workers
        self._owner = b""  # goes before every key of the peer that is read from, so that a key is its user's own
        self.pieces: dict[bytes, list[bytes]] = {}

    def take(self, peer: bytes, octets: bytes, longest: int, now: float) -> int:
        """Take known messages off the front of what a peer sent.

        Args:
            peer: its routing id.
            octets: what came; a message begins at the first one.
            longest: messages of more octets than this are left.
            now: monotonic seconds.

        Returns:
            How many octets were taken.
        """
        worker = self._workers.get(peer)
        if peer in self._book.hops.narrow:
            return 0
        if worker is None:
            if octets[:_NUMBER_AT] == _REQUEST_HEAD_03:
                return self._requests_03(peer, octets, longest, now)
            return self._requests_01(peer, octets, longest, now)
        if worker.quick:
            return self._finals_03(worker, octets, longest, now)
        if worker.dialect == V01:
            return self._replies_01(worker, octets, longest, now)
        return 0

    def _requests_03(self, peer: bytes, octets: bytes, longest: int, now: float) -> int:
        book, route_of = self._book, self._routes.get
        before = room = book.room
        mine = book.clients.get(peer)
        if mine is None:
            mine = {}
        last: Worker | None = None
        send = None
        at = accepted = 0
        end = len(octets)
        try:
            while at < end:
                name_at = at + _NUMBERED_END
                tail_at = name_at + 2 + octets[name_at + 1]
                body_at = tail_at + 2
                service = route_of(octets[name_at:tail_at])
                if octets[at : at + _NUMBER_AT] != _REQUEST_HEAD_03 or service is None:
                    break
                terms = None
                if octets[tail_at:body_at] != NO_OPTIONS:
                    if (terms := _key_alone(octets, tail_at, self._owner)) is None:
                        break
                    body_at += len(terms.options)
                start = body_at
                while octets[body_at] == MORE:
                    body_at += 2 + octets[body_at + 1]
                body_at = message_end(octets, body_at) if octets[body_at] else body_at + 2 + octets[body_at + 1]
                if not body_at:
                    break  # a command
                size = body_at - tail_at + REQUEST_OVERHEAD_BYTES
                key = octets[at + _HEAD_AT : name_at]
                if body_at > end or body_at - at > longest or size > room or key in mine:
                    break
                request = Request()
                if terms is not None and not book.lead(request, service, terms, octets[start:body_at], now):
                    break  # the key is known
                request.reply = REPLY_HEAD_03 + octets[at + _NUMBER_AT : name_at] if terms is None else None
                mine[key] = request
                request.client, request.mine, request.key, request.dialect = peer, mine, key, V03
                request.service, request.terms = service, terms
                request.tail = tail = octets[tail_at:body_at]
                room -= size
                accepted += 1
                at = body_at
                ready = service.ready
                if not ready or (worker := ready[0]).line is not ready or not worker.plain:
                    book.place(request, now)
                    self._absorb()
                    last = None
                    continue
                request.state, request.worker = _GIVEN, worker
                request.opened = request.given = now
                request.number = number = next(book.numbers)
                held = worker.held
                held[PACK_03(WORKER_FINAL_03, number)] = request
                if worker is not last:
                    last, send = worker, self._pieces_for(worker.peer).append
                send(_PACK_WORK_03(WORK_HEAD_03, number) + tail)  # type: ignore[misc]  # set together with `last`
                if len(held) < worker.high:
                    ready.rotate(-1)
                else:
                    service.used(worker)
        except IndexError:
            pass  # the last message is not all there
        if accepted:
            book.clients[peer] = mine
            book.room += room - before
            self._counters.accepted += accepted
        return at

    def _finals_03(self, worker: Worker, octets: bytes, longest: int, now: float) -> int:
        book, pop = self._book, worker.held.pop
        record = book.record
        answered: list[Request] = []
        sizes: list[int] = []
        last: bytes | None = None
        send = None
        at = done = freed = 0
        end = len(octets)
        try:
            while at < end:
                body_at = stop = at + _NUMBERED_END
                while octets[stop] == MORE:
                    stop += 2 + octets[stop + 1]
                stop = message_end(octets, stop) if octets[stop] else stop + 2 + octets[stop + 1]
                if not at < stop <= end or stop - at > longest or octets[at : at + _HEAD_AT] != _HEADER:
                    break
                key = octets[at + _HEAD_AT : body_at]
                request = pop(key, None)
                if request is None:
                    break
                reply, client = request.reply, request.client
                body = octets[body_at:stop]
                if request.terms is not None:
                    reply = self._kept(request, body, now)
                if reply is None or client is None:
                    worker.held[key] = request
                    break
                if client != last:
                    last, send = client, self._pieces_for(client).append
                send(reply + body)  # type: ignore[misc]  # set together with `last`
                del request.mine[request.key]
                request.state = _ANSWERED
                freed += len(request.tail) + REQUEST_OVERHEAD_BYTES
                if record is not None and request.terms is None:
                    answered.append(request)
                    sizes.append(len(body))
                done += 1
                at = stop
        except IndexError:
            pass
        if done:
            book.room += freed
            if record is not None and answered:
                record.answered(worker, answered, sizes)
            self._answered(worker, done, now)
        return at

    def _kept(self, request: Request, body: bytes, now: float) -> bytes | None:
        """Keep the answer of an execution one client waits for, without deadline; return what goes before it, None for any other."""
        terms, key, book = request.terms, request.key, self._book
        if terms is None or request.client is None or terms.deadline != inf or isinstance(key, int) or request.client in book.hops.narrow:
            return None
        execution = terms.execution
        if execution is None or execution.request is not request or execution.followers:
            return None
        if book.record is not None:
            book.record.ended(request, "", len(body))
        book.results.complete(execution, body, now)
        return REPLY_HEAD_03 + key[HEAD_BYTES:]

    def _requests_01(self, peer: bytes, octets: bytes, longest: int, now: float) -> int:
        book, route_of = self._book, self._routes.get
        at = accepted = 0
        end = len(octets)
        try:
            while at < end:
                name_at = at + len(_REQUEST_HEAD_01)
                tail_at = stop = name_at + 2 + octets[name_at + 1]
                service = route_of(octets[name_at:tail_at])  # found only if the name says MORE: so there is a body
                if service is None or octets[at:name_at] != _REQUEST_HEAD_01:
                    break
                while octets[stop] == MORE:
                    stop += 2 + octets[stop + 1]
                stop = message_end(octets, stop) if octets[stop] else stop + 2 + octets[stop + 1]
                size = stop - tail_at + REQUEST_OVERHEAD_BYTES
                if not at < stop <= end or stop - at > longest or size > book.room:
                    break
                mine = book.clients.get(peer)
                if mine is None:
                    mine = book.clients[peer] = {}
                number = next(book.numbers)
                request = mine[number] = Request()
                request.client, request.mine, request.key, request.dialect = peer, mine, number, V01
                request.service, request.terms, request.reply = service, None, service.reply_01
                request.tail = octets[tail_at:stop]
                book.room -= size
                accepted += 1
                at = stop
                ready = service.ready
                if ready and (worker := ready[0]).line is ready and worker.dialect == V01 and stop - tail_at <= worker.small:
                    request.opened = now
                    self._give_01(worker, request, now)
                    service.used(worker)
                else:
                    book.place(request, now)
                    if book.out:
                        self._absorb()
        except IndexError:
            pass
        self._counters.accepted += accepted
        return at

    def _replies_01(self, worker: Worker, octets: bytes, longest: int, now: float) -> int:
        book = self._book
        at = 0
        end = len(octets)
        try:
            while at < end:
                key_at = at + len(_REPLY_HEAD_01)
                body_at = stop = key_at + KEY_01_BYTES
                if octets[at:key_at] != _REPLY_HEAD_01:
                    break
                while octets[stop] == MORE:
                    stop += 2 + octets[stop + 1]
                stop = message_end(octets, stop) if octets[stop] else stop + 2 + octets[stop + 1]
                key = octets[key_at:body_at]
                if not at < stop <= end or stop - at > longest or (request := worker.held.get(key)) is None:
                    break
                client, reply = request.client, request.reply
                if client is None or reply is None or request.terms is not None:
                    break
                del worker.held[key], request.mine[request.key]
                pieces = self.pieces.get(client)
                if pieces is None:
                    self.pieces[client] = [reply + octets[body_at:stop]]
                else:
                    pieces.append(reply + octets[body_at:stop])
                request.state = _ANSWERED
                book.room += len(request.tail) + REQUEST_OVERHEAD_BYTES
                at = stop
                if book.record is not None:
                    book.record.answered(worker, [request], [stop - body_at])
                self._answered(worker, 1, now)
        except IndexError:
            pass
        return at

    def _answered(self, worker: Worker, done: int, now: float) -> None:
        """Count the replies of a worker and give it what waits for it."""
        worker.seen = now
        worker.done += done
        counters, service = self._counters, worker.service
        counters.replies += done
        counters.closed += done
        if not service.queue.count:
            if len(worker.held) < worker.low:
                self._book.line_up(worker, now)
            return
        if worker.dialect == V01 and not service.queue.lost:
            request = service.queue.pop()
            if (
                request is not None
                and request.dialect == V01
                and request.terms is None
                and request.expires > now
                and len(request.tail) <= worker.small
            ):
                self._give_01(worker, request, now)
                return
            if request is not None:
                service.queue.push_front(request)
        self._book.feed(worker, now)
        self._absorb()

    def _give_01(self, worker: Worker, request: Request, now: float) -> None:
        """Give a plain request of MDP/0.1 to a worker of the same."""
        request.state = _GIVEN
        request.worker = worker
        request.number = number = next(self._book.numbers)
        worker.since = request.given = now
        worker.held[PACK_KEY_01(REPLY_01, number, END)] = request
        piece = PACK_WORK_01(WORK_01, number, END) + request.tail
        pieces = self.pieces.get(worker.peer)
        if pieces is None:
            self.pieces[worker.peer] = [piece]
        else:
            pieces.append(piece)

    def _pieces_for(self, peer: bytes) -> list[bytes]:
        pieces = self.pieces.get(peer)
        if pieces is None:
            pieces = self.pieces[peer] = []
        return pieces

    def _absorb(self) -> None:
        """Put what the book has to say behind what was said here, so that every peer gets it in order."""
        out, self._book.out = self._book.out, []
        for message in out:
            octets = message[1] if len(message) == 2 and type(message[1]) is Encoded else encode_message(message, 1)
            self._pieces_for(message[0]).append(octets)


def _key_alone(octets: bytes, at: int, owner: bytes) -> Terms | None:
    """Return the terms of a request whose options frame, at `at`, is short and has one entry, a key; None for any other."""
    start = at + 2
    end = start + octets[at + 1]
    key_at = at + _KEY_AT
    if octets[start : key_at - 1] != KEY_ALONE or octets[at] != MORE or not 0 < octets[key_at - 1] == end - key_at:
        return None
    terms = Terms()
    terms.options = octets[start:end]
    terms.key = owner + octets[key_at:end]
    return terms
