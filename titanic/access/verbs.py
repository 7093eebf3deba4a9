"""Authorization of every verb of the store.

A request belongs to the user that submitted it, as named by the broker. Requests of other users are answered exactly like unknown ones,
with the same steps, so that their existence is not revealed; an operator, who may `manage` the called service (such as
`titanic.reply`), can access all. A user may submit requests for services that the broker's rules allow it to call. Without security the
broker names no users, and all requests are accessible to all, as in RFC 9.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from core.machine.peer_text import decimal
from titanic.access.broker_permissions import Question, Verdict
from titanic.errors import BadRequest
from titanic.wire import tsp
from titanic.wire.batch_frames import ASK, KEPT, NEW, parse_count
from titanic.wire.tsp import BAD, FAILED, OK, PENDING, parse_request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from titanic.access.broker_permissions import Permissions
    from titanic.store.index.stored_request import Entry
    from titanic.wire.tsp import Done, Submission

    Take: TypeAlias = Callable[[Sequence[bytes], Done], None]
    OwnersTake: TypeAlias = Callable[[Sequence[bytes], Done, bytes], None]
    OperatorsTake: TypeAlias = Callable[[Sequence[bytes], Done, bytes | None], None]  # None: of all owners
    Parse: TypeAlias = Callable[[Sequence[bytes]], Submission] | None

# May access requests without an owner; operators, and clients without a user name, always may.
OWNERLESS: Final = ("operators", "everybody")
NAMES_MAX: Final = 4096  # cached user names, so that all requests of a user share one object


class StoredRequests(Protocol):
    """Part of the store that authorization uses."""

    @property
    def counters(self) -> dict[str, int]: ...

    def find(self, frames: Sequence[bytes], /) -> Entry | None: ...
    def submit(self, frames: Sequence[bytes], done: Done, parse: Parse = None, owner: bytes = b"", /) -> None: ...
    def fetch(self, frames: Sequence[bytes], done: Done, /) -> None: ...
    def wait(self, frames: Sequence[bytes], timeout_s: float, done: Done, /) -> None: ...
    def close_request(self, frames: Sequence[bytes], done: Done, /) -> None: ...


class Access:
    """Authorization in front of one store; `ownerless` is one of `OWNERLESS`."""

    def __init__(self, store: StoredRequests, batch: OwnersTake, look: OperatorsTake, permissions: Permissions, *, ownerless: str) -> None:
        self._store = store
        self._batch = batch
        self._look = look
        self._permissions = permissions
        self._shares_ownerless = ownerless == "everybody"
        self._names: dict[str, bytes] = {}
        self._known: dict[bytes, tsp.Name] = {}

    def _owner(self, user: str | None) -> bytes:
        if user is None:
            return b""
        owner = self._names.get(user)
        if owner is None:
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            owner = self._names[user] = user.encode()
        return owner

    # ---- titanic.request

    def submit(self, frames: Sequence[bytes], user: str | None, done: Done) -> None:
        """Serve `titanic.request`; see `Store.submit`."""
        # Hot path: once per request.
        if len(frames) == 1 and tsp.is_question(frames):
            done([OK, *tsp.EXTENSIONS_KNOWN])
            return
        if user is None:
            self._store.submit(frames, done)
            return
        owner = self._owner(user)
        try:
            asked = parse_request(frames, self._known)
        except BadRequest:
            self._store.submit(frames, done)  # answers the reason, and counts it
            return
        self._if_callable(owner, asked.service, done, partial(self._store.submit, frames, done, partial(_parsed, asked), owner))

    def _if_callable(self, owner: bytes, service: bytes, done: Done, act: Callable[[], None]) -> None:
        """Act if the user may call the service; otherwise answer the reason."""
        self._permissions.ask(Question(b"call", owner, service), self._call_decided, (owner, service, done, act))

    def _call_decided(self, about: Any, verdict: Verdict) -> None:
        owner, service, done, act = about
        if verdict is Verdict.YES:
            act()
        elif verdict is Verdict.NO:
            self._store.counters["forbidden"] += 1
            done([BAD, refusal(owner, service).encode()])
        else:
            done(self._cannot_tell())

    def _cannot_tell(self) -> list[bytes]:
        return [FAILED, f"the broker does not say what users may do: {self._permissions.reason}".encode()]

    # ---- titanic.reply, wait, close

    def fetch(self, frames: Sequence[bytes], user: str | None, done: Done) -> None:
        """Serve `titanic.reply`; see `Store.fetch`."""
        if tsp.is_question(frames):
            done([OK, *tsp.EXTENSIONS_KNOWN])
        else:
            self._act_on(tsp.REPLY, frames, user, done, self._store.fetch)

    def wait(self, frames: Sequence[bytes], user: str | None, done: Done) -> None:
        """Serve `titanic.wait`, `[uuid][ms]`; see `Store.wait`."""
        wait_ms = decimal(frames[1]) if len(frames) == 2 else None
        if wait_ms is None:
            done([BAD, b"a wait is a UUID and milliseconds"])
            return
        timeout_s = min(wait_ms, tsp.WAIT_MS_MAX) / 1000
        self._act_on(tsp.WAIT, frames[:1], user, done, lambda frames, done: self._store.wait(frames, timeout_s, done))

    def close(self, frames: Sequence[bytes], user: str | None, done: Done) -> None:
        """Serve `titanic.close`; see `Store.close_request`."""
        self._act_on(tsp.CLOSE, frames, user, done, self._store.close_request)

    def _act_on(self, verb: bytes, frames: Sequence[bytes], user: str | None, done: Done, take: Take) -> None:
        """Act on a request if its user or an operator asks; otherwise answer as for an unknown request."""
        # Hot path: once per request.
        owner = self._owner(user)
        entry = self._store.find(frames)
        if entry is None:
            visible = not owner
        else:
            visible = entry.owner == owner or (self._shares_ownerless and not entry.owner)
        if visible:
            take(frames, done)
        elif not owner:
            done(_unknown(verb))
        else:
            # From here on requests of other users and unknown ones take the same steps.
            self._permissions.ask(Question(b"manage", owner, verb), self._decided, (verb, frames, done, take))

    def _decided(self, about: Any, verdict: Verdict) -> None:
        verb, frames, done, take = about
        if verdict is Verdict.UNKNOWN:
            done(self._cannot_tell())
        elif verdict is Verdict.YES or self._store.find(frames) is None:
            take(frames, done)
        else:
            done(_unknown(verb))

    # ---- titanic.look, titanic.batch

    def look(self, frames: Sequence[bytes], user: str | None, done: Done) -> None:
        """Serve `titanic.look`: everything for an operator, its own requests for a user."""
        owner = self._owner(user)
        if not owner:
            self._look(frames, done, None)
            return

        def then(_: None, verdict: Verdict) -> None:
            if verdict is Verdict.UNKNOWN:
                done(self._cannot_tell())
            else:
                self._look(frames, done, None if verdict is Verdict.YES else owner)

        self._permissions.ask(Question(b"manage", owner, tsp.LOOK), then, None)

    def batch(self, frames: Sequence[bytes], user: str | None, done: Done) -> None:
        """Serve `titanic.batch`: batches and their names belong to their user."""
        owner = self._owner(user)
        if frames[0] == ASK:
            self._ask(frames, owner, done)
            return
        if not owner or frames[0] != b"stage" or len(frames) != 6:
            self._batch(frames, done, owner)
            return
        try:
            service = parse_request([frames[4], b""], self._known).service
        except BadRequest:
            self._batch(frames, done, owner)  # answers the reason; an invalid name is no question for the broker
            return
        self._if_callable(owner, service, done, partial(self._batch, frames, done, owner))

    def _ask(self, frames: Sequence[bytes], owner: bytes, done: Done) -> None:
        """Serve `[ask][ms][options…][service][body…]`: store a request with a key, and answer when it has ended."""
        # Hot path: once per row or table of a Spark job.
        try:
            wait_ms = parse_count(frames[1], tsp.WAIT_MS_MAX) if len(frames) > 1 else 0
            asked = parse_request(frames[2:], self._known)
            if not asked.options.key:
                raise BadRequest("ask needs a key: it is repeated until the request has ended")
        except BadRequest as error:
            self._store.counters["refused"] += 1
            done([BAD, str(error).encode()])
            return
        stored = partial(self._wait_for, wait_ms / 1000, done)
        submit = partial(self._store.submit, frames[2:], stored, partial(_parsed, asked), owner)
        if owner:
            self._if_callable(owner, asked.service, done, submit)
        else:
            submit()

    def _wait_for(self, timeout_s: float, done: Done, stored: list[bytes]) -> None:
        """Answer for a stored request: `stored` is the reply of `titanic.request`."""
        if stored[0] != OK:
            done(stored)
            return
        entry = self._store.find(stored[1:])
        if entry is None:
            done([BAD, b"CLOSED: the store has forgotten the reply"])
            return
        # A request that was stored just now has no reply yet.
        state = NEW if entry.reply is None else KEPT
        self._store.wait(stored[1:], timeout_s, lambda reply: done([reply[0], state, *(stored[1:] if reply[0] == PENDING else reply[1:])]))


def refusal(owner: bytes, service: bytes) -> str:
    return f"FORBIDDEN: {owner.decode(errors='replace')} may not call {service.decode(errors='replace')}"


def user_of(entry: Entry) -> str | None:
    return entry.owner.decode(errors="replace") if entry.owner else None


def _parsed(asked: Submission, _: Sequence[bytes]) -> Submission:
    return asked


def _unknown(verb: bytes) -> list[bytes]:
    return [OK] if verb == tsp.CLOSE else [BAD]
