"""Shards of a broker: the shard of a service, its endpoints, and the greeting of the broker. Pure.

A sharded broker is one process at the public endpoint, the front, and `count` further ones, the shards, each of which serves a share of the
services. The rules are the same for broker, clients and workers:

    shard_of          the service's shard is the one with the greatest score; the score of shard i (from 0) is the first 8 bytes,
                      big-endian, of SHA-256(i as 2 bytes, big-endian . name of the service); of equal scores the lower i. (Rendezvous
                      hashing: one shard more takes services from all others and moves no further ones.)
    shard_endpoint    shard i listens next to each endpoint of the broker: tcp at port + 1 + i, ipc at path . "." . i as text
    mmi.protocol 0.3  the broker answers `200 · "shards" · count as text`
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from core.machine.peer_text import decimal

if TYPE_CHECKING:
    from collections.abc import Sequence

# A shard is a process that can occupy a processor; ports next to the public one are reserved for them.
SHARDS_MAX: Final = 64

_OK: Final = b"200"
_SHARDS: Final = b"shards"
_PORT_MAX: Final = 65_535


def shard_of(service: bytes, count: int) -> int:
    scores = [sha256(index.to_bytes(2, "big") + service).digest()[:8] for index in range(count)]
    return scores.index(max(scores))


def shard_endpoint(endpoint: str, index: int) -> str | None:
    """Return the endpoint of a shard next to one of the broker, None where there is none."""
    transport, _, place = endpoint.partition("://")
    if transport == "ipc":
        return f"{endpoint}.{index}"
    host, colon, port = place.rpartition(":")
    if transport != "tcp" or not colon or not port.isdecimal() or not 0 < int(port) <= _PORT_MAX - 1 - index:
        return None
    return f"tcp://{host}:{int(port) + 1 + index}"


def greeting(count: int) -> list[bytes]:
    """Return the body with which a broker of so many shards answers `mmi.protocol` for MDP/0.3."""
    return [_OK, _SHARDS, b"%d" % count]


def parse_greeting(body: Sequence[bytes]) -> int:
    """Return the number of shards in the body of an answer to `mmi.protocol`, 0 when it has none."""
    if len(body) != 3 or body[0] != _OK or body[1] != _SHARDS:
        return 0
    count = decimal(body[2])
    return count if count is not None and count <= SHARDS_MAX else 0
