"""MMI (RFC 8): the broker's answers to requests for services whose names begin with `mmi.`.

Pure. The answer is the body of an ordinary reply: a code as ASCII digits in the first frame; services beyond RFC 8 add JSON in a second
one. Codes: 200, 400 malformed, 404 unknown target, 501 not offered.

    mmi.service  [name]        200 while a worker is registered, else 404                              RFC 8
    mmi.protocol [dialect]     200 if the broker speaks it (b"0.1", b"0.2", b"0.3"), else 404          ours
    mmi.pair     [ballot]      200 and the ballot of an active broker of a pair; see `mdp.wire.failover`    ours, pairs only
    mmi.allowed  [verb][user][service]  200 if the rules let the user do that, else 404                ours
    mmi.keys     [keys][name]  200 and one octet a key: `k` its reply is kept, `r` it runs, `-` neither    ours
    mmi.lending  [name|""]     200 and the workers' free capacity; see `mdp.wire.lending`              ours
    mmi.describe [name]        200 and a description of a typed service as JSON; 404 without workers   ours
    mmi.services [""]          200 and a list of services                                              ours
    mmi.workers  [""|name]     200 and a list of workers, of all services or one (404 if unknown)      ours
    mmi.stats    [""]          200 and counters and gauges                                             ours
    mmi.dlq      [""]          200 and a list of dead letters, without their bodies                    ours
    mmi.dlq.show [id]          200, a description and the body frames of a dead letter, or 404         ours, `manage` only
    mmi.dlq.drop [id]          200 when removed, or 404                                                ours, `manage` only
    mmi.dlq.retry [id]         the reply to the dead letter's request; 404 without it or its service   ours, `manage` only
                               ERROR BUSY while another retry is open; the dead letter is kept until a retry is answered
    mmi.drain    [name]        refuse new requests, serve waiting ones                                 ours, `manage` only
    mmi.disable  [name]        refuse new and waiting requests                                         ours, `manage` only
    mmi.enable   [name]        accept requests again                                                   ours, `manage` only

`mmi.dlq.retry` needs MDP/0.3, where a reply does not name the service: the dispatcher opens a request to the service instead.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from core.machine.peer_text import decimal
from core.zmtp.frames import decode_frames
from mdp.access.rules import VERBS
from mdp.wire.channels import connection_of, is_channel
from mdp.wire.commands import DIALECTS, printable
from mdp.wire.failover import PAIR_SERVICE
from mdp.wire.lending import LENDING_SERVICE, encode_offer
from mdp.wire.options import DESCRIPTION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mdp.broker.limits import BrokerOptions
    from mdp.broker.requests.dead_letters import DeadLetter, DeadLetters
    from mdp.broker.requests.records import Service, Worker
    from mdp.broker.workers.directory import Directory
    from mdp.wire.failover import PairResponder

PREFIX = b"mmi."
RETRY = b"mmi.dlq.retry"
ALLOWED = b"mmi.allowed"
KEYS = b"mmi.keys"  # answered by the dispatcher: the keys of a user are its own
ACTIONS = frozenset((b"mmi.drain", b"mmi.disable", b"mmi.enable"))
ON_DEAD_LETTERS = frozenset((b"mmi.dlq.show", b"mmi.dlq.drop", RETRY))
REPORTS = frozenset((b"mmi.services", b"mmi.workers", b"mmi.stats", b"mmi.dlq"))

_OK, _MALFORMED, _NOT_FOUND, _NOT_OFFERED = b"200", b"400", b"404", b"501"


class Subject(Protocol):
    """The broker's machine, as MMI reads and changes it."""

    @property
    def options(self) -> BrokerOptions:
        """Limits, and whether the broker can be managed."""
        ...

    @property
    def directory(self) -> Directory: ...

    @property
    def dead_letters(self) -> DeadLetters: ...

    @property
    def pair(self) -> PairResponder | None:
        """Its answers as one of a pair, None without a pair."""
        ...

    def stats(self) -> dict[str, int]: ...

    def set_enabled(self, service: Service, enabled: bool, now: float, *, refuse_waiting: bool = False) -> None: ...


def answer(name: bytes, body: Sequence[bytes], subject: Subject, now: float) -> list[bytes]:
    """Return the body frames of the reply to a request for `name`, which begins with `mmi.`."""
    if name not in _OFFERED:
        return [_NOT_OFFERED]  # MMI-04
    if name == ALLOWED:
        return [_OK if is_question(body) else _MALFORMED]  # without rules everything is allowed
    if len(body) != 1:
        return [_MALFORMED]  # MMI-06
    about = body[0]
    if name == b"mmi.service":
        service = subject.directory.services.get(about)
        return [_OK if service is not None and service.workers else _NOT_FOUND]  # MMI-03
    if name == b"mmi.describe":
        return _describe(subject.directory.services.get(about))
    if name == b"mmi.protocol":
        if about not in _DIALECTS:
            return [_NOT_FOUND]
        return [_OK] if subject.pair is None else subject.pair.greeting
    if name == PAIR_SERVICE:
        return [_NOT_OFFERED] if subject.pair is None else subject.pair.answer(about)
    if name == LENDING_SERVICE:
        return [_OK, *encode_offer(subject.directory.name, subject.directory.capacities(), subject.options.mmi_max_bytes)]
    if name in _MANAGED and not subject.options.manage:
        return [_NOT_OFFERED]
    if name in ACTIONS:
        return [_act(name, about, subject, now)]
    if name in ON_DEAD_LETTERS:
        return _on_dead_letter(name, about, subject, now)
    return _report(name, about, subject, now)


def is_question(body: Sequence[bytes]) -> bool:
    """Return whether a body asks about a user's right: `[verb][user][service]`."""
    return len(body) == 3 and body[0] in _VERBS


def dead_letter_number(about: bytes) -> int:
    """Return the number in a request about a dead letter, -1 if there is none."""
    number = decimal(about, _NUMBER_DIGITS)
    return -1 if number is None else number


_VERBS = {verb.encode() for verb in VERBS}
_DIALECTS = {dialect.encode() for dialect in DIALECTS}
_MANAGED = ACTIONS | ON_DEAD_LETTERS
_OFFERED = {b"mmi.service", b"mmi.describe", b"mmi.protocol", ALLOWED, PAIR_SERVICE, LENDING_SERVICE} | REPORTS | _MANAGED
# Numbers of dead letters are below 2**64.
_NUMBER_DIGITS = 20


def _act(name: bytes, about: bytes, subject: Subject, now: float) -> bytes:
    service = subject.directory.services.get(about)
    if service is None:
        return _NOT_FOUND
    subject.set_enabled(service, name == b"mmi.enable", now, refuse_waiting=name == b"mmi.disable")
    return _OK


def _on_dead_letter(name: bytes, about: bytes, subject: Subject, now: float) -> list[bytes]:
    dead_letter = subject.dead_letters.get(dead_letter_number(about))
    if dead_letter is None or name == RETRY:  # the dispatcher handles a retry that is possible
        return [_NOT_FOUND]
    if name == b"mmi.dlq.drop":
        subject.dead_letters.take(dead_letter.number)
        return [_OK]
    description = json.dumps(_describe_dead_letter(dead_letter, now), separators=(",", ":")).encode()
    return [_OK, description, *decode_frames(dead_letter.body)]


def _report(name: bytes, about: bytes, subject: Subject, now: float) -> list[bytes]:
    limit = subject.options.mmi_max_bytes
    services = subject.directory.services
    if name == b"mmi.workers":
        service = services.get(about)
        if about and service is None:
            return [_NOT_FOUND]
        workers: Iterable[Worker] = subject.directory.workers.values() if service is None else service.workers.values()
        return [_OK, json_list((_describe_worker(worker, now) for worker in workers), limit)]
    if about:
        return [_MALFORMED]
    if name == b"mmi.services":
        return [_OK, json_list((_describe_service(service) for service in services.values()), limit)]
    if name == b"mmi.dlq":
        return [_OK, json_list((_describe_dead_letter(dead_letter, now) for dead_letter in subject.dead_letters), limit)]
    return [_OK, json.dumps(subject.stats(), separators=(",", ":")).encode()]


def _describe(service: Service | None) -> list[bytes]:
    """Return the description of the newest worker that announced one; without any, only the service's name."""
    if service is None or not service.workers:
        return [_NOT_FOUND]
    for worker in reversed(service.workers.values()):
        text = None if worker.metadata is None else worker.metadata.get(DESCRIPTION)
        if isinstance(text, str):
            return [_OK, text.encode(errors="replace")]
    return [_OK, json.dumps({"service": printable(service.name)}, separators=(",", ":")).encode()]


def _describe_service(service: Service) -> dict[str, Any]:
    workers = service.workers.values()
    return {
        "name": printable(service.name),
        "enabled": service.enabled,
        "workers": len(workers),
        "credit": sum(worker.credit for worker in workers),
        "running": sum(len(worker.in_flight) for worker in workers),
        "queued": service.queue.count,
        "queued_bytes": service.queue.size,
        "done": service.done + sum(worker.done for worker in workers),
    }


def _describe_worker(worker: Worker, now: float) -> dict[str, Any]:
    return {
        "id": worker.peer.hex(),
        **({"connection": connection_of(worker.peer).hex()} if is_channel(worker.peer) else {}),
        "service": printable(worker.service.name),
        "dialect": worker.dialect,
        "credit": worker.credit,
        "running": len(worker.in_flight),
        "done": worker.done,
        "silent_ms": max(0, int((now - worker.seen) * 1000)),
        "stuck": worker.stuck,
        "draining": worker.draining if worker.is_v03 else None,
        "version": worker.version,
        "metadata": _others(worker.metadata),
        **({} if worker.user is None else {"user": worker.user}),
    }


def _others(metadata: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return a worker's metadata without the description, which `mmi.describe` returns."""
    if metadata is None or DESCRIPTION not in metadata:
        return metadata
    return {name: value for name, value in metadata.items() if name != DESCRIPTION} or None


def _describe_dead_letter(dead_letter: DeadLetter, now: float) -> dict[str, Any]:
    return {
        "id": dead_letter.number,
        "service": printable(dead_letter.service),
        **({} if dead_letter.user is None else {"user": dead_letter.user}),
        "bytes": len(dead_letter.body),
        "age_ms": max(0, int((now - dead_letter.died_at) * 1000)),
        **({"retried": True} if dead_letter.retried else {}),
        "lost": [{"worker": peer.hex(), "why": why, "age_ms": max(0, int((now - at) * 1000))} for peer, why, at in dead_letter.losses],
    }


def json_list(items: Iterable[Any], limit: int, *, whole: bool = True) -> bytes:
    """Return a JSON array that ends with `null` if it is not whole or would exceed the limit (fault B11)."""
    pieces: list[str] = []
    size = len("[null]")
    for item in items:
        piece = json.dumps(item, separators=(",", ":"), default=_jsonable)
        size += len(piece) + 1
        if size > limit:
            whole = False
            break
        pieces.append(piece)
    if not whole:
        pieces.append("null")
    return f"[{','.join(pieces)}]".encode()


def _jsonable(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else type(value).__name__
