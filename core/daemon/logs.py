"""Logs of every command: stderr, one line per record, with control characters escaped.

    text   2026-11-20T17:56:59.123Z INFO mdp.broker worker joined service=echo credit=16
    json   {"time": "2026-11-20T17:56:59.123Z", "level": "INFO", "logger": "mdp.broker", "message": "worker joined", ...}

Fields are passed as `extra=` (`logging` refuses the names of a record's own attributes: name, args, module, process ...). Names and
reasons come from peers, so control characters, ANSI sequences, line breaks and bidirectional marks are escaped.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from core.machine.log_rate import INTERVAL_S, LogRate
from core.runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from types import TracebackType

LogFormat = Literal["text", "json"]
LEVELS: Final = ("debug", "info", "warning", "error")

# What a line waits for the reader of stderr, in milliseconds. Once it was too long, lines are left out until there is a reader again.
READER_MS: Final = 200
PIECE: Final = 4096  # bytes: a pipe that can be written takes so many without a wait (PIPE_BUF)

_RECORD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

# A value with one of these is quoted, so that its end is clear.
_ENDS_VALUE: Final = frozenset(' ="')


def printable(text: str) -> str:
    """Return the text with control characters escaped; spaces and letters of any script stay."""
    if text.isprintable():
        return text
    # A codec would be imported here, and a process without a file to open could not log that.
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def set_up(log_format: LogFormat, level: str) -> None:
    """Send the logs of the whole process to stderr; replaces an earlier set-up."""
    try:
        handler: logging.Handler = StderrHandler(Lines(sys.stderr.fileno()))
    except (AttributeError, OSError):  # no file behind it, or no poll on this system
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


def utc_text(seconds: float) -> str:
    """Return a time, in seconds since 1970, as text with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _RECORD_ATTRIBUTES}


def _plain(value: object) -> object:
    """Return a field's value for JSON; bytes as text if they are UTF-8, else in hex."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    if isinstance(value, list | tuple):
        return ", ".join(str(_plain(item)) for item in value)
    return value if isinstance(value, int | float | str | None) else str(value)


def _error(record: logging.LogRecord) -> str | None:
    """Return the exception of a record as one line: type, text, and stack, innermost first."""
    if not record.exc_info or record.exc_info[1] is None:
        return None
    error = record.exc_info[1]
    places: list[str] = []
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename}:{trace.tb_lineno} in {code.co_name}")
        trace = trace.tb_next
    return f"{type(error).__name__}: {error} at " + ", from ".join(reversed(places))


class Lines:
    """Writes lines to a descriptor that must not block the daemon: a full pipe or a stopped terminal."""

    def __init__(self, descriptor: int) -> None:
        self.left_out = 0  # lines, since the last that was written
        self._descriptor = descriptor
        self._writable = select.poll()
        self._writable.register(descriptor, select.POLLOUT)
        self._torn = ""  # ends a line that was written in part

    def write(self, line: str) -> None:
        """Write a line, in pieces that cannot block, or leave it out."""
        rest = memoryview(f"{self._torn}{line}".encode(errors="backslashreplace"))
        while rest:
            if not self._writable.poll(0 if self.left_out else READER_MS):
                self.left_out += 1
                return
            try:
                rest = rest[os.write(self._descriptor, rest[:PIECE]) :]
            except OSError:  # the reader is gone, or the disk is full
                self.left_out += 1
                return
            self._torn = "\n" if rest else ""
        self.left_out = 0

    def flush(self) -> None:
        """Do nothing: nothing is kept."""


class StderrHandler(logging.StreamHandler[Lines]):
    """Writes records to a descriptor; the first after some were left out says how many."""

    def emit(self, record: logging.LogRecord) -> None:
        left_out = self.stream.left_out
        if left_out:
            text = "the log was not read, lines were left out"
            fields = {"name": "core.daemon", "levelno": logging.WARNING, "levelname": "WARNING", "msg": text, "left_out": left_out}
            super().emit(logging.makeLogRecord(fields))
        if not self.stream.left_out:
            super().emit(record)


class TextFormatter(logging.Formatter):
    """One line for people."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [utc_text(record.created), record.levelname, record.name, printable(record.getMessage())]
        fields = _fields(record)
        error = _error(record)
        if error is not None:
            fields["error"] = error
        for name, value in fields.items():
            text = str(_plain(value))
            unclear = not text or not _ENDS_VALUE.isdisjoint(text)
            parts.append(f"{name}={json.dumps(text) if unclear else printable(text)}")
        return " ".join(parts)


class JsonFormatter(logging.Formatter):
    """One JSON object per line, for programs."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; JSON's own escapes leave nothing but printable ASCII."""
        time, message = utc_text(record.created), record.getMessage()
        entry: dict[str, object] = {"time": time, "level": record.levelname, "logger": record.name, "message": message}
        error = _error(record)
        if error is not None:
            entry["error"] = error
        # A field must not replace a standard key.
        entry |= {name: _plain(value) for name, value in _fields(record).items() if name not in entry}
        return json.dumps(entry)


class RateLimit(logging.Filter):
    """Limits what a library logs because of peers, like `RateLimitedLog`: one line per kind and interval."""

    def __init__(self) -> None:
        super().__init__()
        self._rate = LogRate()

    def filter(self, record: logging.LogRecord) -> bool:
        cause = record.exc_info[0] if record.exc_info else None
        left_out = self._rate.admit((record.levelno, record.msg, cause), runtime.current().monotonic())
        if left_out:
            record.left_out = left_out
        return left_out is not None


class RateLimitedLog:
    """Limits log lines caused by peers: one per kind and interval, with the number of suppressed ones in `left_out`."""

    def __init__(self, logger: logging.Logger, interval_s: float = INTERVAL_S, clock: Callable[[], float] | None = None) -> None:
        self._logger = logger  # writes the lines
        self._clock = clock if clock is not None else runtime.current().monotonic  # reads monotonic seconds
        self._rate = LogRate(interval_s)

    @property
    def left_out(self) -> int:
        return self._rate.left_out

    def warning(self, kind: Hashable, message: str, *args: object, **fields: object) -> bool:
        """Write a warning with these fields, unless one of its kind was written recently; returns whether it was written."""
        return self._write(logging.WARNING, kind, message, args, None, fields)

    def error(self, kind: Hashable, message: str, *args: object, cause: BaseException | None = None, **fields: object) -> bool:
        """Write an error in the same way, with the traceback of its cause."""
        return self._write(logging.ERROR, kind, message, args, cause, fields)

    def _write(
        self, level: int, kind: Hashable, message: str, args: tuple[object, ...], cause: BaseException | None, fields: dict[str, object]
    ) -> bool:
        left_out = self._rate.admit(kind, self._clock())
        if left_out is None:
            return False
        if left_out:
            fields["left_out"] = left_out
        self._logger.log(level, message, *args, exc_info=cause, extra=fields)
        return True
