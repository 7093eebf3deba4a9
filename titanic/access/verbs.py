"""Whose request is it, and may they? Every verb of the store is looked at here before the store is asked.

A request belongs to the user who submitted it, as the broker calls that user. What is another's is answered as if there were no such
request, and on the same way, so that nobody learns whether there is one: an operator, who may `manage` the service asked (`titanic.reply`,
say), sees what is there. A user may submit what the broker's rules let that user call. Where the broker tells no users, without
security, all requests are nobody's and everybody's, as in RFC 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from titanic.access.broker_permissions import Question, Verdict
from titanic.errors import BadRequest
from titanic.wire import tsp
from titanic.wire.tsp import BAD, FAILED, OK, parse_request, parse_uuid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from titanic.access.broker_permissions import Permissions
    from titanic.store.batches import Batches
    from titanic.store.index.stored_request import Entry
    from titanic.store.status import Glance
    from titanic.store.store import Store

    Done: TypeAlias = Callable[[list[bytes]], None]
    Take: TypeAlias = Callable[[Sequence[bytes], Done], None]

__all__ = ["OWNERLESS", "Access", "refusal", "user_of"]

OWNERLESS: Final = ("operators", "everybody")
NAMES_MAX: Final = 4096  # of users, kept so that all requests of one share an object
WAIT: Final = b"titanic.wait"
LOOK: Final = b"titanic.look"


class Access:
    """Stands before one store.

    Args:
        store: what is asked.
        batches: of the same store.
        glance: of the same store.
        permissions: tells what users may do.
        ownerless: who may have the requests of nobody: only operators and those without a name, or everybody.
    """

    def __init__(self, store: Store, batches: Batches, glance: Glance, permissions: Permissions, *, ownerless: str) -> None:
        self._store = store
        self._batches = batches
        self._glance = glance
        self._permissions = permissions
        self._shares_ownerless = ownerless == "everybody"
        self._names: dict[str, bytes] = {}
        self._known: dict[bytes, tuple[bytes, bytes]] = {}

    def _owner(self, user: str | None) -> bytes:
        if user is None:
            return b""
        owner = self._names.get(user)
        if owner is None:
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            owner = self._names[user] = user.encode()
        return owner

    def _has(self, owner: bytes, entry: Entry) -> bool:
        return entry.owner == owner or (self._shares_ownerless and not entry.owner)

    # ---- titanic.request

    def submit(self, frames: Sequence[bytes], user: str | None, done: Done) -> None:
        """Take one request to `titanic.request`; see `Store.submit`."""
        # Hot path: once per request.
        if len(frames) == 1 and tsp.is_question(frames):
            done([OK, tsp.EXTENSIONS_KNOWN])
            return
        if user is None:
            self._store.submit(frames, done)
            return
        owner = self._owner(user)
        try:
            asked = parse_request(frames, self._known)
        except BadRequest:
            self._store.submit(frames, done)  # which says what is wrong, and counts it
            return
        self._permissions.ask(Question(b"call", owner, asked.service), self._submit_judged, (owner, frames, asked, done))

    def _submit_judged(self, about: Any, verdict: Verdict) -> None:
        owner, frames, asked, done = about
        if verdict is Verdict.YES:
            self._store.submit(frames, done, lambda _: asked, owner)
        else:
            done(self._refused(owner, asked.service, verdict))

    def _refused(self, owner: bytes, service: bytes, verdict: Verdict) -> list[bytes]:
        if verdict is Verdict.NO:
            self._store.counters["forbidden"] += 1
            return [BAD, refusal(owner, service).encode()]
        return self._cannot_tell()

    def _cannot_tell(self) -> list[bytes]:
        return [FAILED, f"the broker does not say what users may do: {self._permissions.reason}".encode()]

    # ---- titanic.reply, wait, close

    def fetch(self, frames: Sequence[bytes], user: str | None, done: Done) -> None:
        """Take one request to `titanic.reply`; see `Store.fetch`."""
        self._touch(tsp.REPLY, frames, user, done, self._store.fetch)

    def wait(self, frames: Sequence[bytes], timeout_s: float, user: str | None, done: Done) -> None:
        """Take one request to `titanic.wait`; see `Store.wait`."""
        self._touch(WAIT, frames, user, done, lambda frames, done: self._store.wait(frames, timeout_s, done))

    def close(self, frames: Sequence[bytes], user: str | None, done: Done) -> None:
        """Take one request to `titanic.close`; see `Store.close_request`."""
        self._touch(tsp.CLOSE, frames, user, done, self._store.close_request)

    def _touch(self, verb: bytes, frames: Sequence[bytes], user: str | None, done: Done, take: Take) -> None:
        """Do something to a request, if it is the user's own or the user is an operator; else say what is said of none."""
        # Hot path: once per request.
        owner = self._owner(user)
        entry = self._find(frames)
        if entry is not None and self._has(owner, entry):
            take(frames, done)
        elif not owner:
            if entry is None:
                take(frames, done)
            else:
                done(_none(verb))
        else:
            # What is another's and what is not there go the same way from here on.
            self._permissions.ask(Question(b"manage", owner, verb), self._judged, (verb, frames, done, take))

    def _judged(self, about: Any, verdict: Verdict) -> None:
        verb, frames, done, take = about
        if verdict is Verdict.UNKNOWN:
            done(self._cannot_tell())
        elif verdict is Verdict.YES or self._find(frames) is None:
            take(frames, done)
        else:
            done(_none(verb))

    def _find(self, frames: Sequence[bytes]) -> Entry | None:
        uuid = parse_uuid(frames[0], self._store.hyphens) if len(frames) == 1 else None
        return None if uuid is None else self._store.ledger.entries.get(uuid)

    # ---- titanic.look, titanic.batch

    def look(self, frames: Sequence[bytes], user: str | None, done: Done) -> None:
        """Take one request to `titanic.look`: all for an operator, a user's own for a user."""
        owner = self._owner(user)
        if not owner:
            self._glance.take(frames, done)
            return

        def then(_: None, verdict: Verdict) -> None:
            if verdict is Verdict.UNKNOWN:
                done(self._cannot_tell())
            else:
                self._glance.take(frames, done, None if verdict is Verdict.YES else owner)

        self._permissions.ask(Question(b"manage", owner, LOOK), then, None)

    def batch(self, frames: Sequence[bytes], user: str | None, done: Done) -> None:
        """Take one request to `titanic.batch`: names of batches and what they hold are a user's own."""
        owner = self._owner(user)
        if not owner or frames[0] != b"stage" or len(frames) != 6:
            self._batches.take(frames, done, owner)
            return
        try:
            service = parse_request([frames[4], b""], self._known).service
        except BadRequest:
            self._batches.take(frames, done, owner)  # which says what is wrong; what is no name is nothing to ask the broker about
            return

        def then(_: None, verdict: Verdict) -> None:
            if verdict is Verdict.YES:
                self._batches.take(frames, done, owner)
            else:
                done(self._refused(owner, service, verdict))

        self._permissions.ask(Question(b"call", owner, service), then, None)


def refusal(owner: bytes, service: bytes) -> str:
    """Return what is said of a request whose user may not call its service."""
    return f"FORBIDDEN: {owner.decode(errors='replace')} may not call {service.decode('ascii', 'replace')}"


def user_of(entry: Entry) -> str | None:
    """Return on whose behalf a worker is asked, None for a request of nobody's."""
    return entry.owner.decode(errors="replace") if entry.owner else None


def _none(verb: bytes) -> list[bytes]:
    """Return what is said of a request that is not there."""
    return [OK] if verb == tsp.CLOSE else [BAD]
