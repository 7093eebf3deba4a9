"""Messages of the name service (NAM, ours): bodies of requests and replies of Freelance model 3. Pure.

    request                                                      reply
    ["GET"]   [environment][name]                                [code][digest][ENTRY…]
    ["WATCH"] [environment][name][digest][wait ms]               the same, once the digest has changed, or after the wait
    ["SET"]   [environment][name][role][ttl ms][endpoint]        ["200"]
    ["DROP"]  [environment][name][role][endpoint]                ["200"] or ["404"]
    ["LIST"]  [environment][after this name]                     ["200"][name…]
    ["STATE"]                                                    ["200"][digest of all]   between servers
    ["DUMP"]  [RECORD, or empty: after this one]                 ["200"][RECORD…]         between servers
    ["MERGE"] [RECORD…]                                          ["200"]                  between servers

code: 200, or 404 if there is no ENTRY. Every request may be answered ["400"][reason] (not valid) or ["507"][reason] (the server is
full).
ENTRY:  `role ttl-ms endpoint`, separated by spaces; role is `bind` or `connect`; ttl 0 is for ever.
RECORD: `number server-id state ttl-ms role environment name endpoint`; state is `+`, or `-` for a withdrawn endpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from core.machine.peer_text import decimal
from freelance.errors import MalformedMessage
from freelance.names.catalog import ENDPOINT_OCTETS_MAX, WORD, Entry, Key, check_key

if TYPE_CHECKING:
    from collections.abc import Sequence

OK: Final = b"200"
BAD: Final = b"400"
NONE: Final = b"404"
FULL: Final = b"507"

NUMBER_MAX: Final = 2**53  # integers up to this are exact in every language
WAIT_MS_MAX: Final = 30_000  # longest wait for a client that may have gone
PAGE: Final = 500  # names or records in one message, which has 1024 frames at most
DIGEST_OCTETS: Final = 32
FIRST: Final = Key("", "", "", "")  # before all other keys


@dataclass(frozen=True, slots=True)
class Get:
    """Ask for the endpoints of a name."""

    environment: str
    name: str


@dataclass(frozen=True, slots=True)
class Watch:
    """Ask for the endpoints of a name as soon as they differ from these."""

    environment: str
    name: str
    digest: bytes
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Put:
    """Add or renew an endpoint for some time."""

    key: Key
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Withdraw an endpoint."""

    key: Key


@dataclass(frozen=True, slots=True)
class List:
    """Ask for the names of an environment."""

    environment: str
    after: str


@dataclass(frozen=True, slots=True)
class State:
    """Ask for the digest of all records."""


@dataclass(frozen=True, slots=True)
class Dump:
    """Ask for the records after a key."""

    after: Key


@dataclass(frozen=True, slots=True)
class Merge:
    """Send records."""

    entries: tuple[Entry, ...]


NameRequest = Get | Watch | Put | Drop | List | State | Dump | Merge


def decode_request(body: Sequence[bytes]) -> NameRequest:
    verb, *frames = body
    match verb, len(frames):
        case b"GET", 2:
            return Get(*_where(frames))
        case b"WATCH", 4:
            if len(frames[2]) > DIGEST_OCTETS:
                raise MalformedMessage("the digest is too long")
            return Watch(*_where(frames), frames[2], _number(frames[3], WAIT_MS_MAX))
        case b"SET", 5:
            return Put(_key(frames[0], frames[1], frames[2], frames[4]), _number(frames[3], NUMBER_MAX))
        case b"DROP", 4:
            return Drop(_key(frames[0], frames[1], frames[2], frames[3]))
        case b"LIST", 2:
            return List(_word(frames[0]), _word(frames[1]) if frames[1] else "")
        case b"STATE", 0:
            return State()
        case b"DUMP", 1:
            return Dump(decode_record(frames[0]).key if frames[0] else FIRST)
        case b"MERGE", count if count <= PAGE:
            return Merge(tuple(map(decode_record, frames)))
    raise MalformedMessage("no such request, or a wrong number of frames")


def encode_entry(entry: Entry) -> bytes:
    return f"{entry.key.role} {entry.ttl_ms} {entry.key.endpoint}".encode()


def decode_entry(octets: bytes) -> tuple[str, int, str]:
    """Return (role, ttl in ms, endpoint)."""
    role, ttl, endpoint = _words(octets, 3)
    key = Key("any", "any", role, endpoint)
    check_key(key)
    return role, _number(ttl.encode(), NUMBER_MAX), endpoint


def encode_record(entry: Entry) -> bytes:
    number, server_id = entry.stamp
    key = entry.key
    words = (number, server_id, "+" if entry.alive else "-", entry.ttl_ms, key.role, key.environment, key.name, key.endpoint)
    return " ".join(map(str, words)).encode()


def decode_record(octets: bytes) -> Entry:
    number, server_id, state, ttl, role, environment, name, endpoint = _words(octets, 8)
    if state not in ("+", "-") or WORD.fullmatch(server_id) is None:
        raise MalformedMessage("no record")
    key = Key(environment, name, role, endpoint)
    check_key(key)
    stamp = (_number(number.encode(), NUMBER_MAX), server_id)
    return Entry(key, stamp, state == "+", _number(ttl.encode(), NUMBER_MAX))


def _words(octets: bytes, count: int) -> list[str]:
    """Split a line into words; the last word may contain spaces."""
    words = _text(octets, ENDPOINT_OCTETS_MAX * 2).split(" ", count - 1)
    if len(words) != count:
        raise MalformedMessage(f"a line of {count} words")
    return words


def _text(octets: bytes, octets_max: int) -> str:
    if len(octets) > octets_max:
        raise MalformedMessage(f"more than {octets_max} bytes")
    try:
        return octets.decode()
    except UnicodeDecodeError:
        raise MalformedMessage("a text that is not UTF-8") from None


def _word(octets: bytes) -> str:
    word = _text(octets, ENDPOINT_OCTETS_MAX)
    if WORD.fullmatch(word) is None:
        raise MalformedMessage("environments and names are 1 to 128 letters, digits and . _ / -")
    return word


def _where(frames: Sequence[bytes]) -> tuple[str, str]:
    return _word(frames[0]), _word(frames[1])


def _key(environment: bytes, name: bytes, role: bytes, endpoint: bytes) -> Key:
    key = Key(*(_text(frame, ENDPOINT_OCTETS_MAX) for frame in (environment, name, role, endpoint)))
    check_key(key)
    return key


def _number(octets: bytes, largest: int) -> int:
    number = decimal(octets)
    if number is None or number > largest:
        raise MalformedMessage(f"a number from 0 to {largest}")
    return number
