"""Borrowing: requests that wait because all workers of their service are busy go to workers of other brokers.

    queue of a service ──balance──► slot of (peer, service) ──► connection ──REQUEST of a client──► peer broker, its queue, its worker
    client ◄──────────────────────── table.finish ◄── connection ◄──FINAL, PARTIAL, ERROR────────────┘

A *slot* is a worker record of this broker that stands for all workers of a peer for a service. It grants no credit, so the dispatcher never
gives it a request. Requests for it are taken from the queue here, and only while the queue is not empty, when no worker of our own is free
(PEER-02). In all other respects it is a worker like any other: its service is offered, its requests are cancelled with their clients, and
they are given to another worker when the peer is lost (PEER-11), as often as a request may be.

Towards the peer we are a client of MDP/0.3, so a lender needs nothing but `mmi.lending`, which returns the capacity of its workers.

A lent request carries the names of the brokers it has passed (`via`). It passes at most `hops_max` brokers, none of them twice; a peer with
our own name, or with the name of another peer, is not used (fault N8).

Pure: `now` in monotonic seconds. It changes the records of the `mdp.broker.dispatcher` it is given.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from core.zmtp.frames import Encoded, decode_frames, encode_message, split_frames
from mdp.broker.forwarding import work_octets
from mdp.errors import TooLarge
from mdp.wire.commands import (
    CLIENT_CANCEL_03,
    CLIENT_ERROR_03,
    CLIENT_FINAL_03,
    CLIENT_PARTIAL_03,
    CLIENT_PROGRESS_03,
    CLIENT_REQUEST_03,
    HEAD_BYTES,
    ID_BYTES,
    NUMBERED_BYTES,
    PROGRESS_BYTES_MAX,
    V03,
    WORKER_CANCEL_03,
    printable,
)
from mdp.wire.lending import decode_offer, extend_via, via_of
from mdp.wire.options import OPTIONS_BYTES_MAX
from mdp.wire.size_limits import TOO_LARGE, USUAL, too_large
from peering.peer_router import PeerRouter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.zmtp.limits import PeerLimits
    from mdp.broker.dispatcher import Dispatcher
    from mdp.broker.requests.records import Request, Service, Worker
    from mdp.broker.requests.request_ends import Output

# Requests of a queue that are examined in one search for one that may be lent. Requests that were lent to us and may go no further stay in
# front of the others and are examined each time.
EXAMINED_MAX: Final = 64
# Routing ids that begin with 00 are made by the socket, which gives them five bytes, or are those of channels, which have more.
_SLOT_ID: Final = b"\x00"
_SLOT_ID_BYTES: Final = 4
_SLOTS_MAX: Final = 2 ** (8 * (_SLOT_ID_BYTES - len(_SLOT_ID)))
# Errors of a peer after which another worker is tried.
_TRY_ELSEWHERE: Final = frozenset((b"NO_SERVICE", b"BUSY", b"WORKER_LOST", b"TIMEOUT"))
# Those with which it was given to no worker.
_REFUSED: Final = frozenset((b"NO_SERVICE", b"BUSY"))
_ERROR_TEXT_MAX: Final = 1024
# A request of this size is within the usual limits, however much its options grow.
_SMALL_BYTES: Final = 1024


def _unknown(endpoint: str) -> PeerLimits | None:
    return None


class SendToPeer(NamedTuple):
    """A message for a peer."""

    endpoint: str
    frames: list[bytes]  # of a client of MDP/0.3


class LendingSlot:
    """The workers of a peer for one service."""

    __slots__ = ("endpoint", "lent", "peer", "worker")

    def __init__(self, worker: Worker, endpoint: str, peer: bytes) -> None:
        self.worker = worker
        self.endpoint = endpoint
        self.peer = peer
        self.lent = 0


class LendingMachine:
    """The borrowing side of one broker.

    Args:
        state_s: seconds between two offers of a peer.
        limits_of: returns the limits announced by the peer at an endpoint, None if it has announced none.

    Raises:
        BadName: the name is not valid for a broker.
    """

    def __init__(
        self,
        machine: Dispatcher,
        name: bytes,
        *,
        state_s: float = 1.0,
        hops_max: int = 1,
        peers_max: int = 64,
        limits_of: Callable[[str], PeerLimits | None] = _unknown,
    ) -> None:
        self._limits_of = limits_of
        self.counters: Counter[str] = Counter()  # of requests that were lent, given back and dropped, by name
        self.router = PeerRouter(name, state_s=state_s, hops_max=hops_max, peers_max=peers_max)
        # set by `balance` while requests wait for a service of the peers, and no peer is known to have a free worker for them
        self.needs_workers = False
        self.warnings: list[str] = []  # for the log, one clause each; the shell removes them
        self._machine = machine
        machine.directory.name = name
        self._first_via = extend_via(b"", (), name)
        self._peer_names: dict[str, bytes] = {}  # by endpoint
        self._endpoint_of_peer: dict[bytes, str] = {}  # by name
        self._slots: dict[tuple[str, bytes], LendingSlot] = {}
        self._slot_of_worker: dict[bytes, LendingSlot] = {}
        self._slot_of_request: dict[bytes, LendingSlot] = {}  # by key of the worker record
        self._number = 0

    # --- peers ----------------------------------------------------------------------------------------------------------------

    def on_offer(self, endpoint: str, body: Sequence[bytes], now: float) -> Output:
        """Take the answer of a peer to `mmi.lending`; return messages for the broker's socket."""
        answer = decode_offer(body)
        if answer is None:
            self.counters["offers_refused"] += 1
            self.warnings.append(f"{endpoint} does not lend workers")
            return self.on_peer_lost(endpoint, now)
        # A broker without a name borrows nothing, so it is in no loop, and its endpoint serves as its name.
        name, offer = answer[0] or endpoint.encode(), answer[1]
        if self._peer_names.get(endpoint) != name:
            out = self.on_peer_lost(endpoint, now)
            if not self._register_peer(endpoint, name):
                return out
        self.counters["offers"] += 1
        for slot in self._slots_of(endpoint):
            # A peer that drains offers nothing, but still finishes the requests in flight.
            if slot.worker.service.name not in offer and not slot.worker.in_flight:
                self._close_slot(slot, now)
        for service in offer:
            lender = self._slots.get((endpoint, service)) or self._open_slot(endpoint, name, service, now)
            if lender is not None:
                lender.worker.seen = now
                offer[service] -= lender.lent
        self.router.heard(name, offer, now)
        return self._machine.take_output()

    def on_query_sent(self, endpoint: str) -> None:
        """Note a query to a peer: its answer does not consider what is sent from now on."""
        for slot in self._slots_of(endpoint):
            slot.lent = 0

    def on_peer_lost(self, endpoint: str, now: float) -> Output:
        """Remove a peer; its requests go to other workers (PEER-11). Return messages for the broker's socket."""
        name = self._peer_names.pop(endpoint, None)
        if name is not None:
            self.router.remove(name)
            del self._endpoint_of_peer[name]
            self.counters["peers_lost"] += 1
        for slot in self._slots_of(endpoint):
            self._close_slot(slot, now)
        return self._machine.take_output()

    def _register_peer(self, endpoint: str, name: bytes) -> bool:
        """Add a peer by its name; refuse a name that is in use (fault N8)."""
        try:
            self.router.add(name)
        except ValueError as error:  # BadName and DuplicateName are ValueErrors
            self.counters["peers_refused"] += 1
            others = [at for at, other in self._peer_names.items() if other == name] or ["this broker"]
            self.warnings.append(f"{endpoint} is refused: {error}; {printable(name)} is the name of {others[0]} too")
            return False
        self._peer_names[endpoint], self._endpoint_of_peer[name] = name, endpoint
        self.router.joined(name)
        return True

    def _slots_of(self, endpoint: str) -> list[LendingSlot]:
        return [slot for (at, _), slot in self._slots.items() if at == endpoint]

    def _open_slot(self, endpoint: str, peer: bytes, name: bytes, now: float) -> LendingSlot | None:
        directory = self._machine.directory
        service = directory.open(name, now)
        if service is None:
            self.counters["services_refused"] += 1
            return None
        worker = directory.join(service, self._new_id(), V03, 0, now)
        worker.version = f"lent by {printable(peer)}"
        worker.plain = False  # the user is passed on; the peer accepts it if its rules say so
        slot = LendingSlot(worker, endpoint, peer)
        self._slots[endpoint, name] = self._slot_of_worker[worker.peer] = slot
        return slot

    def _new_id(self) -> bytes:
        """Return the routing id of a slot, which no peer and no other slot has."""
        while True:
            self._number = self._number % (_SLOTS_MAX - 1) + 1
            found = _SLOT_ID + self._number.to_bytes(_SLOT_ID_BYTES - len(_SLOT_ID), "big")
            if found not in self._slot_of_worker:
                return found

    def _close_slot(self, slot: LendingSlot, now: float) -> None:
        worker = slot.worker
        del self._slots[slot.endpoint, worker.service.name], self._slot_of_worker[worker.peer]
        for key in worker.in_flight:
            self._slot_of_request.pop(key, None)
        self.counters["given_back"] += len(worker.in_flight)
        table, before = self._machine.request_table, self._machine.take_output()
        out = self._machine.peer_lost(worker.peer, now)
        table.out = _joined(before, out)  # sent with the other messages

    # --- requests -------------------------------------------------------------------------------------------------------------

    def balance(self, now: float) -> list[SendToPeer]:
        """Lend waiting requests to free peers; call it when requests or workers may have become available."""
        self.needs_workers = False
        out: list[SendToPeer] = []
        for service in {id(slot.worker.service): slot.worker.service for slot in self._slots.values()}.values():
            if service.queue.count and service.policies is None:  # with policies, this broker alone decides when a request is given
                self._balance(service, now, out)
        return out

    def _balance(self, service: Service, now: float, out: list[SendToPeer]) -> None:
        kept: list[Request] = []
        queue, table = service.queue, self._machine.request_table
        while queue.count and len(kept) < EXAMINED_MAX:
            chosen = self.router.choose(service.name, now)
            if chosen is None:
                self.needs_workers = True
                break
            lender = self._slots.get((self._endpoint_of_peer[chosen], service.name))
            request = queue.pop() if lender is None else queue.pop(lender.worker.seen)
            if request is None:
                self.needs_workers = True  # its worker was lost: it is for peers heard from since then (MDP-37)
                break
            if request.expires <= now:
                table.expire(request, now)
                continue
            if request.extras is not None and request.extras.options:
                chosen = self._chosen_for(request.extras.options, service, now)
            slot = None if chosen is None else self._slots.get((self._endpoint_of_peer[chosen], service.name))
            if slot is not None and (error := self._size_error(slot, request, now)) is not None:
                slot = self._larger_slot(request, now)
                if slot is None and not self._may_wait(request, now):
                    self.counters["too_large"] += 1
                    table.fail(request, TOO_LARGE, error.text)
                    continue
            if slot is None:
                kept.append(request)
            else:
                out.append(self._lend(slot, request, now))
        for request in reversed(kept):
            queue.put_back(request)

    def _chosen_for(self, options: bytes, service: Service, now: float) -> bytes | None:
        """Return a peer for a request with options, None when no peer may get it (PEER-03)."""
        via = via_of(options)
        passed = None if via is None else self.router.passed(via)
        return None if passed is None else self.router.choose(service.name, now, refuse=passed)

    def _size_error(self, slot: LendingSlot, request: Request, now: float) -> TooLarge | None:
        """Return the error if a request, with the options added here, is beyond the limits of a peer."""
        limits = self._limits_of(slot.endpoint) or USUAL
        if len(request.payload) <= _SMALL_BYTES and limits.small >= USUAL.small:
            return None
        table, service = self._machine.request_table, request.service.name
        options, tail = self._for_peer(work_octets(slot.worker, request, 0, now, table.user_for(request))[1])
        if len(options) > OPTIONS_BYTES_MAX:
            return TooLarge("bytes of the options of the request", len(options), OPTIONS_BYTES_MAX)
        return too_large("request", [Encoded(tail)], limits, 3, NUMBERED_BYTES + len(service) + len(options))

    def _slots_that_fit(self, request: Request, now: float) -> dict[bytes, LendingSlot]:
        """Return the slots whose peers may get a request and whose limits allow it, by peer."""
        options = b"" if request.extras is None else request.extras.options
        via = via_of(options)
        passed = None if via is None else self.router.passed(via)
        if passed is None:
            return {}
        candidates = [slot for slot in self._slots.values() if slot.worker.service is request.service and slot.peer not in passed]
        return {slot.peer: slot for slot in candidates if self._size_error(slot, request, now) is None}

    def _larger_slot(self, request: Request, now: float) -> LendingSlot | None:
        """Return a slot with free workers whose limits allow a large request."""
        takers = self._slots_that_fit(request, now)
        chosen = self.router.choose(request.service.name, now, refuse=self._endpoint_of_peer.keys() - takers.keys()) if takers else None
        return None if chosen is None else takers[chosen]

    def _may_wait(self, request: Request, now: float) -> bool:
        """Return whether a busy worker of our own, or a busy peer, may get a request later."""
        return any(worker.credit for worker in request.service.workers.values()) or bool(self._slots_that_fit(request, now))

    def _lend(self, slot: LendingSlot, request: Request, now: float) -> SendToPeer:
        service = request.service.name
        table = self._machine.request_table
        table.give(slot.worker, [request], now)
        self.router.lend(slot.peer, service)
        key = request.number.to_bytes(ID_BYTES, "big")
        self._slot_of_request[key] = slot
        slot.lent += 1
        self.counters["lent"] += 1
        pieces = table.out[slot.worker.peer]
        options, tail = self._for_peer(pieces.pop())
        if not pieces:
            del table.out[slot.worker.peer]
        return SendToPeer(slot.endpoint, [CLIENT_REQUEST_03 + key, service, options, Encoded(tail)])

    def _for_peer(self, octets: bytes) -> tuple[bytes, bytes]:
        """Return options and encoded body for a peer, made of a REQUEST for a worker."""
        (_, options), tail = split_frames(octets, 2)
        return (extend_via(options, via_of(options) or (), self.router.name) if options else self._first_via), tail

    def take_for_peers(self, out: Output) -> list[SendToPeer]:
        to_peers: list[SendToPeer] = []
        if not self._number:
            return to_peers
        for worker in [peer for peer in out if len(peer) == _SLOT_ID_BYTES and peer.startswith(_SLOT_ID)]:
            slot = self._slot_of_worker.get(worker)
            for octets in out.pop(worker):
                command = decode_frames(octets)[0]
                if slot is not None and command[:HEAD_BYTES] == WORKER_CANCEL_03:
                    self.counters["cancelled"] += 1
                    to_peers.append(SendToPeer(slot.endpoint, [CLIENT_CANCEL_03 + command[HEAD_BYTES:]]))
        return to_peers

    def on_answers(self, endpoint: str, batch: Sequence[Sequence[bytes]], now: float) -> Output:
        """Take messages of a peer; return messages for the broker's socket."""
        for frames in batch:
            self._answered(endpoint, frames, now)
        return self._machine.take_output()

    def _answered(self, endpoint: str, frames: Sequence[bytes], now: float) -> None:
        head = frames[0] if frames else b""
        command, key = head[:HEAD_BYTES], head[HEAD_BYTES:]
        slot = self._slot_of_request.get(key)
        if len(head) != NUMBERED_BYTES or slot is None or slot.endpoint != endpoint:
            self.counters["answers_unknown"] += 1
            return
        worker, table = slot.worker, self._machine.request_table
        worker.seen = now
        body = list(frames[1:])
        if command == CLIENT_PARTIAL_03 and body:
            table.partial(worker.in_flight[key], encode_message(body), now)
        elif command == CLIENT_PROGRESS_03 and len(body) == 1 and len(body[0]) <= PROGRESS_BYTES_MAX:
            table.progress(worker.in_flight[key], body[0])
        elif command == CLIENT_FINAL_03 and body:
            table.finish(worker, [self._take_back(slot, key)], [encode_message(body)], now)
            worker.done += 1
            self.counters["answered"] += 1
        elif command == CLIENT_ERROR_03 and len(body) == 2:
            self._failed(slot, self._take_back(slot, key), body, now)
        else:
            self.counters["answers_malformed"] += 1

    def unsent(self, to_peer: SendToPeer, now: float) -> Output:
        """Take back a request that could not be sent to a peer."""
        key = to_peer.frames[0][HEAD_BYTES:]
        slot = self._slot_of_request.get(key)
        if slot is not None and to_peer.frames[0][:HEAD_BYTES] == CLIENT_REQUEST_03:
            request = self._take_back(slot, key)
            self.router.exhausted(slot.peer, request.service.name)
            self._place_again(request, now)
        return self._machine.take_output()

    def _take_back(self, slot: LendingSlot, key: bytes) -> Request:
        del self._slot_of_request[key]
        request = slot.worker.in_flight.pop(key)
        self.router.returned(slot.peer, request.service.name)
        return request

    def _failed(self, slot: LendingSlot, request: Request, body: Sequence[bytes], now: float) -> None:
        code, text = body
        if code in _TRY_ELSEWHERE:
            self.router.exhausted(slot.peer, request.service.name)
            if code in _REFUSED and not (request.extras is not None and request.extras.streamed):
                self._place_again(request, now)
                return
            self.counters["given_back"] += 1
            table = self._machine.request_table
            table.give_back(request, (slot.worker.peer, printable(code), now), now, lost=False)
            table.pump(request.service, now)
        else:
            table = self._machine.request_table
            table.forward_error(request, printable(code[:64]), printable(text[:_ERROR_TEXT_MAX]), now)
            table.pump(request.service, now)  # other requests with its key may start it again

    def _place_again(self, request: Request, now: float) -> None:
        """Give a request that no worker of a peer got to another worker; its time in the queue goes on."""
        self.counters["given_back"] += 1
        table, expires = self._machine.request_table, request.expires
        table.place_again(request, now)
        if request.worker is None:
            request.expires = min(expires, request.expires)
        table.pump(request.service, now)


def _joined(first: Output, then: Output) -> Output:
    """Return messages to be sent, followed by others."""
    for peer, messages in then.items():
        first.setdefault(peer, []).extend(messages)
    return first
