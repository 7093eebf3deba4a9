"""Answers of all shards to one question for MMI, as the answer of one broker. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from core.machine.peer_text import json_or_none
from core.zmtp.frames import decode_frames
from mdp.broker.mmi import json_list
from mdp.wire.commands import CLIENT_FINAL_03, HEAD_BYTES, MDPC02, NUMBERED_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOT_FOUND: Final = [b"404"]
_OK: Final = b"200"
_UNANSWERED: Final = b"504"
_FINAL_02: Final = b"\x03"
_STATS: Final = b"mmi.stats"


def body_of(octets: bytes) -> list[bytes] | None:
    """Return the body of an encoded reply to a client, None for any other message."""
    frames = decode_frames(octets)
    head = frames[0]
    if head[:HEAD_BYTES] == CLIENT_FINAL_03 and len(head) == NUMBERED_BYTES:
        return frames[1:]
    if head == MDPC02:
        return frames[3:] if frames[1:2] == [_FINAL_02] else None
    return frames[3:] if not head and len(frames) > 3 else None


def merged(
    service: bytes, bodies: Sequence[Sequence[bytes]], more: Mapping[str, int], limit: int, missing: Sequence[int] = ()
) -> list[bytes]:
    """Return the body of the front's answer to `mmi.stats`, or to a question that is answered with a list.

    Numbers are added, lists follow each other; one beyond `limit` bytes is truncated and ends with null. The first answer that is no 200,
    such as 403, is the answer. Where shards have not answered, a list ends with null too, and one more frame has their numbers.
    """
    silent = [_dumped([*missing])] if missing else []
    parts: list[Any] = []
    for body in bodies:
        if not body or body[0] != _OK:
            return [*body]
        parts.append(json_or_none(body[1]) if len(body) > 1 else None)
    if service == _STATS:
        return [_OK, _dumped(_sum([part for part in parts if isinstance(part, dict)]) | dict(more)), *silent]
    rows = [row for part in parts if isinstance(part, list) for row in part]
    kept = [row for row in rows if row is not None]
    return [_OK, json_list(kept, limit, whole=len(kept) == len(rows) and not missing), *silent]


def unanswered(missing: Sequence[int]) -> list[bytes]:
    """Return the answer to a question that one shard can answer, which may be one of these."""
    return [_UNANSWERED, b"", _dumped([*missing])]


def silent_shards(body: Sequence[bytes]) -> list[int]:
    """Return the shards that have not answered, from the last frame of a merged answer."""
    found = json_or_none(body[2]) if len(body) > 2 else None
    return [number for number in found if type(number) is int] if isinstance(found, list) else []


def silence_in_words(silent: Sequence[int], then: str = "") -> str:
    """Return what it means that these shards have not answered, by default for a list."""
    does, it_serves = ("do", "they serve") if len(silent) > 1 else ("does", "it serves")
    return f"shard{'s' * (len(silent) > 1)} {', '.join(map(str, silent))} {does} not answer: {then or f'what {it_serves} is missing'}"


def _sum(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total


def _dumped(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
