"""The broker's machine with rules: what a peer asks for is looked at once, and the answer kept for the next time.

Pure. A broker without rules has a `Dispatcher` and pays nothing; one with rules has this in its place. Every request comes through
`_request` and every worker through `_register`, where the rules are asked; the short ways round them are open only to what was allowed
before: `receive` sends a request of MDP/0.3 the fast way when its (peer, service) is known, and the express lane finds a service by its
encoded name in routes of the peer's own, where it stands from the first request that was allowed until the rules change, the peer goes
or any service ends. Routes for everybody, `routes_encoded`, stay empty.

A refusal is told as its dialect tells errors: ERROR `FORBIDDEN` in MDP/0.3, code 403 from MMI, DISCONNECT to a worker. MDP/0.1 and 0.2 have
no way to tell a client: its request is dropped and counted `silent_forbidden`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from core.zmtp.decoder import split_frames
from mdp.access.rules import VERBS, Rights
from mdp.broker import mmi
from mdp.broker.dispatcher import Dispatcher
from mdp.broker.forwarding import reply_message
from mdp.wire.commands import CLIENT_REQUEST_03, HEAD_BYTES, V03, is_service_name, worker_disconnect
from mdp.wire.failover import PAIR_SERVICE
from mdp.wire.message_runs import Express
from mdp.wire.options import USER_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mdp.access.rules import Rules, Verb
    from mdp.broker.limits import BrokerOptions
    from mdp.broker.requests.records import Service, Terms, Worker
    from mdp.broker.requests.request_table import Message
    from mdp.wire.commands import Dialect
    from mdp.wire.events import Ready
    from mdp.wire.options import ReadyOptions

__all__ = ["GuardedDispatcher", "Refusal"]

FORBIDDEN = "FORBIDDEN"
_ALLOWED_MMI, _FORBIDDEN_MMI, _DENIED_MMI = b"200", b"403", b"404"
# Services remembered as allowed to one peer; the names are its own choice, so their number is limited.
_REMEMBERED_MAX = 1024
_VERBS: dict[bytes, Verb] = {verb.encode(): verb for verb in VERBS}
_NOWHERE: dict[bytes, Service] = {}
_FREE = frozenset((b"mmi.protocol", PAIR_SERVICE))
_ACTIONS = frozenset((b"mmi.drain", b"mmi.disable", b"mmi.enable"))
_ON_LETTERS = frozenset((b"mmi.dlq.show", b"mmi.dlq.drop", mmi.RETRY))


class Refusal(NamedTuple):
    """One thing a peer was not allowed.

    Attributes:
        peer: its routing id.
        user: what the authenticator calls it, None if nobody has judged it.
        verb: what it wanted to do.
        service: to which service.
    """

    peer: bytes
    user: str | None
    verb: Verb
    service: bytes


class _NoRoutes(dict[bytes, "Service"]):
    """Finds nothing, whatever is put in; what is taken out of it is taken out of everybody's own routes."""

    def __init__(self, lanes: dict[bytes, dict[bytes, Service]]) -> None:
        super().__init__()
        self._lanes = lanes

    def __setitem__(self, name: bytes, service: Service) -> None:
        """Keep nothing: each peer is to be judged first."""

    def __delitem__(self, name: bytes) -> None:
        """Close the lane to everybody, which opens it again with the next request."""
        self._lanes.clear()


class _GuardedExpress(Express):
    """The express lane, in which each peer finds only the services it was allowed to call.

    Attributes:
        lanes: services by encoded name, by peer.
    """

    __slots__ = ("lanes", "owner_of")

    lanes: dict[bytes, dict[bytes, Service]]
    owner_of: Callable[[bytes], bytes]

    def take(self, peer: bytes, octets: bytes, longest: int, now: float) -> int:
        """See `Express.take`."""
        self._routes = routes = self.lanes.get(peer, _NOWHERE)
        if routes is not _NOWHERE:
            self._owner = self.owner_of(peer)
        return super().take(peer, octets, longest, now)


class GuardedDispatcher(Dispatcher):
    """A dispatcher that asks rules.

    Args:
        options: as for `Dispatcher`.
        rules: who may do what.
        user_of: tells what the authenticator calls a peer, None if nobody has judged it.
        audit: called with every refusal.
        first_number: as for `Dispatcher`.
        now: monotonic seconds.

    Attributes:
        lanes: services the express lane knows to take a peer's requests, by peer and by encoded name.
    """

    def __init__(
        self,
        options: BrokerOptions | None,
        rules: Rules,
        *,
        user_of: Callable[[bytes], str | None],
        audit: Callable[[Refusal], None],
        first_number: int = 1,
        now: float = 0.0,
    ) -> None:
        super().__init__(options, first_number=first_number, now=now)
        self._rules = rules
        self._user_of = user_of
        self._audit = audit
        self._rights: dict[bytes, Rights] = {}
        self._users: dict[bytes, str] = {}  # "" for a peer without a name
        self._by_name: dict[bytes, Rights] = {}  # of users somebody asked about; to look them up takes a look at every table
        self._disbelieved: set[bytes] = set()  # peers that have named a user they may not speak for
        self._owners: dict[bytes, bytes] = {}  # what goes before the keys of a peer
        self._allowed: dict[bytes, set[bytes]] = {}  # services a peer has been allowed to call
        self._judged: set[bytes] = set()  # workers that were allowed to serve; others are seats of lent ones, and nobody's peers
        self.lanes: dict[bytes, dict[bytes, Service]] = {}
        self.directory.routes_encoded = _NoRoutes(self.lanes)
        self.express = express = _GuardedExpress(self.book, self.directory, self.counters)
        express.lanes = self.lanes
        express.owner_of = self._owner_of
        self.book.user_of = self._name_of

    def set_rules(self, rules: Rules, now: float) -> list[Message]:
        """Put other rules into force: workers that may not serve any more are sent away, requests that wait are judged again.

        Requests that are with a worker are answered: they were allowed when they were given.
        """
        self._rules = rules
        self._rights.clear()
        self._disbelieved.clear()
        self._by_name.clear()
        self._allowed.clear()
        self.lanes.clear()
        for worker in list(self._workers.values()):
            if worker.peer in self._judged and not self._may(worker.peer, "serve", worker.service.name):
                self.book.out.append([worker.peer, *worker_disconnect(worker.dialect)])
                self._remove(worker, "forbidden_serve", now)
            else:
                self._tell_users(worker)
        for peer, mine in list(self.book.clients.items()):
            for key in list(mine):  # by key: when one ends, its record may take the place of another
                request = mine[key]
                if request.worker is None and not self._may(peer, "call", request.service.name):
                    self.book.end(request, now, FORBIDDEN, "by new rules")
        return self._take()

    def receive(self, batch: Sequence[Message], now: float) -> list[Message]:
        """Take a batch as `Dispatcher.receive`; requests of MDP/0.3 go the fast way when they are known to be allowed."""
        passed = []
        for message in batch:
            if len(message) > 2 and message[1][:HEAD_BYTES] == CLIENT_REQUEST_03:
                peer, name = message[0], message[2]
                allowed = self._allowed.get(peer)
                if (allowed is not None and name in allowed) or self._known(peer, name):
                    self._open_lane(peer, name)
                else:
                    # Judged again where it is refused; the way there also tells what is malformed.
                    if len(message) == 4 and message[3]:
                        self._receive_request(message, now)
                    else:
                        self._receive_uncommon(message, now)
                    continue
            passed.append(message)
        return super().receive(passed, now)

    def peer_lost(self, peer: bytes, now: float) -> list[Message]:
        """Forget what a peer was allowed: the next with this routing id may be another."""
        self._rights.pop(peer, None)
        self._users.pop(peer, None)
        self._disbelieved.discard(peer)
        self._owners.pop(peer, None)
        self._allowed.pop(peer, None)
        self.lanes.pop(peer, None)
        self._judged.discard(peer)
        return super().peer_lost(peer, now)

    def _rights_of(self, peer: bytes) -> Rights:
        rights = self._rights.get(peer)
        if rights is None:
            name = self._name_of(peer)
            # A name no options could carry belongs to nobody who may do anything.
            rights = self._rules.rights_of(name or None) if len(name.encode()) <= USER_BYTES_MAX else Rights()
            self._rights[peer] = rights
        return rights

    def _name_of(self, peer: bytes) -> str:
        """Return who a peer is, "" for one without a name."""
        name = self._users.get(peer)
        if name is None:
            name = self._users[peer] = self._user_of(peer) or ""
        return name

    def _owner_of(self, peer: bytes) -> bytes:
        owner = self._owners.get(peer)
        if owner is None:
            owner = self._owners[peer] = _owner(self._name_of(peer))
        return owner

    def _known(self, peer: bytes, service: bytes) -> bool:
        """Look a call up in the rules, without a word to anybody, and remember it if it is allowed."""
        if not is_service_name(service) or service.startswith(mmi.PREFIX) or not self._rights_of(peer).may("call", service):
            return False
        allowed = self._allowed.setdefault(peer, set())
        if len(allowed) >= _REMEMBERED_MAX:
            allowed.clear()
        allowed.add(service)
        return True

    def _open_lane(self, peer: bytes, service: bytes) -> None:
        """Let a peer's requests to a service that it may call take the express lane from now on, if the service takes any."""
        route = self.directory.routes.get(service)
        if route is None:
            return
        routes = self.lanes.setdefault(peer, {})
        if len(routes) >= _REMEMBERED_MAX:
            routes.clear()
        routes[route.encoded] = route

    def _may(self, peer: bytes, verb: Verb, service: bytes) -> bool:
        if self._rights_of(peer).may(verb, service):
            return True
        self._audit(Refusal(peer, self._user_of(peer), verb, service))
        return False

    # Where everything comes by that is not known to be allowed.

    def _request(self, peer: bytes, dialect: Dialect, key: bytes | int, name: bytes, tail: bytes, options: bytes, now: float) -> None:
        if key in self.book.clients.get(peer, ()):
            self.counters.count("dropped_duplicate")  # also where the rules have changed: the first was allowed, and goes on
        elif name.startswith(mmi.PREFIX) or self._may(peer, "call", name):
            self._open_lane(peer, name)
            super()._request(peer, dialect, key, name, tail, options, now)
        else:
            if self.book.record is not None:
                self.book.record.asked = name, len(tail)
            self.book.tell(peer, dialect, key, FORBIDDEN, "not allowed by the rules of the broker")

    def _register(self, peer: bytes, event: Ready, now: float) -> None:
        if is_service_name(event.service) and not self._may(peer, "serve", event.service):
            self.counters.count("forbidden_serve")
            self.book.out.append([peer, *worker_disconnect(event.dialect)])
        else:
            self._judged.add(peer)
            super()._register(peer, event, now)

    def _welcome(self, worker: Worker, options: ReadyOptions, now: float) -> None:
        self._tell_users(worker)
        super()._welcome(worker, options, now)

    def _tell_users(self, worker: Worker) -> None:
        """Say whether a worker gets the user of each request; what it gets then does not take the express lane."""
        if worker.peer in self._judged:
            worker.user = self._name_of(worker.peer)
            as_it_came = worker.quick and worker.peer not in self.book.hops.narrow
            worker.plain = as_it_came and not self._rights_of(worker.peer).may("see_users", worker.service.name)

    def _own(self, terms: Terms, peer: bytes, name: bytes, claimed: str | None) -> None:
        owner = self._owner_of(peer)
        if claimed is not None:
            if self._rights_of(peer).may("pass_users", name):
                terms.user = claimed
                owner = _owner(claimed)
            else:
                self.counters.count("users_not_believed")
                if peer not in self._disbelieved:  # once: a peer broker that lacks the right names one with each request
                    self._disbelieved.add(peer)
                    self._audit(Refusal(peer, self._user_of(peer), "pass_users", name))
                owner += _owner(claimed)  # of several whom the peer speaks for, none gets the answer of another
        if terms.key is not None:
            terms.key = owner + terms.key

    def _answer_mmi(self, peer: bytes, dialect: Dialect, key: bytes | int, name: bytes, tail: bytes, now: float) -> None:
        body = split_frames(tail, len(tail))[0]
        if dialect == V03:
            del body[0]
        if name == mmi.ALLOWED and mmi.is_question(body):
            self.counters.count("mmi")
            self.book.out.append(reply_message(peer, dialect, key, name, [self._judge(peer, body)]))
        elif len(body) != 1 or self._may_ask(peer, name, body[0]):
            super()._answer_mmi(peer, dialect, key, name, tail, now)
        else:
            self.counters.count("forbidden_mmi")
            self.book.out.append(reply_message(peer, dialect, key, name, [_FORBIDDEN_MMI]))

    def _judge(self, peer: bytes, question: Sequence[bytes]) -> bytes:
        """Answer a worker that sees users whether one of them may do something."""
        verb, user, service = question
        if not self._rights_of(peer).see_users:
            self._audit(Refusal(peer, self._user_of(peer), "see_users", mmi.ALLOWED))
            self.counters.count("forbidden_mmi")
            return _FORBIDDEN_MMI
        rights = self._by_name.get(user)
        if rights is None:
            if len(self._by_name) >= _REMEMBERED_MAX:
                self._by_name.clear()
            rights = self._by_name[user] = self._rules.rights_of(user.decode("utf-8", "backslashreplace") or None)
        return _ALLOWED_MMI if rights.may(_VERBS[verb], service) else _DENIED_MMI

    def _may_ask(self, peer: bytes, name: bytes, about: bytes) -> bool:
        """Tell whether a peer may ask the broker this; a question that is not known here is a report like any other."""
        rights = self._rights_of(peer)
        if name == b"mmi.service":
            return rights.may("serve", about) or rights.may("manage", about) or self._may(peer, "call", about)
        if name in _ACTIONS:
            return self._may(peer, "manage", about)
        if name in _ON_LETTERS:
            letter = self.letters.get(mmi.letter_number(about))
            return self._may(peer, "manage", b"" if letter is None else letter.service)
        return name in _FREE or bool(rights.manage) or self._may(peer, "call", name)


def _owner(name: str) -> bytes:
    """Return what goes before the keys of a user; none is the beginning of another's."""
    octets = name.encode()
    return len(octets).to_bytes(2, "big") + octets
