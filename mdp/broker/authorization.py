"""Dispatcher with authorization: decisions are remembered for each peer and service.

Pure. A broker without rules has a `Dispatcher` and no cost; a broker with rules has this class instead. Every request passes `_request` and
every worker `_register`, which check the rules. Only the routes of a peer bypass them: a service is among these from its first allowed
request until the rules change, the peer disconnects or any route ends. Without rules all peers share the routes of the directory.

A refusal is sent as the dialect sends errors: ERROR `FORBIDDEN` in MDP/0.3, code 403 from MMI, DISCONNECT to a worker. MDP/0.1 and 0.2 have
no errors for clients: the request is dropped and counted `silent_forbidden`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from core.zmtp.frames import decode_frames, encode_frame
from mdp.access.rules import VERBS, Rights, Verb
from mdp.broker import mmi
from mdp.broker.dispatcher import Dispatcher
from mdp.broker.forwarding import reply_head
from mdp.broker.requests.request_options import owner_prefix
from mdp.broker.workers.lifecycle import DISCONNECTS
from mdp.wire.channels import connection_of
from mdp.wire.commands import V03, is_service_name
from mdp.wire.failover import PAIR_SERVICE
from mdp.wire.options import USER_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mdp.access.rules import Rules
    from mdp.broker.limits import BrokerOptions
    from mdp.broker.requests.records import RequestExtras, Service, Worker
    from mdp.broker.requests.request_ends import Output
    from mdp.wire.commands import Dialect
    from mdp.wire.events import Ready
    from mdp.wire.options import ReadyOptions

FORBIDDEN = "FORBIDDEN"
_ALLOWED_MMI, _FORBIDDEN_MMI, _DENIED_MMI = b"200", b"403", b"404"
# Maximum services remembered as allowed to one peer: the peer chooses the names.
_REMEMBERED_MAX = 1024
_VERBS: dict[bytes, Verb] = {verb.encode(): verb for verb in VERBS}
_NOWHERE: dict[bytes, Service] = {}
_FREE = frozenset((b"mmi.protocol", PAIR_SERVICE))


class Refusal(NamedTuple):
    """An action that a peer was not allowed."""

    peer: bytes
    user: str | None  # its name from the authenticator, None if it was not authenticated
    verb: Verb
    service: bytes


class GuardedDispatcher(Dispatcher):
    """Dispatcher that enforces rules.

    Args:
        user_of: returns a peer's name from the authenticator, None if the peer was not authenticated.
        now: monotonic seconds.
    """

    def __init__(
        self,
        options: BrokerOptions | None,
        rules: Rules,
        *,
        user_of: Callable[[bytes], str | None],
        audit: Callable[[Refusal], None],
        first_number: int = 1,
        owner_secret: bytes = b"",
        now: float = 0.0,
    ) -> None:
        super().__init__(options, first_number=first_number, owner_secret=owner_secret, now=now)
        self._rules = rules
        self._user_of = user_of
        self._audit = audit
        self._rights: dict[bytes, Rights] = {}
        self._users: dict[bytes, str] = {}  # "" for a peer without a name
        self._by_name: dict[bytes, Rights] = {}  # of users in `mmi.allowed` requests; computing them reads every table of the rules
        self._disbelieved: set[bytes] = set()  # peers that named a user without the right to
        self._owners: dict[bytes, bytes] = {}  # prefix of a peer's idempotency keys
        self._judged: set[bytes] = set()  # connections of workers that were allowed to serve; others are borrowed, and no peers of ours
        # services each peer was allowed to call, by peer and then as in `Directory.routes_encoded`
        self.routes: dict[bytes, dict[bytes, Service]] = {}
        self._closed_routes = 0
        self.request_table.user_of = self._name_of

    def set_rules(self, rules: Rules, now: float) -> Output:
        """Replace the rules: disconnect workers that may no longer serve, and check waiting requests again.

        Requests at a worker are still answered: they were allowed when the worker got them.
        """
        self._rules = rules
        self._rights.clear()
        self._disbelieved.clear()
        self._by_name.clear()
        self.routes.clear()
        for worker in list(self._workers.values()):
            if connection_of(worker.peer) in self._judged and not self._may(worker.peer, "serve", worker.service.name):
                self.request_table.send(worker.peer, DISCONNECTS[worker.dialect])
                self._remove(worker, "forbidden_serve", now)
            else:
                self._tell_users(worker)
        for peer, client_requests in list(self.request_table.clients.items()):
            for part, key in client_requests.entries():
                request = part[key]
                if request.worker is None and not self._may(peer, "call", request.service.name):
                    self.request_table.end(request, now, FORBIDDEN, "by new rules")
        return self.take_output()

    def routes_of(self, peer: bytes) -> dict[bytes, Service]:
        """Return the services that the peer was allowed to call; forgotten for all peers when any route ends."""
        closed = self.directory.closed_routes
        if closed != self._closed_routes:
            self._closed_routes = closed
            self.routes.clear()
        return self.routes.get(peer, _NOWHERE)

    def peer_lost(self, peer: bytes, now: float) -> Output:
        """Forget a peer's rights: another peer may get the same routing id."""
        self._rights.pop(peer, None)
        self._users.pop(peer, None)
        self._disbelieved.discard(peer)
        self._owners.pop(peer, None)
        self.routes.pop(peer, None)
        self._judged.discard(peer)
        return super().peer_lost(peer, now)

    def _rights_of(self, peer: bytes) -> Rights:
        peer = connection_of(peer)
        rights = self._rights.get(peer)
        if rights is None:
            name = self._name_of(peer)
            # A name too long for request options has no rights.
            rights = self._rules.rights_of(name or None) if len(name.encode()) <= USER_BYTES_MAX else Rights()
            self._rights[peer] = rights
        return rights

    def _name_of(self, peer: bytes) -> str:
        """Return the user of a peer, "" for a peer without a name."""
        name = self._users.get(peer)
        if name is None:
            name = self._users[peer] = self._user_of(peer) or ""
        return name

    def _remember(self, peer: bytes, name: bytes) -> None:
        """Accept further requests of a peer to an allowed service without a check, while the service takes requests."""
        service = self.directory.routes.get(name)
        if service is None or service.policies is not None:
            return
        self.routes_of(peer)
        routes = self.routes.setdefault(peer, {})
        if len(routes) >= 2 * _REMEMBERED_MAX:
            routes.clear()
        routes[service.encoded] = routes[service.route] = service

    def _may(self, peer: bytes, verb: Verb, service: bytes) -> bool:
        if self._rights_of(peer).may(verb, service):
            return True
        peer = connection_of(peer)
        self._audit(Refusal(peer, self._user_of(peer), verb, service))
        return False

    # Entry points of everything that is not known to be allowed.

    def _request(self, peer: bytes, dialect: Dialect, key: bytes | int, name: bytes, tail: bytes, options: bytes, now: float) -> None:
        if self.request_table.open_request(peer, key) is not None:
            self.counters.count("dropped_duplicate")  # even if the rules have changed: the first request was allowed and continues
        elif name.startswith(mmi.PREFIX) or self._may(peer, "call", name):
            self._remember(peer, name)
            super()._request(peer, dialect, key, name, tail, options, now)
        else:
            if self.request_table.recorder is not None:
                self.request_table.recorder.current_request = name, len(tail)
            self.request_table.reject(peer, dialect, key, FORBIDDEN, "not allowed by the rules of the broker")

    def _register(self, peer: bytes, event: Ready, now: float) -> None:
        if is_service_name(event.service) and not self._may(peer, "serve", event.service):
            self.counters.count("forbidden_serve")
            self.request_table.send(peer, DISCONNECTS[event.dialect])
        else:
            self._judged.add(connection_of(peer))
            super()._register(peer, event, now)

    def _welcome(self, worker: Worker, options: ReadyOptions, now: float) -> None:
        self._tell_users(worker)
        super()._welcome(worker, options, now)

    def _tell_users(self, worker: Worker) -> None:
        """Set whether a worker gets the user of each request; requests are then re-encoded, not forwarded unchanged."""
        connection = connection_of(worker.peer)
        if connection in self._judged:
            worker.user = self._name_of(connection)
            as_it_came = not self.request_table.hops.is_narrow(worker.peer)
            worker.plain = as_it_came and not self._rights_of(worker.peer).may("see_users", worker.service.name)

    def _owner_of(self, extras: RequestExtras, peer: bytes, name: bytes, claimed: str | None) -> bytes:
        if claimed is not None and self._rights_of(peer).may("pass_users", name):
            extras.user = claimed
            return owner_prefix(claimed)
        owner = self._owners.get(peer)
        if owner is None:
            owner = self._owners[peer] = owner_prefix(self._name_of(peer))
        if claimed is not None and peer not in self._disbelieved:  # once: a peer broker without the right names a user in each request
            self._disbelieved.add(peer)
            self._audit(Refusal(peer, self._user_of(peer), "pass_users", name))
        return owner + super()._owner_of(extras, peer, name, claimed)  # separates the users of one peer: none gets another's answer

    def _answer_mmi(self, peer: bytes, dialect: Dialect, key: bytes | int, name: bytes, tail: bytes, now: float) -> None:
        body = decode_frames(tail)
        if dialect == V03:
            del body[0]
        if name == mmi.ALLOWED and mmi.is_question(body):
            self.counters.count("mmi")
            self.request_table.send(peer, reply_head(dialect, key, name) + encode_frame(self._judge(peer, body)))
        elif len(body) != (2 if name == mmi.KEYS else 1) or self._may_ask(peer, name, body[-1]):
            super()._answer_mmi(peer, dialect, key, name, tail, now)
        else:
            self.counters.count("forbidden_mmi")
            self.request_table.send(peer, reply_head(dialect, key, name) + encode_frame(_FORBIDDEN_MMI))

    def _judge(self, peer: bytes, question: Sequence[bytes]) -> bytes:
        """Answer a worker that gets users whether a user may do something."""
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
        """Return whether a peer may ask MMI this; an unknown name is treated as a report."""
        rights = self._rights_of(peer)
        if name == mmi.KEYS:
            return self._may(peer, "call", about)
        if name == b"mmi.service":
            return rights.may("serve", about) or rights.may("manage", about) or self._may(peer, "call", about)
        if name in mmi.ACTIONS:
            return self._may(peer, "manage", about)
        if name in mmi.ON_DEAD_LETTERS:
            dead_letter = self.dead_letters.get(mmi.dead_letter_number(about))
            return self._may(peer, "manage", b"" if dead_letter is None else dead_letter.service)
        return name in _FREE or bool(rights.manage) or self._may(peer, "call", name)
