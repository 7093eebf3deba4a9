"""The msgpack maps of MDP/0.3: options of a request and of a worker's READY.

Pure. Maps of peers are decoded with limits on size and number of entries and without extension types, so that no map makes us allocate more
than its size or build arbitrary objects. Unknown keys are skipped: a later draft may add some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping  # noqa: TC003 - compiled: fields name it
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgpack
from mypy_extensions import mypyc_attr

from core.machine.bounded_msgpack import BadMsgpack, unpack
from mdp.wire.commands import printable
from mdp.wire.policies import PRIORITIES, Rate, Retry

T = TypeVar("T")

# A trace context and a key take 200 bytes; 8 KiB is the limit of ZMTP metadata.
OPTIONS_BYTES_MAX: Final = 8192
# Entries of one map or array, and maps and arrays in one map; ours have at most ten, but 32 headers and 64 brokers that were passed.
_ENTRIES_MAX: Final = 64
# Entries of all maps and arrays together: more would cost a broker ten times as much as usual options of that size.
_ALL_ENTRIES_MAX: Final = 192
# What a broker adds to the options of a client: user, owner, deadline_ms, delivery, reports. With these they may be larger.
_ADDED_ENTRIES_MAX: Final = 5
_ADDED_BYTES_MAX: Final = 512
# Entry of a worker's metadata: the description of its service, JSON text; see `mdp.typed.descriptions`.
DESCRIPTION: Final = "mdp-description"
# Requests that may be in flight at one worker.
CREDIT_MAX: Final = 65535
# A request that may wait longer than a day belongs to Titanic.
DEADLINE_MS_MAX: Final = 86_400_000
# Less than one heartbeat a day does not show whether a worker is alive.
HEARTBEAT_MS_MAX: Final = 86_400_000
# An idempotency key: more than a UUID or a hash needs.
KEY_BYTES_MAX: Final = 255
# The name of a user: the limit of PLAIN.
USER_BYTES_MAX: Final = 255
# First bytes of options with a key only; its length, one byte, and the key follow. The usual options of data pipelines.
KEY_ALONE: Final = msgpack.packb({"key": b""})[:-1]
_KEY_AT: Final = len(KEY_ALONE) + 1
# The digest of whose key it is, made by the broker.
OWNER_BYTES: Final = 16
# Headers of one request: as many as a request of HTTP usually has; one with a trace, a tenant and a locale has four.
HEADERS_MAX: Final = 32
# Bytes of their names and values together: half of the options, which leaves place for a key and a trace context.
HEADERS_BYTES_MAX: Final = 4096
# A worker's version as shown by `mmi.workers`.
_VERSION_CHARS_MAX: Final = 64


@mypyc_attr(native_class=False)
class BadOptions(ValueError):
    """The peer's options are invalid; `field` names the entry, empty when the whole map is wrong."""

    def __init__(self, text: str, field: str = "") -> None:
        super().__init__(text)
        self.field = field


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options of a REQUEST."""

    deadline_ms: int | None = None  # time left until the deadline; None for no deadline
    key: bytes | None = None  # idempotency key, None for none
    once: bool = False  # execute at most once: do not give the request to a second worker
    wait: bool = False  # queue the request when the service has no worker, instead of answering NO_SERVICE
    delivery: int = 1  # number of this delivery of the request, 1 for the first; set by the broker
    trace: Mapping[str, Any] | None = None  # trace context, passed through
    # name of the client in the broker's authenticator, "" for a client without a name; set by the broker, for workers that may see it. A
    # client's own entry is accepted only if it may pass users on.
    user: str | None = None
    headers: Mapping[str, str] | None = None  # small texts by name, for the handler, passed through
    priority: int = 0  # 1 for high, 0 for normal, -1 for low: which of the waiting requests are given first
    # whose key it is: `OWNER_BYTES` octets that say nothing else of the user, None where all clients are one; set by the broker
    owner: bytes | None = None
    progress: bool = False  # the client wants to know how far it is
    reports: bool = False  # the broker passes PROGRESS on; set by the broker


@dataclass(frozen=True, slots=True)
class ReadyOptions:
    """Options of a READY."""

    credit: int = 1  # requests in flight that the worker accepts
    version: str = ""  # of the worker's program, for people
    metadata: Mapping[str, Any] | None = None  # any map, for people, passed to `mmi.workers`
    heartbeat_ms: int | None = None  # heartbeat interval of the worker, None if left out
    # how many of them it processes at the same time; a worker that sends it knows PING and RECALL. None if left out.
    concurrency: int | None = None
    rate: Rate | None = None  # how many requests of the service are given to its workers, None if left out
    retry: Retry | None = None  # how often requests are executed again, None if left out


NO_REQUEST_OPTIONS: Final = RequestOptions()


def encode_options(options: Mapping[str, Any]) -> bytes:
    """Return an options frame; entries that are None or False are left out, an empty map is the empty frame."""
    entries = {name: value for name, value in options.items() if value is not None and value is not False}
    return b"" if not entries else bytes(msgpack.packb(entries))


def is_key_alone(octets: bytes) -> bool:
    """Return whether options are a key only, as `encode_options` writes it; these need no validation."""
    return octets.startswith(KEY_ALONE) and len(octets) > _KEY_AT and octets[_KEY_AT - 1] == len(octets) - _KEY_AT


def decode_request_options(octets: bytes, *, amended: bool = False) -> RequestOptions:
    """Return the options of a REQUEST.

    Args:
        octets: the options frame.
        amended: a broker may have added its entries, so that the limits are larger.

    Raises:
        BadOptions: not a map with string keys, too large, or an entry has the wrong type or range.
    """
    known = _KNOWN.get(octets)
    if known is not None:
        return known
    entries = _decode_map(octets, amended)
    return RequestOptions(
        deadline_ms=_integer(entries, "deadline_ms", 0, DEADLINE_MS_MAX),
        key=_key(entries),
        once=_flag(entries, "once"),
        wait=_flag(entries, "wait"),
        delivery=_integer(entries, "delivery", 1, 2**31 - 1) or 1,
        trace=_map(entries, "trace"),
        user=_user(entries),
        headers=_headers(entries),
        priority=_priority(entries),
        owner=_owner(entries),
        progress=_flag(entries, "progress"),
        reports=_flag(entries, "reports"),
    )


# Hot path: the most frequent options are not decoded each time; `wait` is used by Titanic's clients.
_KNOWN: Final = {b"": NO_REQUEST_OPTIONS, encode_options({"wait": True}): RequestOptions(wait=True)}


def decode_ready_options(octets: bytes) -> ReadyOptions:
    """Return the options of a READY; raises BadOptions: as for `decode_request_options`."""
    if not octets:
        return ReadyOptions()
    entries = _decode_map(octets)
    version = entries.get("version", "")
    if not isinstance(version, str) or len(version) > _VERSION_CHARS_MAX:
        raise BadOptions(f"version is not a text of up to {_VERSION_CHARS_MAX} characters", "version")
    return ReadyOptions(
        credit=_integer(entries, "credit", 1, CREDIT_MAX) or 1,
        version=printable(version.encode(errors="replace")),
        metadata=_map(entries, "metadata"),
        heartbeat_ms=_integer(entries, "heartbeat_ms", 1, HEARTBEAT_MS_MAX),
        concurrency=_integer(entries, "concurrency", 1, CREDIT_MAX),
        rate=_policy(entries, "rate", Rate.of),
        retry=_policy(entries, "retry", Retry.of),
    )


def decode_heartbeat_options(octets: bytes) -> tuple[bool, bool]:
    """Return whether a HEARTBEAT says that the worker is stuck, and that it drains; raises BadOptions: as for `decode_request_options`."""
    entries = _decode_map(octets)
    return _flag(entries, "stuck"), _flag(entries, "draining")


def amend_options(octets: bytes, *, deadline_ms: int | None, delivery: int, user: str | None = None) -> bytes:
    """Return valid request options with the changes of the broker; unknown entries stay."""
    entries = _decode_map(octets, amended=True) if octets else {}
    if deadline_ms is not None:
        entries["deadline_ms"] = deadline_ms
    if delivery > 1:
        entries["delivery"] = delivery
    if user is not None:
        entries["user"] = user
    return encode_options(entries)


def drop_broker_entries(octets: bytes) -> bytes:
    """Return valid request options with the entries that only a broker sets as this broker sets them."""
    entries = _decode_map(octets)
    entries.pop("user", None)
    entries.pop("owner", None)
    entries["reports"] = entries.get("progress", False)
    return encode_options(entries)


def tell_owner(octets: bytes, owner: bytes) -> bytes:
    """Return valid request options with whose key it is."""
    return encode_options({**_decode_map(octets), "owner": owner})


def _decode_map(octets: bytes, amended: bool = False) -> dict[str, Any]:
    bytes_max = OPTIONS_BYTES_MAX + _ADDED_BYTES_MAX if amended else OPTIONS_BYTES_MAX
    entries_max = _ENTRIES_MAX + _ADDED_ENTRIES_MAX if amended else _ENTRIES_MAX
    if len(octets) > bytes_max:
        raise BadOptions(f"options of {len(octets)} bytes, the limit is {bytes_max}")
    try:
        entries = unpack(
            octets,
            max_map_len=entries_max,
            max_array_len=entries_max,
            containers_max=entries_max,
            entries_max=_ALL_ENTRIES_MAX,
        )
    except BadMsgpack as error:
        raise BadOptions("options are not msgpack within the limits") from error
    if not isinstance(entries, dict):
        raise BadOptions("options are not a map")
    return entries


def _integer(entries: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    value = entries.get(name)
    if value is None:
        return None
    if type(value) is not int or not least <= value <= most:
        raise BadOptions(f"{name} is not an integer of {least} to {most}", name)
    return value


def _flag(entries: Mapping[str, Any], name: str) -> bool:
    value = entries.get(name, False)
    if not isinstance(value, bool):
        raise BadOptions(f"{name} is neither true nor false", name)
    return value


def _key(entries: Mapping[str, Any]) -> bytes | None:
    key = entries.get("key")
    if key is None:
        return None
    if not isinstance(key, bytes) or not 0 < len(key) <= KEY_BYTES_MAX:
        raise BadOptions(f"key is not binary of 1 to {KEY_BYTES_MAX} bytes", "key")
    return key


def _user(entries: Mapping[str, Any]) -> str | None:
    user = entries.get("user")
    if user is not None and (not isinstance(user, str) or len(user.encode(errors="replace")) > USER_BYTES_MAX):
        raise BadOptions(f"user is not a text of up to {USER_BYTES_MAX} bytes", "user")
    return user


def _owner(entries: Mapping[str, Any]) -> bytes | None:
    owner = entries.get("owner")
    if owner is not None and (not isinstance(owner, bytes) or len(owner) != OWNER_BYTES):
        raise BadOptions(f"owner is not binary of {OWNER_BYTES} bytes", "owner")
    return owner


def _priority(entries: Mapping[str, Any]) -> int:
    name = entries.get("priority", "normal")
    found = PRIORITIES.get(name) if isinstance(name, str) else None
    if found is None:
        raise BadOptions(f"priority is none of {', '.join(PRIORITIES)}", "priority")
    return found


def _policy(entries: Mapping[str, Any], name: str, of: Callable[[Mapping[str, Any]], T]) -> T | None:
    value = _map(entries, name)
    try:
        return None if value is None else of(value)
    except ValueError as error:
        raise BadOptions(str(error), name) from None


def _headers(entries: Mapping[str, Any]) -> Mapping[str, str] | None:
    value = _map(entries, "headers")
    try:
        return None if value is None else checked_headers(value)
    except (TypeError, ValueError) as error:
        raise BadOptions(str(error), "headers") from None


def checked_headers(headers: Mapping[Any, Any]) -> dict[str, str]:
    """Return headers that are within the limits, as a new map; raises TypeError or ValueError."""
    found = dict[str, str]()
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError("headers are not a map of text to text")
        if not name:
            raise ValueError("headers have an empty name")
        size += len(name.encode()) + len(value.encode())
        found[name] = value
    if len(found) > HEADERS_MAX:
        raise ValueError(f"headers: {len(found)}, the limit is {HEADERS_MAX}")
    if size > HEADERS_BYTES_MAX:
        raise ValueError(f"headers of {size} bytes, the limit is {HEADERS_BYTES_MAX}")
    return found


def _map(entries: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    value = entries.get(name)
    if value is not None and not isinstance(value, dict):
        raise BadOptions(f"{name} is not a map", name)
    return value
