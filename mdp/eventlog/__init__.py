"""Event log of a broker: format, files, and following a log while it is written.

`from mdp.eventlog import ANSWERED` works; names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from majordomo_toolkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from mdp.eventlog.format import (
        ANSWERED,
        BLOCK_BYTES_MAX,
        CANCELLED,
        COLUMNS,
        DROPPED,
        EXPIRED,
        FAILED,
        HEADER_BYTES,
        ID_BYTES,
        KINDS,
        REDELIVERED,
        REFUSED,
        VERSION,
        WORKER_LOST,
        WORKER_READY,
        Block,
        Clock,
        Damage,
        Event,
        NotAnEventLog,
        decode_blocks,
        decode_header,
        decode_segment,
        encode_block,
        encode_header,
        events_of,
        halves,
        whole_blocks,
    )

__all__ = [
    "ANSWERED",
    "BLOCK_BYTES_MAX",
    "CANCELLED",
    "COLUMNS",
    "DROPPED",
    "EXPIRED",
    "FAILED",
    "HEADER_BYTES",
    "ID_BYTES",
    "KINDS",
    "REDELIVERED",
    "REFUSED",
    "VERSION",
    "WORKER_LOST",
    "WORKER_READY",
    "Block",
    "Clock",
    "Damage",
    "Event",
    "NotAnEventLog",
    "decode_blocks",
    "decode_header",
    "decode_segment",
    "encode_block",
    "encode_header",
    "events_of",
    "halves",
    "whole_blocks",
]

__getattr__ = lazy_names(__name__, dict.fromkeys(__all__, "mdp.eventlog.format"))
