"""Exceptions of stores and stored requests."""

from __future__ import annotations

from typing import ClassVar

from core.machine.value_copies import KeepsFields


class TitanicError(KeepsFields, Exception):
    """Base of everything this package raises on purpose."""


class BadRequest(TitanicError):
    """The caller's request cannot be stored as it is (TSP code 400)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class OptionsNotSupported(BadRequest):
    """The store implements RFC 9 only and accepts no options.

    Attributes:
        options: names of the requested options.
    """

    def __init__(self, options: tuple[str, ...]) -> None:
        super().__init__(f"the store knows RFC 9 only and takes no {', '.join(options)}")
        self.options = options


class KeyConflict(BadRequest):
    """The idempotency key was used before with another service or body (IDM-05)."""

    def __init__(self, uuid: bytes) -> None:
        super().__init__(f"key was used for another request, {uuid.hex().upper()}")
        self.uuid = uuid


class Forbidden(BadRequest):
    """The rules of the broker do not allow this user to call the service; nothing was stored (TSP code 400)."""


class UnknownRequest(TitanicError):
    """No request with this UUID: never stored, closed, or not a UUID at all (TSP code 400)."""

    def __init__(self, uuid: str) -> None:
        super().__init__(f"no request {uuid}: it was never stored here, or was closed")
        self.uuid = uuid


class Unavailable(TitanicError):
    """The store could not do it now; the same call may succeed later (TSP code 500)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StoreFull(Unavailable):
    """A limit of the store is reached, or the disk, open files or memory are short for a while.

    Attributes:
        limit: `requests_max`, `bytes_max`, `service_requests_max`, `user_share of …`, or `disk`, `disk is read-only`,
            `open files`, `memory`.
        used, most: present value and limit (0 if unknown).
        needed: by a batch, of which all fits or nothing is stored; 0 for a single request.
    """

    def __init__(self, limit: str, used: int = 0, most: int = 0, needed: int = 0) -> None:
        more = f", and a batch needs {needed} more" if needed else ""
        super().__init__(f"store is full: {limit} ({used} of {most} in use{more})" if most else f"store is full: {limit}")
        self.limit = limit
        self.used = used
        self.most = most
        self.needed = needed


class Wounded(Unavailable):
    """The disk failed, also when the store continued in a new file; nothing is accepted until a restart."""

    BEGINS = "store is wounded: "
    ENDS = "; it takes nothing until it is started again"

    def __init__(self, cause: str) -> None:
        super().__init__(f"{self.BEGINS}{cause}{self.ENDS}")
        self.cause = cause


class MirrorAway(Unavailable):
    """The mirror is away, and the store acknowledges nothing without it."""


class Pending(TitanicError, TimeoutError):
    """No reply within the timeout; the request stays stored.

    Attributes:
        uuid: of the request.
        after_s: seconds waited.
    """

    def __init__(self, uuid: str, after_s: float) -> None:
        super().__init__(f"request {uuid} has no reply after {after_s:.1f} s; it stays stored, and can be asked for again")
        self.uuid = uuid
        self.after_s = after_s


class DeadLettered(TitanicError):
    """The request was dead-lettered: it has failed finally."""

    def __init__(self, uuid: str, reason: str) -> None:
        super().__init__(f"request {uuid} was given up: {reason}")
        self.uuid = uuid
        self.reason = reason


class Expired(TitanicError):
    """The time to live of the request ended before it was answered."""

    def __init__(self, uuid: str) -> None:
        super().__init__(f"request {uuid} expired: its time to live ended before it was answered")
        self.uuid = uuid


class JournalError(TitanicError):
    """The files of a store are damaged, foreign or unusable.

    Attributes:
        code: JOURNAL_SEQ_GAP, JOURNAL_DUP, JOURNAL_FOREIGN, VERSION_TOO_NEW, DAMAGED, LOCKED, MIRROR.
        path: the file.
    """

    code: ClassVar[str] = "JOURNAL"

    def __init__(self, path: str, reason: str, code: str | None = None) -> None:
        self.name = code or type(self).code
        super().__init__(f"{self.name}: {path}: {reason}")
        self.path = path
        self.reason = reason


class Damaged(JournalError):
    """A stored record can no longer be read.

    Attributes:
        offset, length: the byte range in the segment.
        uuid: the UUID as read, b"" if unknown.
    """

    code = "DAMAGED"

    def __init__(self, path: str, offset: int, length: int, uuid: bytes = b"") -> None:
        super().__init__(path, f"{length} bytes at {offset} are not a record, id as read {uuid.hex().upper() or 'unknown'}")
        self.offset = offset
        self.length = length
        self.uuid = uuid


class VersionTooNew(JournalError):
    """A file was written by a newer version; nothing was changed."""

    code = "VERSION_TOO_NEW"

    def __init__(self, path: str, version: int, most: int) -> None:
        super().__init__(path, f"format version {version}, this program reads up to {most}")
        self.version = version
        self.most = most


class StoreLocked(JournalError):
    """Another process has this store open."""

    code = "LOCKED"

    def __init__(self, path: str, pid: int) -> None:
        super().__init__(path, f"in use by process {pid}" if pid else "in use by another process")
        self.pid = pid
