"""One request of a client, the options of requests, and what requests to one service have in common.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping  # noqa: TC003 - compiled: fields name it
from dataclasses import dataclass, fields, replace
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict

from core.errors import LocalProtocolError
from core.machine import requests
from core.machine.requests import FRESH
from core.machine.value_copies import check_counts, check_positive
from core.zmtp.frames import MORE_HEADERS, encode_prefix
from mdp.wire.commands import EMPTY, MDPC01, is_service_name
from mdp.wire.options import DEADLINE_MS_MAX, KEY_ALONE, KEY_BYTES_MAX, OPTIONS_BYTES_MAX, checked_headers, encode_options
from mdp.wire.policies import PRIORITIES
from mdp.wire.progress import Progress  # noqa: TC001 - compiled: fields name it

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Sequence


TIMEOUT_S_MIN: Final = 0.001
_DEADLINE_BYTES: Final = 32  # what the deadline adds to the options when they are sent
# By length of a key that is the only option of a short frame: the bytes before it, which are frame header, map and length.
_KEY_HEADS: Final = [MORE_HEADERS[len(KEY_ALONE) + 1 + size] + KEY_ALONE + bytes((size,)) for size in range(255 - len(KEY_ALONE))]


Priority: TypeAlias = Literal["high", "normal", "low"]


class MapOptions(TypedDict, total=False):
    """Options of many requests, as keyword arguments: see `mdp.Client.map`. None and what is left out are the client's."""

    timeout: float | None
    attempts: int | None
    deadline: float | None
    once: bool | None
    wait: bool | None
    trace: Mapping[str, Any] | None
    headers: Mapping[str, str] | None
    priority: Priority | None


class CallOptions(MapOptions, total=False):
    """Options of one request, as keyword arguments or as a dictionary: see `mdp.Client.request`."""

    key: str | bytes | None
    progress: Callable[[Progress], object] | None


# Compiled, the class above does not have the names of its base.
CALL_OPTIONS: Final = ("timeout", "attempts", "deadline", "once", "wait", "trace", "headers", "priority", "key", "progress")


@dataclass(frozen=True, slots=True)
class CallDefaults:
    """Options of requests that do not set them: those of a client, or of `mdp.Client.with_options`."""

    timeout: float  # seconds one attempt may take
    attempts: int
    key: Any = None  # text or bytes-like; `Call` refuses what is neither
    deadline: float | None = None  # seconds all attempts together may take
    once: bool = False
    wait: bool = False
    trace: Mapping[str, Any] | None = None
    headers: Mapping[str, str] | None = None  # of each request, which may add some and replace some
    priority: Any = "normal"  # a `Priority`; `Call` refuses what is none, also where it is no text
    progress: Callable[[Progress], object] | None = None

    def __post_init__(self) -> None:
        given: Any = self  # explicitly, and not by the annotations: once a request with options
        check_positive(inf, timeout=given.timeout, deadline=given.deadline)
        check_counts(attempts=given.attempts)
        if not isinstance(given.once, bool) or not isinstance(given.wait, bool):
            raise TypeError(f"once is {given.once!r}, wait {given.wait!r}: these are bool")

    def merged(self, options: CallOptions) -> CallDefaults:
        """Return these defaults with the options that are set."""
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        if self.headers and "headers" in given:
            given["headers"] = {**self.headers, **given["headers"]}
        try:
            return replace(self, **given)
        except TypeError as error:
            known = [one.name for one in fields(self)]
            wrong = [option for option in given if option not in known]
            if not wrong and any(option in str(error) for option in given):
                raise
            if not wrong:  # of a compiled class, which does not say which
                raise TypeError(f"{', '.join(given)}: {error}") from None
            from core.daemon.config import suggestion  # late: only for a mistake

            advice = suggestion(wrong[0], known, f"there are {', '.join(known)}")
            raise TypeError(f"a request has no option {wrong[0]}; {advice}") from None

    def merged_for_many(self, options: MapOptions) -> CallDefaults:
        """Return these defaults with the options that are set, and without those of one request: key and progress."""
        for name in ("key", "progress"):
            if name in options:
                raise TypeError(f"a {name} is of one request, not of many")
        return replace(self.merged(options), key=None, progress=None)  # type: ignore[arg-type]  # CallOptions without its key

    @property
    def key_of(self) -> Callable[[int], str | bytes] | None:
        """Return the key of one of many requests: the common key, "-" and its index; None without a common key."""
        key = self.key
        if key is None:
            return None
        return lambda index: f"{key}-{index}" if isinstance(key, str) else bytes(key) + b"-%d" % index

    def call(self, service: Any, *, streaming: bool = False, user: str | None = None) -> Call:
        """Return a call with these options; raises LocalProtocolError, TypeError, ValueError: as `Call`."""
        return Call(
            service,
            timeout_s=self.timeout,
            attempts=self.attempts,
            deadline_s=self.deadline,
            once=self.once,
            key=self.key,
            wait=self.wait,
            trace=self.trace,
            headers=self.headers,
            priority=self.priority,
            progress=self.progress,
            streaming=streaming,
            user=user,
        )


class Call:
    """Service and options of a request; made once, used for any number of requests.

    Args:
        service: name of the service, `bytes` or text, which is encoded as UTF-8; another type is reported by name.
        timeout_s: seconds one attempt may take.
        attempts: how many attempts there are, 1 or more.
        deadline_s: seconds all attempts together may take, None for no limit; sent to broker and worker (MDP/0.3).
        once: execute at most once: never send again, not even over a new connection, never give to a second worker.
        key: idempotency key of 1 to 255 bytes, text is encoded as UTF-8; None for none (MDP/0.3).
        wait: let the broker queue the request when the service has no worker, instead of NO_SERVICE (MDP/0.3; always so in
            MDP/0.1).
        trace: trace context, passed through to the worker (MDP/0.3).
        headers: texts by name, for the handler (MDP/0.3; a broker of an older dialect is not sent the request).
        priority: "high", "normal" or "low": which of the waiting requests the broker gives first (MDP/0.3).
        progress: called with each `Progress` that the handler reports; it asks for these (MDP/0.3).
        streaming: parts of the reply are taken one by one instead of joined.
        user: on whose behalf, None for the client's own (MDP/0.3; the broker accepts it from clients that may pass users on).

    Raises:
        LocalProtocolError: the service name is not 1 to 255 bytes of printable text.
        TypeError: the headers are not a map of text to text.
        ValueError: a number is out of range, or options or headers are beyond their limits.
    """

    __slots__ = (
        "_plain", "attempts", "deadline_s", "fields", "headers", "name", "once", "prefix", "prefix_01", "progress", "service", "streaming",
        "timeout_s",
    )  # fmt: skip

    def __init__(
        self,
        service: Any,
        *,
        timeout_s: float,
        attempts: int,
        deadline_s: float | None = None,
        once: bool = False,
        key: Any = None,
        wait: bool = False,
        trace: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        priority: Any = "normal",
        progress: Callable[[Progress], object] | None = None,
        streaming: bool = False,
        user: str | None = None,
    ) -> None:
        self.service = _octets("service name", service)
        if not is_service_name(self.service):
            raise LocalProtocolError(f"service name {self.service[:300]!r} is not 1 to 255 bytes of printable text")
        if not timeout_s > 0 or attempts < 1:
            raise ValueError(f"timeout of {timeout_s} s with {attempts} attempts: both must be positive")
        if deadline_s is not None and not 0 < deadline_s * 1000 <= DEADLINE_MS_MAX:
            raise ValueError(f"deadline of {deadline_s} s is not within a day from now")
        self.name: str = self.service.decode()
        self.timeout_s: float = max(TIMEOUT_S_MIN, timeout_s)
        self.attempts: int = 1 if once else attempts
        self.deadline_s: float | None = deadline_s
        self.once: bool = once
        self.streaming: bool = streaming
        if priority not in PRIORITIES:
            raise ValueError(f"priority {priority!r} is none of {', '.join(PRIORITIES)}")
        self.headers: bool = bool(headers)
        self.progress: Callable[[Progress], object] | None = progress
        # Entries of the options frame, without the deadline, which changes with each sending.
        self.fields: dict[str, Any] = {"once": once, "wait": wait, "key": None if key is None else _key(key), "trace": trace, "user": user}
        if headers:
            self.fields["headers"] = checked_headers(headers)
        if priority != "normal":
            self.fields["priority"] = priority
        if progress is not None:
            self.fields["progress"] = True
        options = encode_options(self.fields)
        if len(options) > OPTIONS_BYTES_MAX - _DEADLINE_BYTES:
            raise ValueError(f"options of {len(options)} bytes, a broker takes {OPTIONS_BYTES_MAX}")
        # The two frames between command and body, encoded.
        self.prefix: bytes = encode_prefix([self.service, options])
        # The frame with the name, where a key is the only option or would be.
        self._plain: bytes = (
            b""
            if once or wait or headers or priority != "normal" or trace is not None or user is not None or progress is not None
            else encode_prefix([self.service])
        )
        self.prefix_01: bytes = encode_prefix([EMPTY, MDPC01, self.service])  # first frames of a request, and of a reply, in MDP/0.1

    def with_key(self, key: Any) -> Call:
        """Return the same call with an idempotency key; raises ValueError: the key is not 1 to 255 bytes."""
        return _KeyedCall(self, _key(key))

    def prefix_at(self, left_s: float) -> bytes:
        """Return the encoded frames between command and body, with the time left until the deadline."""
        deadline_ms = max(1, min(DEADLINE_MS_MAX, int(left_s * 1000)))
        return encode_prefix([self.service, encode_options({**self.fields, "deadline_ms": deadline_ms})])


class _KeyedCall(Call):
    """A call like another one, with an idempotency key of its own."""

    __slots__ = ()

    def __init__(self, like: Call, key: bytes) -> None:
        # Data pipelines give each request its own key; this takes a tenth of the time of the base's `__init__`.
        self.service, self.name, self.timeout_s, self.attempts = like.service, like.name, like.timeout_s, like.attempts
        self.deadline_s, self.once, self.streaming, self.headers = like.deadline_s, like.once, like.streaming, like.headers
        self.prefix_01, self.progress = like.prefix_01, like.progress
        self._plain = plain = like._plain
        self.fields = {**like.fields, "key": key}
        if plain and len(key) < len(_KEY_HEADS):
            self.prefix = b"".join((plain, _KEY_HEADS[len(key)], key))
        else:
            self.prefix = encode_prefix([self.service, encode_options(self.fields)])


class PendingRequest(requests.PendingRequest):
    """One request of MDP."""

    __slots__ = ("attempt", "call", "connection", "expected", "held", "id", "parts", "parts_bytes")

    parts_bytes: int  # set with the first of the parts
    id: bytes  # set when it is first sent in MDP/0.3; kept when the dialect changes

    def __init__(self, call: Call, body: Sequence[bytes]) -> None:
        # Hot path: the attributes of the base, which alone annotates them, are set here without its `__init__`.
        self.call = call
        self.body = body
        self.caller = None
        self.stage = FRESH
        self.attempt: int = 1
        self.sent = 0
        self.connection: int = 0  # that it was last sent on, in MDP/0.1 and 0.2; 0 for none
        self.expected: bytes = b""  # command frame of the FINAL that answers it, empty without an id
        self.reply = None
        self.error = None
        self.held: str = ""  # what the broker has said to keep it waiting
        self.parts: deque[list[bytes]] | None = None  # PARTIALs not taken yet

    def notify(self) -> None:
        """Notify the caller that the request is settled, or that there are parts to take; see subclasses."""

    def moved(self, engine: Any) -> None:
        """Be withdrawn from another engine, which has taken the request over; see subclasses."""


def body_frames(frames: Sequence[Any]) -> tuple[bytes, ...]:
    """Return body frames as `bytes`; other buffers are copied. Raises TypeError: a frame is not a buffer."""
    # Hot path: once per request of several frames. A tuple of classes is made once, `bytes | bytearray` a new object at each use.
    copied = False
    for frame in frames:
        if type(frame) is not bytes:
            if not isinstance(frame, (bytes, bytearray, memoryview)):
                raise TypeError(f"a body frame is {type(frame).__name__}, it must be bytes")
            copied = True
    return tuple([bytes(frame) for frame in frames]) if copied else tuple(frames)


def _octets(what: str, given: Any) -> bytes:
    if isinstance(given, str):
        return given.encode()
    if not isinstance(given, (bytes, bytearray, memoryview)):  # `bytes` makes zeros of a number
        raise TypeError(f"{what} is {type(given).__name__}, it must be text or bytes")
    return bytes(given)


def _key(key: Any) -> bytes:
    octets = _octets("key", key)
    if not 0 < len(octets) <= KEY_BYTES_MAX:
        raise ValueError(f"key of {len(octets)} bytes is not 1 to {KEY_BYTES_MAX} bytes")
    return octets
