"""Messages between brokers that lend workers: `mmi.lending`, and the entry `via` of a request's options (`specs/peering.md`).

    mmi.lending [name of the asking broker, or ""]   200, [name of the broker, or ""], [msgpack map: service name -> free capacity]

The map has the services with workers of the broker's own, with 0 if all are busy; the capacity is a number of requests. `via` lists the
names of the brokers that have forwarded the request, first the one its client asked.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack

from core.machine.bounded_msgpack import BadMsgpack, unpack
from mdp.wire.commands import is_service_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LENDING_SERVICE = b"mmi.lending"

# Services of one offer; further ones are not lent.
SERVICES_MAX = 10_000
# A request that has passed more brokers goes in circles.
VIA_MAX = 64
_NAME_BYTES_MAX = 255
# Services of an offer that is received: so many, or one for each so many bytes, which a name of four characters and a number have.
_SERVICES_FREE = 1_000
_BYTES_PER_SERVICE = 7
# Header and number of an entry, beside the name.
_ENTRY_OVERHEAD_BYTES = 8


def encode_offer(name: bytes, capacities: Iterable[tuple[bytes, int]], limit_bytes: int) -> list[bytes]:
    """Return name and map of an answer."""
    offer: dict[bytes, int] = {}
    size = 0
    for service, capacity in capacities:
        size += len(service) + _ENTRY_OVERHEAD_BYTES
        if size > limit_bytes or len(offer) >= SERVICES_MAX:
            break
        offer[service] = capacity
    return [name, bytes(msgpack.packb(offer))]


def decode_offer(body: Sequence[bytes]) -> tuple[bytes, dict[bytes, int]] | None:
    """Return name and map of an answer, None when it is invalid."""
    if len(body) != 3 or body[0] != b"200" or len(body[1]) > _NAME_BYTES_MAX:
        return None
    try:
        names_max = min(SERVICES_MAX, max(_SERVICES_FREE, len(body[2]) // _BYTES_PER_SERVICE))
        offer = unpack(body[2], max_map_len=names_max, max_array_len=0, containers_max=1)
    except BadMsgpack:
        return None
    if not isinstance(offer, dict):
        return None
    for name, count in offer.items():
        if not isinstance(name, bytes) or not is_service_name(name) or type(count) is not int or count < 0:
            return None
    return body[1], offer


def via_of(options: bytes) -> tuple[bytes, ...] | None:
    """Return the brokers that have forwarded a request; None for an invalid list, which is not forwarded."""
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
    """Return valid options with this broker added as the last one of `via`."""
    entries = unpack(options) if options else {}
    return bytes(msgpack.packb({**entries, "via": [*via, name]}))
