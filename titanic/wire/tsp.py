"""Titanic service protocol, TSP (RFC 9): names, codes, UUIDs, and validation of requests.

Carried as bodies of Majordomo requests and replies:

    titanic.request  [service][body...]  ->  [200][uuid] | [400][reason] | [500][reason]
    titanic.reply    [uuid]              ->  [200][reply body...] | [300] | [400] | [500][reason]
    titanic.close    [uuid]              ->  [200] | [500][reason]

Extensions (specs/titanic.md §9): a first frame `01 "TSP" 01` carries a msgpack map of options before the service; `titanic.reply` answers
`01 "TSP?"` with `[200]["options"]`, where a stock store answers 400. `titanic.request` answers it too, for users who may call nothing
else. A UUID is 16 bytes once it is parsed; no client data ever reaches a file name (TSP-03).
"""

from __future__ import annotations

from binascii import Error as HexError
from binascii import hexlify, unhexlify
from collections.abc import Mapping  # noqa: TC003 - compiled: a field names it
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack
from mypy_extensions import mypyc_attr

from core.machine.bounded_msgpack import BadMsgpack, unpack
from core.zmtp.frames import LAST_HEADERS, encode_frame, encode_message, long_header
from mdp.wire.commands import is_service_name
from mdp.wire.options import HEADERS_BYTES_MAX, HEADERS_MAX, KEY_BYTES_MAX, checked_headers
from titanic.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    # Called once with the frames of a reply, at once or later.
    Done: TypeAlias = Callable[[list[bytes]], None]

REQUEST: Final = b"titanic.request"
REPLY: Final = b"titanic.reply"
CLOSE: Final = b"titanic.close"
WAIT: Final = b"titanic.wait"  # these three are ours
LOOK: Final = b"titanic.look"
BATCH: Final = b"titanic.batch"

OK: Final = b"200"
PENDING: Final = b"300"
BAD: Final = b"400"
FAILED: Final = b"500"
_STATUS: Final = {OK: 200, PENDING: 300, BAD: 400, FAILED: 500}

OPTIONS_MARK: Final = b"\x01TSP\x01"
# Sent to titanic.reply in place of a UUID: asks for the store's extensions. A stock store knows no such request, and answers 400. Sent to
# titanic.request it is a body of one frame, which is no request; a stock store may store it nevertheless.
EXTENSIONS: Final = b"\x01TSP?"
EXTENSIONS_KNOWN: Final = (b"options", b"headers")  # in the order in which they were added
OPTIONS_BYTES_MAX: Final = 8192  # as MDP/0.3 allows; headers need most of it
WAIT_MS_MAX: Final = 60_000  # of one titanic.wait: how long a waiting client that went away is kept
DELAY_MS_MAX: Final = 10 * 366 * 86_400_000  # ten years; sums stay below 2**63
ATTEMPTS_MAX: Final = 65_535  # two bytes in the record
KNOWN_MAX: Final = 4096  # names cached; more than any broker has services, and bounded against invented names
_RESERVED: Final = (b"titanic.", b"mmi.")


# As a compiled module keeps one object of it: see `titanic.journal.record.Location`.
Name = tuple[bytes, ...]
"""A service name, and its frame as stored."""


class Options(NamedTuple):
    """Options of a stored request."""

    key: bytes = b""  # idempotency key, b"" for none (IDM-01: unique per request, stable over retries and restarts)
    delay_ms: int = 0  # time from acceptance before it is given to a worker
    ttl_ms: int = 0  # time from acceptance after which it expires; 0 for never
    attempts: int = 0  # maximum attempts; 0 for the default of the store
    headers: Mapping[str, str] = MappingProxyType({})  # small texts for the handler


@mypyc_attr(acyclic=True, free_list_len=1)
class Submission:
    """Valid request: `frames` is `[service][body...]` encoded as on disk, `body` is `[body...]` for the worker."""

    # Hot path: one per request, and no named tuple, whose making and reading cost a tenth of an acceptance.
    __slots__ = ("body", "digest", "frames", "options", "service")

    def __init__(self, service: bytes, frames: bytes, options: Options, digest: bytes, body: list[bytes]) -> None:
        self.service = service
        self.frames = frames
        self.options = options
        self.digest = digest
        self.body = body


NO_OPTIONS: Final = Options()


def is_question(frames: Sequence[bytes]) -> bool:
    """Return whether a body asks for the store's extensions."""
    return len(frames) == 1 and frames[0] == EXTENSIONS


def parse_uuid(frame: bytes, hyphens: bool = False) -> bytes | None:
    """Return the 16 bytes of a UUID frame of 32 hexadecimal characters, or None if it is malformed (TSP-02, TSP-03).

    `hyphens` also accepts the form of 36 characters that the Java example sends (DIS-47).
    """
    if hyphens and len(frame) == 36 and frame[8:9] == frame[13:14] == frame[18:19] == frame[23:24] == b"-":
        frame = frame.replace(b"-", b"")
    if len(frame) != 32:
        return None
    try:
        return unhexlify(frame)
    except (HexError, ValueError):
        return None


def format_uuid(uuid: bytes) -> bytes:
    """Return the 32 upper-case hexadecimal characters of a UUID (TSP-02)."""
    return hexlify(uuid).upper()


def parse_status(frame: bytes) -> int | None:
    """Return 200, 300, 400 or 500 from a status frame, None for anything else (TSP-04, TSP-05).

    Only the first three characters count; more text must follow a space.
    """
    if len(frame) > 3 and frame[3:4] != b" ":
        return None
    return _STATUS.get(frame[:3])


def encode_options(options: Options) -> list[bytes]:
    """Return the frames to put before `[service][body...]`; none for default options."""
    asked = {name: value for name, value in options._asdict().items() if value}  # a default is no plain map, and is left out
    return [OPTIONS_MARK, msgpack.packb(asked)] if asked else []


def parse_request(frames: Sequence[bytes], known: dict[bytes, Name] | None = None) -> Submission:
    """Check the body `[service][body...]` or `[01 TSP 01][options][service][body...]` of a `titanic.request`.

    `known` is a cache of valid names, filled here, and bounded. Raises BadRequest: fewer than two frames (TSP-07), an invalid or reserved
    service name (TSP-19), invalid options.
    """
    # Hot path: once per request; a list and its slices cost compiled code a third of those of a sequence.
    given: list[bytes] = frames if isinstance(frames, list) else list(frames)
    options = NO_OPTIONS
    if len(given) > 1 and given[0] == OPTIONS_MARK:
        options = _parse_options(given[1])
        given = given[2:]
    if len(given) < 2:
        raise BadRequest("a request is a service and at least one body frame")
    name = given[0]
    found = known.get(name) if known is not None else None
    if found is None:
        found = check_service(name, known)
    body = given[1:]
    if len(body) == 1:
        last: bytes = body[0]
        size = len(last)
        encoded = b"%b%b%b" % (found[1], LAST_HEADERS[size] if size < 256 else long_header(size), last)
    else:
        encoded = found[1] + encode_message(body)
    return Submission(found[0], encoded, options, digest_of(encoded) if options is not NO_OPTIONS and options.key else b"", body)


def check_service(name: bytes, known: dict[bytes, Name] | None = None) -> Name:
    """Return a service name and its frame as stored; raises BadRequest."""
    if not is_service_name(name):
        raise BadRequest("a service name is 1 to 255 bytes of printable text")
    if name.startswith(_RESERVED):
        raise BadRequest("requests for titanic.* and mmi.* are not stored")
    service = bytes(name)
    found = (service, encode_frame(service, more=True))
    if known is not None:
        if len(known) >= KNOWN_MAX:
            known.clear()
        known[service] = found  # one object for all requests of a service
    return found


def digest_of(frames: bytes) -> bytes:
    """Return the digest that tells requests with the same key apart (IDM-05), from the encoded frames."""
    return blake2b(frames, digest_size=16).digest()


def _parse_options(frame: bytes) -> Options:
    """Decode the options map; anything unknown or out of range is refused."""
    if len(frame) > OPTIONS_BYTES_MAX:
        raise BadRequest(f"options of {len(frame)} bytes, at most {OPTIONS_BYTES_MAX}")
    try:
        asked: Any = unpack(frame, max_map_len=HEADERS_MAX, max_array_len=0, max_str_len=HEADERS_BYTES_MAX, containers_max=2)
    except BadMsgpack as error:
        raise BadRequest("options are not a msgpack map") from error
    if not isinstance(asked, dict) or not asked.keys() <= set(Options._fields):
        raise BadRequest("options take key, delay_ms, ttl_ms, attempts and headers")
    key = asked.get("key", b"")
    if not isinstance(key, bytes) or len(key) > KEY_BYTES_MAX:
        raise BadRequest(f"a key is 1 to {KEY_BYTES_MAX} bytes")
    numbers = [asked.get(name, 0) for name in ("delay_ms", "ttl_ms", "attempts")]
    for value, most in zip(numbers, (DELAY_MS_MAX, DELAY_MS_MAX, ATTEMPTS_MAX), strict=True):
        if type(value) is not int or not 0 <= value <= most:
            raise BadRequest("delay_ms, ttl_ms and attempts are whole numbers, not negative")
    delay_ms, ttl_ms, attempts = numbers
    return Options(key, delay_ms, ttl_ms, attempts, _headers_of(asked.get("headers", {})))


def _headers_of(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise BadRequest("headers are a map of text to text")
    try:
        return checked_headers(value)
    except (TypeError, ValueError) as error:
        raise BadRequest(str(error)) from None


def pack_headers(headers: Mapping[str, str]) -> bytes:
    """Return headers as they are stored, b"" for none."""
    return msgpack.packb(dict(headers)) if headers else b""


def unpack_headers(octets: bytes) -> dict[str, str]:
    """Return stored headers; raises ValueError if a newer or faulty program has written them."""
    if not octets:
        return {}
    try:
        return _headers_of(unpack(octets, max_map_len=HEADERS_MAX, max_array_len=0, max_str_len=HEADERS_BYTES_MAX, containers_max=1))
    except (BadMsgpack, BadRequest) as error:
        raise ValueError(f"headers of a REQUEST: {error}") from None
