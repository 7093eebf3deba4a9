"""Progress of a running request, as its handler reports it: a number, a text, or both.

Of a request that waits, the broker reports the rate that it waits for.

Pure. On the wire it is one frame of PROGRESS (specs/mdp.md §3), a msgpack map like options.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from core.machine.bounded_msgpack import BadMsgpack, unpack
from mdp.wire.commands import PROGRESS_BYTES_MAX, TEXT_BYTES_MAX, printable
from mdp.wire.options import encode_options
from mdp.wire.policies import Rate

_ENTRIES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a request.

    Attributes:
        done: share of the work that is done, 0.0 to 1.0; None if it is not known.
        text: for people, one line of up to 1,024 bytes; a longer one is shortened.

    Raises:
        ValueError: `done` is not a number from 0 to 1.
        TypeError: `text` is no text.
    """

    done: float | None = None
    text: str = ""

    def __post_init__(self) -> None:
        done: Any = self.done
        text: Any = self.text
        if done is not None and (not isinstance(done, int | float) or not 0 <= done <= 1):
            raise ValueError(f"progress of {done!r}: it must be a number from 0 to 1, the share that is done")
        if not isinstance(text, str):
            raise TypeError(f"the text of a progress is {type(text).__name__}, it must be text")

    def __str__(self) -> str:
        share = "" if self.done is None else f"{self.done:.0%}"
        return " ".join(part for part in (share, self.text) if part)


def encode_progress(progress: Progress) -> bytes:
    text = progress.text.encode(errors="replace")[:TEXT_BYTES_MAX].decode(errors="ignore")
    return encode_options({"done": None if progress.done is None else float(progress.done), "text": text or None})


@dataclass(frozen=True, slots=True)
class RateWait:
    """Why a request waits at the broker: its service has had as many requests as its rate allows."""

    rate: Rate
    waiting: int

    def __str__(self) -> str:
        return f"held back by the rate of this service, {self.rate}; {self.waiting} request{'s' * (self.waiting != 1)} waited"


def decode_progress(octets: bytes) -> Progress | None:
    """Return what a frame of PROGRESS says, None if it is not valid; entries of later drafts are skipped."""
    if not octets:
        return Progress()
    try:
        entries = _entries(octets)
        text = entries.get("text", "")
        return Progress(entries.get("done"), printable(text.encode(errors="replace")) if isinstance(text, str) else text)
    except (BadMsgpack, ValueError, TypeError):
        return None


def encode_rate_wait(wait: RateWait) -> bytes:
    """Return the frame of a PROGRESS with which a broker says that a request waits for a rate."""
    return encode_options({"rate": wait.rate.entries(), "waiting": wait.waiting})


def decode_rate_wait(octets: bytes) -> RateWait | None:
    """Return what a request waits for, None if a frame of PROGRESS says nothing of it."""
    try:
        entries = _entries(octets)
        rate, waiting = entries.get("rate"), entries.get("waiting")
        if not isinstance(rate, dict) or not isinstance(waiting, int):
            return None
        return RateWait(Rate.of(rate), waiting)
    except (BadMsgpack, ValueError):
        return None


def _entries(octets: bytes) -> dict[Any, Any]:
    """Return the entries of a frame; raises BadMsgpack, ValueError: it is not valid."""
    if len(octets) > PROGRESS_BYTES_MAX:
        raise ValueError(f"progress of {len(octets)} bytes, at most {PROGRESS_BYTES_MAX} are allowed")
    entries = unpack(octets, max_map_len=_ENTRIES_MAX, max_array_len=_ENTRIES_MAX, containers_max=_ENTRIES_MAX)
    if not isinstance(entries, dict):
        raise ValueError("progress is no map")
    return entries
