"""What brokers say to each other to lend workers: `mmi.lending`, and the entry `via` of a request's options (`specs/peering.md`).

    mmi.lending [name of who asks, or ""]   200, [name of the broker, or ""], [msgpack map: service name -> requests its workers could take]

A service without workers of the broker's own is not in the map, one whose workers are all busy is in it with 0. `via` is a list of the
names of the brokers that have sent the request on, the one its client asked first.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack

from core.machine.bounded_msgpack import BadMsgpack, unpack
from core.zmtp.decoder import Encoded
from mdp.wire.commands import is_service_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdp.broker.workers.directory import Directory

__all__ = ["LENDING_SERVICE", "decode_offer", "decoded", "encode_offer", "extend_via", "via_of"]

LENDING_SERVICE = b"mmi.lending"

# Services of one offer; what a peer has beyond them it does not lend.
SERVICES_MAX = 10_000
# A request that passes more brokers than this goes in circles.
VIA_MAX = 64
_NAME_BYTES_MAX = 255
# An entry of an offer is a name, its header and a number.
_ENTRY_OVERHEAD_BYTES = 8


def encode_offer(directory: Directory, limit_bytes: int) -> list[bytes]:
    """Return name and map for what the workers of a broker could take now; workers it has borrowed grant it no credit, so do not count.

    Args:
        directory: of the broker.
        limit_bytes: of the answer; services beyond it are left out.
    """
    offer: dict[bytes, int] = {}
    size = 0
    for name, service in directory.routes.items():
        if any(worker.credit for worker in service.workers.values()):
            size += len(name) + _ENTRY_OVERHEAD_BYTES
            if size > limit_bytes or len(offer) >= SERVICES_MAX:
                break
            offer[name] = sum(max(0, worker.credit - len(worker.held)) for worker in service.workers.values())
    return [directory.name, bytes(msgpack.packb(offer))]


def decode_offer(body: Sequence[bytes]) -> tuple[bytes, dict[bytes, int]] | None:
    """Return name and map of an answer, None when it is none."""
    if len(body) != 3 or body[0] != b"200" or len(body[1]) > _NAME_BYTES_MAX:
        return None
    try:
        offer = unpack(body[2], max_map_len=SERVICES_MAX, max_array_len=0, containers_max=1)
    except BadMsgpack:
        return None
    if not isinstance(offer, dict):
        return None
    for name, count in offer.items():
        if not isinstance(name, bytes) or not is_service_name(name) or type(count) is not int or count < 0:
            return None
    return body[1], offer


def decoded(frames: Sequence[bytes]) -> list[bytes]:
    """Return frames of which the last may be `Encoded`, all decoded."""
    if frames and isinstance(last := frames[-1], Encoded):
        return [*frames[:-1], *last.frames()]
    return list(frames)


def via_of(options: bytes) -> tuple[bytes, ...] | None:
    """Return the brokers that have sent a request on; None for a list that cannot be believed, so that it goes no further."""
    if not options:
        return ()
    try:
        entries = unpack(options)
    except BadMsgpack:
        return None
    via = entries.get("via", []) if isinstance(entries, dict) else None
    if not isinstance(via, list) or len(via) > VIA_MAX or not all(isinstance(name, bytes) for name in via):
        return None
    return tuple(via)


def extend_via(options: bytes, via: Sequence[bytes], name: bytes) -> bytes:
    """Return options, which were decoded before, with this broker as the last one the request has passed."""
    entries = unpack(options) if options else {}
    return bytes(msgpack.packb({**entries, "via": [*via, name]}))
